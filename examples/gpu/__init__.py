"""A program for workers with GPUs, and its job."""
