"""Programs to start from; each runs with `python -m`, here or in a job."""
