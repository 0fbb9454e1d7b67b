"""The chief's duty: it owns the state's life, and takes no part in training.

It puts the parameter servers under its term, initialises or restores their state, saves checkpoints, watches for
servers that lost their state, ends training at the step budget, and evaluates what it restored from the last
checkpoint. It can die at any moment: the next term finds whole state on the servers or a checkpoint, and one that
finds a checkpoint at the step budget evaluates it and ends without training. Told to stop by SIGTERM, it lets no update
in any more and saves the newest state first, if it has a folder for checkpoints.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from pstraining.api import contract
from pstraining.runtime import recovery
from pstraining.runtime.checkpoint import Checkpoints, write_whole
from pstraining.runtime.client import Client, ShardLostError
from pstraining.runtime.model import Model
from pstraining.runtime.progress import PROGRESS_SECONDS, Rate, event, say
from pstraining.runtime.recovery import ChiefAction
from pstraining.runtime.settings import CheckpointSettings, TrainingSettings
from pstraining.runtime.state import State
from pstraining.runtime.stopping import StoppedError, StopRequest
from pstraining.runtime.store import ParameterStore, RefusedError, StoreControl

POLL: Final = 0.1
"""Seconds between looks at the servers' records."""
GOOD_BYE_SECONDS: Final = 10.0
"""How long the chief waits for workers to leave."""
RESULT_FILE: Final = "result.json"
WEIGHTS_FILE: Final = "final.weights.h5"


class SupersededError(RuntimeError):
    """A newer chief rules the parameter servers; this one must end."""


@dataclass(frozen=True)
class Duties:
    """What the chief was told."""

    training: TrainingSettings
    checkpoint: CheckpointSettings
    evaluate: Callable[[], Any] | None


