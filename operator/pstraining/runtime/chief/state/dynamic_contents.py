"""The rows by key of a saved state, distributed to the arenas of any number of servers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pstraining.runtime.checkpoint.state import Entry, StateMismatchError, StateParts
from pstraining.runtime.model.embeddings.dynamic_rows import owners
from pstraining.runtime.model.partition import Array
from pstraining.runtime.ps.tables.arena import KEYS, SEEN
from pstraining.runtime.ps.tables.dynamic_table import ROWS


class RowsPiece(NamedTuple):
    """Keys, and their rows, that one call writes to a shard."""

    shard: int
    arena: int
    """Number of the arena on the shard."""
    begin: int
    """Number of keys in the shard's arena before the call."""
    keys: Array
    """int64[n]."""
    columns: dict[str, Array]
    """The flattened rows of each given column, by the column's name."""


def check(names: Mapping[str, str], own: Mapping[str, Entry], saved: Mapping[str, Entry], *, fresh: bool) -> None:
    """Check the columns of an arena in a saved state.

    Args:
        names: the name of each column's tensor, by the column's name.
        own: the tensors on the servers, with any number of rows.
        saved: the tensors of the saved state.
        fresh: whether only keys and rows are written.

    Raises:
        StateMismatchError: the state belongs to another table, model or optimizer.
    """
    if ROWS not in names and not _has_candidates(names, saved, fresh=fresh):
        return
    rows = names.get(ROWS, names[KEYS]).partition("/")[2]
    if names[KEYS] not in saved:
        raise StateMismatchError(
            f"the saved state has no keys of {rows}: it was saved with a number for input_dim, or without the layer. "
            "Use the former input_dim, or train the model from the beginning"
        )
    number = saved[names[KEYS]].shape
    for column, name in names.items():
        if column == SEEN and name not in saved:  # a program without `max_rows` and `expire_after` saved the state
            continue
        if fresh and column not in (KEYS, ROWS):
            continue
        if name not in saved:
            raise StateMismatchError(f"the saved state has no {name}: it was saved by another model or optimizer")
        if saved[name].shape != (*number, *own[name].shape[1:]):
            raise StateMismatchError(f"{name.partition('/')[2]} has another shape in the saved state than in the model")


def pieces(
    arena: int, names: Mapping[str, str], state: StateParts, *, servers: int, most: int, fresh: bool, device: str
) -> Iterator[RowsPiece]:
    """Yield the keys and rows of one arena for all servers.

    If the state lacks the steps of the rows' last updates, rows count as updated at the step of the state.

    Args:
        arena: number of the arena on each shard.
        names: see `check`.
        state: the saved state, which is read once, from beginning to end.
        servers: number of shards.
        most: maximum number of bytes of a piece, except that one row may be larger.
        fresh: whether only keys and rows are written.
        device: the device that computes the keys' servers.
    """
    entries = state.entries
    if ROWS not in names and not _has_candidates(names, entries, fresh=fresh):
        return
    given = {
        column: math.prod(entries[name].shape[1:])
        for column, name in names.items()
        if column == ROWS or (column != KEYS and not fresh and name in entries)
    }
    (total,) = entries[names[KEYS]].shape
    of_row = sum(width * np.dtype(entries[names[column]].dtype).itemsize for column, width in given.items()) + 8
    length, begun = max(1, most // of_row), [0] * servers
    for low in range(0, total, length):
        high = min(low + length, total)
        keys = state.read(names[KEYS], low, high)
        columns: dict[str, Array] = {
            name: state.read(names[name], low * width, high * width).reshape(-1, width) for name, width in given.items()
        }
        if SEEN in names and SEEN not in given:
            columns[SEEN] = np.full(len(keys), state.step, np.int64)
        with tf.device(device):
            owner = np.asarray(owners(tf.constant(keys), servers))
        for shard in range(servers):
            mine = np.flatnonzero(owner == shard)
            if mine.size:
                yield RowsPiece(shard, arena, begun[shard], keys[mine], _taken(columns, mine))
                begun[shard] += mine.size


def _has_candidates(names: Mapping[str, str], saved: Mapping[str, Entry], *, fresh: bool) -> bool:
    """Return whether a state has the counts of keys without rows, which programs with `min_count` save."""
    return not fresh and names[KEYS] in saved


def _taken(columns: Mapping[str, Array], places: Sequence[int] | Array) -> dict[str, Array]:
    return {name: np.ascontiguousarray(values[places]).reshape(-1) for name, values in columns.items()}
