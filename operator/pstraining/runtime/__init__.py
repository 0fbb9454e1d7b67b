"""The training library: Keras 3 models on TensorFlow parameter servers.

A program gives functions that build its model, its optimizer and its data to `Trainer`; every task of the job runs
the same program. Importing this package imports neither TensorFlow nor Keras, because a parameter server becomes
TensorFlow's server without loading their Python modules.
"""

from typing import TYPE_CHECKING

from pstraining.runtime.config.settings import CheckpointSettings, TrainingSettings
from pstraining.runtime.data.sources import Files, Ranges
from pstraining.runtime.trainer import Trainer

if TYPE_CHECKING:
    from pstraining.runtime.model.embeddings.embedding import Embedding

__all__ = ["CheckpointSettings", "Embedding", "Files", "Ranges", "Trainer", "TrainingSettings"]


def __getattr__(name: str) -> object:
    """Import the layer `Embedding` on its first use, because the import loads Keras."""
    if name == "Embedding":
        from pstraining.runtime.model.embeddings.embedding import Embedding

        return Embedding
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
