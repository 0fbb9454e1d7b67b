"""Operations on the data ledger of the first server and its standbys, to emit inside a traced function."""

from collections.abc import Sequence

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import applied, critical, not_applied, with_dependencies
from pstraining.runtime.ps.data_ledger import Ledger
from pstraining.runtime.ps.messages import Sender, SplitReply
from pstraining.runtime.ps.shard import Shard


def assign_split(shard: Shard, session: Tensor, identity: Tensor, limit: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Assign a split of the data to a worker.

    Args:
        shard: the first server's shard.
        session: see `messages.SessionToken`. int64[2].
        identity: see `messages.Sender`. int64[2].
        limit: the first position that is never assigned. int64[].

    Returns:
        See `messages.SplitReply`, int64[3], and the ledger's changes for standbys; empty in a job without standbys.
    """
    ledger = _ledger(shard)

    def body(session: Tensor, identity: Tensor, limit: Tensor) -> tuple[Tensor, list[Tensor]]:
        allowed = shard.in_session(shard.record.read_value(), session)
        sender = Sender.unpack(identity)
        allowed &= shard.registry.is_current(*sender)
        found = tf.cond(
            allowed,
            lambda: ledger.assign(sender.worker, shard.registry, limit),
            SplitReply.refusal,
        )
        with tf.control_dependencies([found]):
            return found, ledger.news() if ledger.versions is not None else []

    return critical(shard.device, shard.container, [session, identity, limit], body)


def keep(shard: Shard, session: Tensor, news: Sequence[Tensor]) -> Tensor:
    """Merge the ledger's news on a standby of the first server; return 1 if the session is valid. int64[]."""
    ledger = _ledger(shard)

    def body(session: Tensor, *news: Tensor) -> Tensor:
        allowed = shard.in_session(shard.record.read_value(), session)
        return tf.cond(allowed, lambda: with_dependencies(ledger.merge(news), applied()), not_applied)

    return critical(shard.device, shard.container, [session, *news], body)


def left(shard: Shard) -> Tensor:
    """Return the data that is not trained yet; see `messages.DataLeft`. int64[3]."""
    return critical(shard.device, shard.container, [], _ledger(shard).left)


def _ledger(shard: Shard) -> Ledger:
    if shard.ledger is None:
        raise ValueError(f"server {shard.number} has no data ledger: only the first server of a job has one")
    return shard.ledger
