"""The operator against a real API server with fake nodes: its cost, and its time beside programs that do less."""
