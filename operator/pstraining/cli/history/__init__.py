"""The history of a job in a folder, read as the cluster that the job was in."""
