"""The operator with a real API server and fake nodes: its cost, and its time compared with minimal programs."""
