"""The operator's process: kopf watches, the queue decides when, the reconciler makes one pass over one job."""
