"""Loading TensorFlow in less time."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Import TensorFlow, and what needs it, without Python's search for garbage; nor are modules searched later.

    Their objects stay for as long as the process, and each full collection goes through all of them. Measured: 1.9 s
    instead of 2.3 for the import, and afterwards nothing instead of 0.2 s for a collection, during which the process
    neither trains nor takes over. Existing garbage stays as well, some 2,000 objects. A program that has switched the
    search off, or has loaded TensorFlow, has objects of its own, and nothing is changed for it.
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
