"""The history of a job, which its chief writes beside the checkpoints: `summary.json` and the logs of all tasks."""
