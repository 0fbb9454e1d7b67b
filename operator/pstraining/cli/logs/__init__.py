"""Reading, following and writing the logs of a job's tasks."""
