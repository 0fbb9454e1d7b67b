"""Decisions: pure functions from observations to actions, status and events. No clock, no I/O, no logging."""
