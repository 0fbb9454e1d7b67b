"""The state that a checkpoint lacks, and that training needs to continue in another layout without a restart.

The registered workers, the last step of each, the losses of the current epoch, and the assigned splits of the data are
on the first server. The registrations are on every server.
"""

from collections.abc import Sequence

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import applied, critical, not_applied, with_dependencies
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tensors import field
from pstraining.runtime.ps.variables import PSVariable


def carried(shard: Shard) -> list[PSVariable]:
    """Return a server's variables of that state; those of the first server start with those of all others."""
    of_mode = shard.mode_state.carried if shard.mode_state else ()
    of_ledger = shard.ledger.not_saved() if shard.ledger else []
    return [shard.registry.incarnations, shard.losses, *of_mode, *of_ledger]


def read_carried(shard: Shard) -> list[Tensor]:
    """Emit reading the state of the first server, at one moment."""
    found: list[Tensor] = critical(
        shard.device, shard.container, [], lambda: [variable.read_value() for variable in carried(shard)]
    )
    return found


def write_carried(shard: Shard, fence: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Emit writing the state to a server of another layout; 1 if it applied. int64[].

    Applies under the fence only, while the server applies no steps.

    Args:
        shard: the server's part.
        fence: the number of the ballot under which the layout is founded. int64[].
        values: see `read_carried`.
    """

    def body(fence: Tensor, *values: Tensor) -> Tensor:
        record = shard.record.read_value()

        def write() -> Tensor:
            written = [
                variable.assign(value, read_value=False)
                for variable, value in zip(carried(shard), values, strict=False)
            ]
            return with_dependencies(written, applied())

        allowed = tf.equal(field(record, RecordField.FENCE), fence) & (field(record, RecordField.GENERATION) <= 0)
        return tf.cond(allowed, write, not_applied)

    return critical(shard.device, shard.container, [fence, *values], body)


def delete(shard: Shard) -> Tensor:
    """Emit deleting the state of a server whose layout is over; 1. int64[].

    The record and the acceptor stay: a later chief, or a worker that starts, reads there that the layout is over.
    """
    everything = [*shard.copied, *shard.not_copied]
    variables = [part for variable in everything for part in getattr(variable, "variables", [variable])]

    def body() -> Tensor:
        handles = [variable.handle for variable in variables]
        gone = [tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True) for handle in handles]
        gone += [arena.forget() for arena in shard.arenas]
        return with_dependencies([*gone, *shard.row_records.forget()], applied())

    return critical(shard.device, shard.container, [], body)
