"""Asynchronous updates: every worker pulls, computes and pushes on its own, in one call.

A gradient is applied when it arrives, on parameters that other workers have moved meanwhile.
"""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from pstraining.runtime.recovery import Session
from pstraining.runtime.store import ParameterStore


@dataclass(frozen=True)
class Reply:
    """What a step came to."""

    accepted: bool
    """Every server applied it. When only some did (a chief took over at that moment), it counts as refused."""
    done: bool
    step: int
    """The job's global step after it."""
    loss: float


class AsyncUpdates:
    """A worker's step in the mode Async."""

    def __init__(self, store: ParameterStore) -> None:
        self._store, self._client = store, store.client
        self._step = tf.function(self._emit, reduce_retracing=True)

    def step(self, batch: Any, session: Session) -> Reply:
        """Compute one batch's gradient on the newest parameters and push it.

        Raises:
            ShardLostError: from `Client.call`; some servers may have applied it.
        """
        with tf.device(self._client.local):
            token = tf.constant([session.term, session.generation], tf.int64)
        accepted, done, step, loss = self._client.call(self._step, batch, token)
        return Reply(bool(accepted), bool(done), int(step), float(loss))

    def _emit(self, batch: Any, session: Any) -> Any:
        model = self._store.model
        pulled = self._store.emit_pull()
        with tf.device(self._client.local):
            for variable, value in zip(model.variables, pulled, strict=True):
                variable.value.assign(value)
            loss, gradients = model.loss_and_gradients(batch)
            trained = len(gradients)
            changes = [
                variable.value.read_value() - value
                for variable, value in zip(model.variables[trained:], pulled[trained:], strict=True)
            ]
        reply = self._store.emit_push([*gradients, *changes], session, loss)
        with tf.device(self._client.local):  # one tensor: every fetch is a round trip
            return tf.concat([tf.cast(reply, tf.float64), tf.reshape(tf.cast(loss, tf.float64), [1])], 0)
