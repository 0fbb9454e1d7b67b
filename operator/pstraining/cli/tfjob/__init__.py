"""From a TFJob to a PSTrainingJob: data to data. `job.converted` is the way in; nothing of a TFJob is left unsaid."""
