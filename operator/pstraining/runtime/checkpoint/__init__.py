"""Checkpoints: the state by logical names, its storage and the times of saves. Imports no parameter store."""
