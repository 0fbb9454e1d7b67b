"""Mutation testing of a job's fields: each is taken away in turn, and its test must fail.

`fields.toml` names for each field the code that reads it and its test; `fields.py` checks that table against the CRD.
`python -m hack.field_mutation` runs the mutations. Development only.
"""
