"""The mode Async, with bounded staleness; imports no other mode."""
