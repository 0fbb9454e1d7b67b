"""`make demo`: from nothing to a finished training job, with everything that happens shown."""
