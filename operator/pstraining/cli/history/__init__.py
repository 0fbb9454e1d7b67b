"""The history of a job in a folder, as a substitute for its cluster."""
