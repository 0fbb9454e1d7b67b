"""How the logs of a job's tasks are followed and written."""
