"""Trackers of experiments, to which the chief logs its job: MLflow."""
