"""Decisions: pure functions from what was observed to actions, status and events. No clock, no I/O, no logging."""
