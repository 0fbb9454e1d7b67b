"""Reads of one parameter server in synchronous rounds, as operations to emit inside a traced function."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import critical
from pstraining.runtime.ps.messages import Sender
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tensors import at, field
from pstraining.runtime.updates.synchronous.accumulators import Accumulators, RoundConfig
from pstraining.runtime.updates.synchronous.messages import ApplyReply, FetchReply, PullHeader, RoundPlace


class FetchOps:
    """Emits reads of one server's parameters and of other servers' replies. The first server is the arbiter."""

    def __init__(self, shard: Shard, config: RoundConfig) -> None:
        self._shard, self._config, self._arbiter = shard, config, shard.number == 0
        self._state, self.device = Accumulators.of(shard), shard.device
        self.loss_scale = None if config.moves else shard.loss_scale
        """The scale that rounds decide; None if the loss is not scaled, or scaled by each worker."""

    def pull(self) -> tuple[Tensor, list[Tensor]]:
        """Return the `PullHeader`, int64[3], and every segment as workers hold it."""

        def body() -> tuple[Tensor, list[Tensor]]:
            shadow = self._state.shadow
            vectors = [
                shadow.as_workers_hold(number) if shadow and number in shadow.moves else vector.read_value()
                for number, vector in enumerate(self._shard.vectors)
            ]
            step = field(self._shard.record.read_value(), RecordField.STEP)
            return PullHeader(step, self._format(), self._scale()).pack(), vectors

        found: tuple[Tensor, list[Tensor]] = self._critical([], body)
        return found

    def moved(self, fmt: int) -> list[int]:
        """Return the numbers of the segments that are fetched as moves in this format."""
        shadow = self._state.shadow
        return shadow.numbers if shadow and self._config.pulls[fmt] is not None else []

    def unshadowed(self, fmt: int, parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Emit on the worker a vector per segment from the fetched tensors; a move if the segment has a shadow."""
        shadow, moved = self._state.shadow, self.moved(fmt)
        return [
            shadow.decode(number, sent) if shadow and number in moved else sent[0] for number, sent in enumerate(parts)
        ]

    def verdict(self, reply: Tensor) -> Tensor:
        """Return the first number of another server's reply, 1 for yes, read on this server. int64[]."""
        with tf.device(self.device):
            return tf.unstack(reply)[0] if reply.shape.rank else tf.identity(reply)

    def unanimous(self, replies: Sequence[Tensor]) -> Tensor:
        """Return 1 if the verdicts of all replies are yes. int64[]."""
        with tf.device(self.device):
            return tf.reduce_min(tf.stack([self.verdict(reply) for reply in replies]))

    def chosen_format(self, reply: Tensor) -> Tensor:
        """Return the wire format in another server's `ApplyReply` or `FetchReply`, read on this one. int64[]."""
        with tf.device(self.device):
            return ApplyReply.read(reply).format

    def learning_rates(self) -> Tensor:
        """Return the learning rates of steps that are not prepared yet; see `Shard.learning_rates`."""
        return self._shard.learning_rates()

    def _critical(self, inputs: Sequence[Tensor], body: Callable[..., Tensor]) -> Tensor:
        return critical(self.device, self._shard.container, inputs, body)

    def _read_update(self, fmt: int, sender: Sender, place: RoundPlace) -> tuple[Tensor, list[list[Tensor]]]:
        moved, shadow = self.moved(fmt), self._state.shadow
        sources = [
            shadow.moves[number] if shadow and number in moved else [vector]
            for number, vector in enumerate(self._shard.vectors)
        ]
        flat = tf.nest.flatten(sources)
        made = tf.equal(field(self._shard.record.read_value(), RecordField.STEP), place.step + 1)
        fits = tf.equal(shadow.is_held(), bool(moved)) if shadow and shadow.numbers else tf.constant(True)
        parts = tf.cond(
            made & fits,
            lambda: [source.read_value() for source in flat],
            lambda: [tf.zeros([0] * len(source.shape), source.dtype) for source in flat],
        )
        scale = self._scale()
        reply = FetchReply(made, self._last_round(sender), self._format(), fetched=made & fits, scale=scale)
        return reply.pack(), tf.nest.pack_sequence_as(sources, tf.nest.flatten(parts))

    def _scale(self) -> Tensor:
        """Return the loss scale of the current round as `LossScale.bits`; 0 if rounds decide none. int64[]."""
        return self.loss_scale.bits() if self.loss_scale else tf.constant(0, tf.int64)

    def _format(self) -> Tensor:
        """Return the format of the current round. int64[]."""
        return tf.constant(0, tf.int64) if self._state.format is None else self._state.format.read_value()

    def _last_round(self, sender: Sender) -> Tensor:
        """Return the last step that the worker's gradient is part of. int64[]."""
        return at(self._state.served, sender.worker)
