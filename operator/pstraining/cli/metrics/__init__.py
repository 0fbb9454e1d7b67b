"""Rates of a job's tasks from scrapes of their metrics."""
