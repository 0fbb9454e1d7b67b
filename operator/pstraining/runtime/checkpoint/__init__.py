"""Checkpoints: state by logical name, its storage, and when it is saved; imports no parameter store."""
