"""The states of pods, and how `status` shows a job."""
