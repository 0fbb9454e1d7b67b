"""Mutation tests of the pure decisions: mutmut's mutants of whole modules, and a few named ones for `make test`."""
