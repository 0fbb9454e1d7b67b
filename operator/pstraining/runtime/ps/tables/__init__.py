"""Embedding tables on one parameter server: rows by key, and the rows that change during a copy; imports no shard."""
