"""Mutation tests of a job's fields: each field is removed, and its test must then fail.

`fields.toml` names for each field the code that reads it and its test; `fields.py` checks that table against the CRD.
`python -m hack.field_mutation` runs the mutations. Development only.
"""
