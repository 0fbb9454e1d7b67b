"""`make demo`: a cluster, the operator and a finished training job, with all steps shown."""
