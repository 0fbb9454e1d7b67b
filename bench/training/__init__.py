"""The benchmark of the training runtime: `python -m bench.training`."""
