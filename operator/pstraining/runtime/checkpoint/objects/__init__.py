"""Checkpoints in an object store: keys instead of folders, conditional writes instead of renames."""
