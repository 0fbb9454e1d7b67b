"""Loading TensorFlow in less time."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Disable Python's garbage collection in the block, which imports TensorFlow, and exclude its objects afterwards.

    The imported objects live as long as the process, and each full collection visits all of them. Measured: the import
    takes 1.9 s instead of 2.3 s. A later full collection, during which the process neither trains nor fails over, no
    longer takes 0.2 s for them. Existing garbage, some 2,000 objects, is never freed. Nothing is changed for a program
    that has disabled garbage collection or has imported TensorFlow before.
    """
    if not gc.isenabled() or "tensorflow" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
