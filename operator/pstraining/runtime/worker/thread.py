"""The worker of a job without a chief: a thread beside worker 0's chief."""

import threading
from collections.abc import Callable


class WorkerThread:
    """The thread in which worker 0 trains in a job without a chief; the main thread is the chief."""

    def __init__(self, run: Callable[[], None] | None) -> None:
        self._run = _as_here(run) if run else None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name="pstraining-worker", daemon=True)

    def start(self) -> None:
        """Start the thread, if there is something to run."""
        if self._run:
            self._thread.start()

    def check_abort(self) -> None:
        """Raise the worker's error, if it failed."""
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        """Wait for the worker's end, for some seconds, and raise its error, if it failed."""
        if self._run:
            self._thread.join(timeout=10)
        self.check_abort()

    def _guarded(self) -> None:
        try:
            if self._run:
                self._run()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the main thread
            self._error = error


def _as_here(run: Callable[[], None]) -> Callable[[], None]:
    """Return a function that builds the same model in another thread as a worker's main thread would."""
    from pstraining.runtime.model.own_state import with_settings  # TensorFlow, which no parameter server loads

    return with_settings(run)
