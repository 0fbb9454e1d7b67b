"""Operations on the data ledger of the first server and its standbys, to emit inside a traced function."""

from collections.abc import Sequence

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import applied, critical, not_applied, with_dependencies
from pstraining.runtime.ps.data_ledger import Ledger
from pstraining.runtime.ps.shard import Shard


def assign_split(shard: Shard, session: Tensor, identity: Tensor, limit: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Assign a split of the data to a worker.

    Args:
        shard: the first server's.
        session: term and generation. int64[2].
        identity: worker and incarnation. int64[2].
        limit: the first position that is not handed out any more. int64[].

    Returns:
        1, its position and how many of its batches are done; 0 if there is none left, -1 if the worker's session is
        over: int64[3]. And the ledger's news for standbys, if there may be any.
    """
    ledger = _ledger(shard)

    def body(session: Tensor, identity: Tensor, limit: Tensor) -> tuple[Tensor, list[Tensor]]:
        allowed = shard.in_session(shard.record.read_value(), session)
        allowed &= shard.registry.is_current(identity[0], identity[1])
        found = tf.cond(
            allowed,
            lambda: ledger.assign(identity[0], shard.registry, limit),
            lambda: tf.constant([-1, 0, 0], tf.int64),
        )
        with tf.control_dependencies([found]):
            return found, ledger.news() if ledger.versions is not None else []

    answer: tuple[Tensor, list[Tensor]] = critical(shard.device, shard.container, [session, identity, limit], body)
    return answer


def keep(shard: Shard, session: Tensor, news: Sequence[Tensor]) -> Tensor:
    """On a standby of the first server: keep what is new in the ledger; 1 if the session goes on. int64[]."""
    ledger = _ledger(shard)

    def body(session: Tensor, *news: Tensor) -> Tensor:
        allowed = shard.in_session(shard.record.read_value(), session)
        return tf.cond(allowed, lambda: with_dependencies(ledger.merge(news), applied()), not_applied)

    return critical(shard.device, shard.container, [session, *news], body)


def left(shard: Shard) -> Tensor:
    """The first position nobody was given, how many pieces are being trained, the first not done. int64[3]."""
    return critical(shard.device, shard.container, [], _ledger(shard).left)


def _ledger(shard: Shard) -> Ledger:
    assert shard.ledger is not None  # noqa: S101 - asked of the first server of a job with a ledger
    return shard.ledger
