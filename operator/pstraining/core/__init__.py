"""Decisions: pure functions from what was observed to what is to be done and told. No clock, no I/O, no logging."""
