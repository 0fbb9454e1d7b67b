"""The states of pods, and the output of `status`."""
