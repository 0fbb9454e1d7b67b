"""The state on the servers as blocks of a checkpoint: read in calls of bounded size, the next ones ahead of time."""

import errno
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from pstraining.runtime.checkpoint.parts import Parts
from pstraining.runtime.checkpoint.ports.part_place import PartPlace
from pstraining.runtime.checkpoint.state import ENDED, Entry
from pstraining.runtime.chief.state.state_map import Span, StateMap
from pstraining.runtime.model.partition import Array
from pstraining.runtime.ps.saving.parts import ShardParts
from pstraining.runtime.ps.saving.state_parts import Unit

AHEAD: Final = 1
"""Number of blocks that are read while one is written."""


class ReadWindow(NamedTuple):
    """The data that one call reads: a unit of a shard, or rows of its part."""

    shard: int
    unit: int
    begin: int = 0
    end: int = 0


class _Source(NamedTuple):
    """Elements of a window's part."""

    window: ReadWindow
    place: int
    begin: int
    end: int


class _Block(NamedTuple):
    name: str
    sources: list[_Source]
    width: int = 0
    """Number of elements in a row if the sources' rows alternate; otherwise 0."""


@dataclass(frozen=True)
class ServerState:
    """The state on all servers at one step.

    Args:
        step: the global step.
        places: the map of the tensors to the shards' parts.
        shards: every shard's parts.
        most: maximum number of bytes of a window.
        fetch: returns a window: a flattened array for each of its parts.
        between: called before every block; may raise to end the reading.
        write: lets the servers write those tensors that they can write, see `WritesParts`.
    """

    step: int
    places: StateMap
    shards: Sequence[ShardParts]
    most: int
    fetch: Callable[[ReadWindow], Sequence[Array]]
    between: Callable[[], None] = lambda: None
    write: Callable[[PartPlace], Mapping[str, Parts]] = lambda place: {}
    copy: int = 0
    """The name of the servers' copy; 0 if they keep none."""
    base: int | None = None
    """The copy since which the servers have copied only the changed rows of tables; None: the copy is complete."""
    updates: tuple[int, ...] = ()
    """The number of updates that each server has applied. In mode Async they differ while an update is under way."""
    left_out: frozenset[str] = frozenset()
    """Names of tensors that this state leaves out."""
    only_changed: frozenset[str] = frozenset()
    """Names of tensors of which the servers have copied only the changed rows."""
    extra: dict[str, Array] = field(default_factory=dict)
    """Tensors that are not on the servers, by name."""

    @property
    def ended_early(self) -> bool:
        """Whether training ended with this state before its last step; no later run trains this state further."""
        return ENDED in self.extra

    def ended(self) -> "ServerState":
        """Return a copy that is marked as the final state of a training that ended before its last step."""
        return replace(self, extra={**self.extra, ENDED: np.asarray(1, np.int64)})

    def write_parts(self, place: PartPlace) -> Mapping[str, Parts]:
        """Let the servers write tensors to the place of a checkpoint where they can; see `WritesParts`."""
        return self.write(place)

    def without(self, names: Collection[str]) -> "ServerState":
        """Return the state without some tensors."""
        return replace(self, left_out=self.left_out | frozenset(names))

    @property
    def entries(self) -> dict[str, Entry]:
        """The tensors by name, in the order of `blocks`."""
        found = self.places.entries | {name: Entry(str(own.dtype), own.shape) for name, own in self.extra.items()}
        return {name: entry for name, entry in found.items() if name not in self.left_out}

    def blocks(self) -> Iterator[tuple[str, Array]]:
        """Yield names and flattened blocks of tensors: all blocks of one tensor in order, then those of the next.

        Raises:
            OSError: the copy has only the changed rows of a tensor.
        """
        if incomplete := self.only_changed - self.left_out:
            raise OSError(errno.EIO, f"the servers' copy has only the changed rows of {min(incomplete)}")
        windows: OrderedDict[ReadWindow, Future[Sequence[Array]]] = OrderedDict()
        room = len(self.shards) * (AHEAD + 1)
        with ThreadPoolExecutor(len(self.shards) + 1, "pstraining-read-state") as pool:
            for block, coming in _with_next(self._planned(), AHEAD):
                self.between()
                for window in [source.window for one in (block, *coming) for source in one.sources]:
                    if window not in windows:
                        windows[window] = pool.submit(self.fetch, window)
                    windows.move_to_end(window)
                found = [windows[s.window].result()[s.place][s.begin : s.end] for s in block.sources]
                while len(windows) > room:
                    windows.popitem(last=False)
                yield block.name, _joined(found, block.width)
        for name, value in self.extra.items():
            yield name, np.reshape(value, [-1])

    def _planned(self) -> Iterator[_Block]:
        units = [shard.units(self.most) for shard in self.shards]
        at = [
            {part: (number, index) for number, unit in enumerate(own) for index, part in enumerate(unit.numbers)}
            for own in units
        ]
        for name, spans in self.places.spans.items():
            if name in self.left_out:
                continue
            found = [(span, *at[span.shard][span.part]) for span in spans if span.size]
            pieces = [
                (span, list(self._sources(span, ReadWindow(span.shard, number), place, units[span.shard][number])))
                for span, number, place in found
            ]
            if spans[0].stride:
                width = self.shards[spans[0].shard].parts[spans[0].part].width
                turns = max((len(sources) for _, sources in pieces), default=0)
                for turn in range(turns):
                    yield _Block(name, [sources[turn] for _, sources in pieces if turn < len(sources)], width)
            else:
                yield from (_Block(name, [source]) for _, sources in pieces for source in sources)

    def _sources(self, span: Span, window: ReadWindow, index: int, unit: Unit) -> Iterator[_Source]:
        """Yield the sources of a span. Those of a table's spans have equal numbers of rows, except the last one."""
        part = self.shards[span.shard].parts[span.part]
        length = part.width * max(1, self.most // (part.width * part.variable.dtype.size))
        for low in range(span.begin, span.begin + span.size, length):
            high = min(low + length, span.begin + span.size)
            if unit.is_cut:
                rows = window._replace(begin=low // part.width, end=-(-high // part.width))
                yield _Source(rows, index, 0, high - low)
            else:
                yield _Source(window, index, low, high)


def _joined(found: Sequence[Array], width: int) -> Array:
    """Return one array in which the rows of several arrays alternate."""
    if len(found) == 1:
        return found[0]
    joined = np.empty([sum(part.size for part in found) // width, width], found[0].dtype)
    for number, part in enumerate(found):
        joined[number :: len(found)] = part.reshape(-1, width)
    return joined.reshape(-1)


def _with_next(blocks: Iterator[_Block], number: int) -> Iterator[tuple[_Block, list[_Block]]]:
    """Yield each block with up to `number` of the following ones."""
    coming: deque[_Block] = deque()
    for block in blocks:
        coming.append(block)
        if len(coming) > number:
            yield coming.popleft(), list(coming)
    while coming:
        yield coming.popleft(), list(coming)
