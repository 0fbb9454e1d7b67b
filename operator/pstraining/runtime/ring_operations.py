"""The traced functions of a worker's hybrid steps."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pstraining.runtime.client import Client
from pstraining.runtime.computation import Rows, Share
from pstraining.runtime.critical import arbiter_first, zero
from pstraining.runtime.ring_rounds import RingRounds

Tensor = Any


class RingOperations:
    """Each returns only when every server that it asks has answered."""

    def __init__(self, client: Client, servers: Sequence[RingRounds]) -> None:
        arbiter, home = servers[0], client.brought_home

        def deliver(
            session: Tensor, who: Tensor, place: Tensor, progress: Tensor, amounts: Tensor, rows: Rows
        ) -> Tensor:
            def emit(number: int, arbiters: Tensor) -> Tensor:
                share = Share(amounts, [], rows[number])
                return servers[number].deliver(session, who, place, progress, zero(), arbiters[0], share)

            return stacked(arbiter_first(servers, emit))

        def apply(session: Tensor, who: Tensor, place: Tensor) -> Tensor:
            def emit(number: int, arbiters: Tensor) -> Tensor:
                return servers[number].apply(session, who, place, arbiters[0], zero())

            return stacked(arbiter_first(servers, emit))

        def store(session: Tensor, step: Tensor, values: Sequence[Sequence[Tensor]]) -> Tensor:
            pairs = zip(servers, values, strict=True)
            return stacked([server.store(session, step, own) for server, own in pairs])

        def stacked(replies: Sequence[Tensor]) -> Tensor:
            with tf.device(client.local):
                return tf.stack([home(reply) for reply in replies])

        def traced(emit: Callable[..., Any]) -> Any:
            return tf.function(emit, autograph=False, reduce_retracing=True)

        self.look = traced(lambda who: [home(server.look(who)) for server in servers])
        self.enroll = traced(lambda *arguments: home(arbiter.enroll(*arguments)))
        self.form = traced(lambda *arguments: home(arbiter.form(*arguments)))
        self.roster = traced(lambda: home(arbiter.roster()))
        self.deliver, self.apply, self.store = traced(deliver), traced(apply), traced(store)
        self.claim = traced(lambda *arguments: home(arbiter.claim(*arguments)))
        self.load = traced(lambda: [home(server.load()) for server in servers])
        self.give_up_state = traced(lambda *arguments: home(arbiter.give_up_state(*arguments)))
