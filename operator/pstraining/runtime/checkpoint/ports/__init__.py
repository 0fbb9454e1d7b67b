"""What checkpoints need of a storage: whole checkpoints to write and find, and ranges of bytes to read."""
