"""The training library: Keras 3 models on TensorFlow parameter servers.

A program gives functions that build its model, its optimizer and its data to `Trainer`; every task of the job runs
the same program. Importing this package imports neither TensorFlow nor Keras, so that a parameter server can become
TensorFlow's server without ever paying for them.
"""

from pstraining.runtime.settings import CheckpointSettings, TrainingSettings
from pstraining.runtime.trainer import Trainer

__all__ = ["CheckpointSettings", "Trainer", "TrainingSettings"]
