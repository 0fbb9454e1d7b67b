"""A worker's progress in mode Async: its last update as it was sent, and the prepared parts of the next one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from pstraining.runtime.compression.push import Parts, Residual
from pstraining.runtime.model.tensor import Batch
from pstraining.runtime.updates.gradients import LocalGradient
from pstraining.runtime.updates.messages import GradientStats


class SentUpdate(NamedTuple):
    """An update as it was sent. A resent update consists of the same bytes."""

    gradient: LocalGradient
    parts: Parts
    residual: Residual
    fmt: int
    version: int
    """The global step whose parameters the gradient was computed on."""

    @property
    def is_applied(self) -> bool:
        """Return whether servers that accept the update apply it: its gradient is finite."""
        stats = GradientStats.unpack(self.gradient.stats)
        return bool(stats.finite) and not stats.overflowed


class ComputedAhead(NamedTuple):
    """The gradient of batches whose update is not due yet; see `overlap`."""

    batches: Sequence[Batch]
    gradient: LocalGradient
    version: int
    """See `SentUpdate`."""


@dataclass
class AsyncProgress:
    """The progress of a worker in mode Async; it outlives a failover."""

    number: int = 0
    """The worker's number of its last update; 0 before the first."""
    sent: Sequence[Batch] | None = None
    """The batches of the last update."""
    encoded: SentUpdate | None = None
    """The last update as it was sent, until every server has accepted it."""
    former: SentUpdate | None = None
    """The last update as it was sent in a former layout, where servers may have applied it."""
    ahead: int = 0
    """Updates by which this worker is ahead of the slowest live worker."""
    is_paused: bool = False
    """Whether updates were paused at the last reply."""
    belongs_to: tuple[int, int] = 0, 0
    """The set of parameters that the progress belongs to, and the fingerprint of their layout."""
    upcoming: Sequence[Batch] | None = None
    """The batches of the next update, while they are expected."""
    computed: ComputedAhead | None = None
    """The gradient of the next update, if it is computed."""
    held: int | None = None
    """The global step of the parameters that the worker holds; None: the next gradient needs a pull."""

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore every field at the end of the block."""
        kept = replace(self)
        try:
            yield
        finally:
            vars(self).update(vars(kept))
