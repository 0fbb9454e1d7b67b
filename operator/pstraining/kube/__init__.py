"""The only I/O with the API server: the port, its client, errors, the executor, the Lease and the events."""