class Chief:
    """The chief of one term. `look_in` is called at every round and may raise to end it."""

    def __init__(
        self,
        client: Client,
        store: ParameterStore,
        duties: Duties,
        *,
        look_in: Callable[[], None] = lambda: None,
        stop: StopRequest | None = None,
    ) -> None:
        self._client, self._store, self._duties, self._look_in = client, store, duties, look_in
        self._stop = stop or StopRequest()
        self._control = StoreControl(store)
        self._term = client.cluster.term
        self._joins = client.cluster.task.type == "worker"
        self._initial = store.model.values()
        path = duties.checkpoint.path
        self._checkpoints = Checkpoints(Path(path), keep=duties.checkpoint.keep) if path else None
        self._rate = Rate(duties.training.steps)
        self._told = self._saved = time.monotonic()
        self._kept_step = 0  # up to here the state on the servers is in a checkpoint, or is the initial one

    def run(self) -> dict[str, float]:
        """Lead the job to its end; returns the result.

        Raises:
            SupersededError: a chief of a later term has taken over.
            SystemExit: it was told to stop, and has saved the newest state.
        """
        if self._checkpoints is None:
            event("no_checkpoints", reason="no checkpoint folder: losing a parameter server starts from the beginning")
        while True:
            try:
                self._take_over()
                with self._stop.held():
                    final = self._lead()
                break
            except ShardLostError as lost:
                self._client.recover(lost)
            except RefusedError:  # someone else changed the records; look again and decide anew
                time.sleep(POLL)
        return conclude(self._store.model, self._duties, final)

    def _lead(self) -> State:
        try:
            self._watch()
            return self._end()
        except StoppedError:
            return self._save_and_shut()

    def _save_and_shut(self) -> State:
        """Let no update in any more, so that none is lost, and save the state; the next chief goes on from it."""
        if self._checkpoints and not any(shard.done for shard in self._store.read()):
            self._control.set_record(self._term, generation=-self._shards[0].generation)
        state = self._save()
        event("stopped", term=self._term, step=state.step)
        return state

    def _take_over(self) -> None:
        """Bring every server under this term, with one whole set of parameters on them."""
        if self._joins:  # worker 0 of a job without a chief has no terms of its own: it takes the next one
            self._joins = False
            self._term = max(self._term, 1 + max(shard.fence for shard in self._store.read()))
        while (action := self._decide()) is not ChiefAction.PROCEED:
            if action is ChiefAction.RAISE_FENCE:
                self._control.raise_fence(self._shards, self._term)
            elif action is ChiefAction.LET_IN:
                self._control.set_record(self._term, generation=abs(self._shards[0].generation))
            else:
                self._restore()
        if any(shard.done for shard in self._shards) and self._shards[0].step < self._duties.training.steps:
            self._control.set_record(self._term, done=0)

    def _decide(self) -> ChiefAction:
        self._shards = self._store.read()
        action = recovery.decide(self._shards, term=self._term, layout=self._store.fingerprint)
        if action is ChiefAction.SUPERSEDED:
            raise SupersededError(f"term {self._term} is over: {max(s.fence for s in self._shards)} rules")
        return action

    def _restore(self) -> None:
        """Put the newest checkpoint on all servers together, or the initial values when there is none."""
        started = time.monotonic()
        state = self._checkpoints.newest() if self._checkpoints else None
        fresh = state is None
        generation = time.time_ns() // 1_000_000  # any number that no earlier set had
        self._own()
        self._control.restore(
            state or State(0, self._initial, {}, {}), term=self._term, generation=generation, fresh=fresh
        )
        self._saved = time.monotonic()
        self._kept_step = state.step if state else 0
        event(
            "initialized" if fresh else "restored",
            term=self._term,
            step=0 if state is None else state.step,
            seconds=round(time.monotonic() - started, 3),
        )

    def _own(self) -> None:
        """Tell the servers' launchers that this state is the runtime's, so that it stays when a new chief starts."""
        if self._client.cluster.in_pod:
            try:
                self._control.mark(f"{contract.RUN_DIR}/{contract.OWNED_MARKER}")
            except tf.errors.OpError as error:  # a new chief then finds empty servers, and restores them
                event("not_owned", reason=str(error).partition("\n")[0])

    def _watch(self) -> None:
        """Until the step budget is reached: look, tell, save, and restore what was lost."""
        while True:
            self._look_in()
            self._stop.check()
            if self._decide() is not ChiefAction.PROCEED:
                self._take_over()
            step = self._shards[0].step
            now = time.monotonic()
            if now - self._told >= PROGRESS_SECONDS:
                self._told = now
                say(self._rate.line(step, self._control.take_loss()))
            if step >= self._duties.training.steps:
                return
            if self._checkpoints and now - self._saved >= self._duties.checkpoint.interval_seconds:
                self._save()
            time.sleep(POLL)

    def _save(self) -> State:
        started = time.monotonic()
        state = self._control.snapshot(term=self._term)
        if self._checkpoints and state.step != self._kept_step:
            path = self._checkpoints.save(state, term=self._term, layout=self._store.layout)
            self._saved, self._kept_step = time.monotonic(), state.step
            event("checkpoint", step=state.step, path=str(path), seconds=round(self._saved - started, 3))
        return state

    def _end(self) -> State:
        """Tell everybody that training is done, and save its last state."""
        self._control.set_record(self._term, done=1)
        deadline = time.monotonic() + GOOD_BYE_SECONDS
        while (left := self._control.workers_present()) and time.monotonic() < deadline:
            self._look_in()
            self._stop.check()
            time.sleep(POLL)
        if left:
            event("workers_left_behind", number=left)
        return self._save()


def conclude(model: Model, duties: Duties, final: State) -> dict[str, float]:
    """Evaluate the last checkpoint as it is on disk (or, with no folder, the last state), and export the weights."""
    folder = Path(duties.checkpoint.path) if duties.checkpoint.path else None
    if folder:
        final = Checkpoints(folder, keep=duties.checkpoint.keep).load(final.step)
    model.assign(final.variables)
    result: dict[str, float] = {"step": final.step}
    if duties.evaluate is not None:
        measured = model.keras.evaluate(duties.evaluate(), return_dict=True, verbose=0)
        result |= {f"test_{name}": float(np.asarray(value)) for name, value in measured.items()}
    if folder:
        weights = folder / WEIGHTS_FILE
        write_whole(weights, lambda path: _save_weights(model.keras, path))
        write_whole(folder / RESULT_FILE, lambda path: path.write_text(json.dumps(result) + "\n", encoding="utf-8"))
    event("result", **result)
    return result


def _save_weights(model: Any, path: Path) -> None:
    """Keras wants its own suffix."""
    named = path.with_name(f"{path.name}.weights.h5")
    with tf.device("CPU:0"):
        model.save_weights(named)
    named.replace(path)
