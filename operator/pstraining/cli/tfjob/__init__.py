"""Conversion of TFJobs to PSTrainingJobs, without I/O. `job.converted` is the entry point; every change has a note."""
