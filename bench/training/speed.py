"""Speed compared with TensorFlow's strategies: with equal models, servers, workers and links, in alternation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.training import models
from bench.training.figures import Taken
from bench.training.measurement import Effort, Measurement
from bench.training.network import Links
from bench.training.runs import Load, in_turn, measure
from bench.training.volume import SYNC
from pstraining.cli.planning import bandwidth

PEERS: Final = "bench.training.peers"
PLAIN: Final = {"GLIBC_TUNABLES": ""}
"""Environment of a peer's processes: the default allocator."""


@dataclass(frozen=True)
class Duel:
    """Two jobs that are measured in alternation."""

    what: str
    ours: Load
    theirs: Load
    peer: str

    @property
    def ratio(self) -> str:
        """Return the name of the ratio."""
        return f"{self.what}: steps/s, ours / {self.peer}"

    @property
    def rates(self) -> tuple[str, str]:
        """Return the names of the ratio's figures."""
        return f"{self.what}: steps/s, ours", f"{self.what}: steps/s, {self.peer}"

    def take(self, effort: Effort) -> Taken:
        """Measure both jobs alternately, and return the ratio and the rates of each round."""
        rounds = in_turn((self.ours, self.theirs), effort)
        found = [[figures.steps_per_second for figures in row] for row in rounds]
        return {
            self.ratio: [ours / theirs for ours, theirs in found],
            **{name: [row[number] for row in found] for number, name in enumerate(self.rates)},
        }

    @property
    def measurement(self) -> Measurement:
        """Return the comparison as a measurement."""
        return Measurement(f"speed: {self.what}, {self.peer}", (self.ratio, *self.rates), self.take)


def _duels() -> tuple[Duel, ...]:
    found = []
    for model in ("small", "big"):
        strategy = Load(model, ps=2, program=f"{PEERS}.parameter_server", reporters=("chief",), environment=PLAIN)
        found.append(Duel(f"{model}, Async", Load(model, ps=2), strategy, "ParameterServerStrategy"))
    for model in ("small", "big"):
        replicas = Load(model, ps=2, program=f"{PEERS}.sync_replicas", chief=False, environment=PLAIN)
        ours = Load(model, ps=2, training=SYNC)
        found.append(Duel(f"{model}, Sync", ours, replicas, "SyncReplicasOptimizer"))
    ring = Load("big", ps=0, program=f"{PEERS}.all_reduce", chief=False, environment=PLAIN)
    found.append(Duel("big, dense", Load("big", ps=2, training=SYNC), ring, "MultiWorkerMirroredStrategy"))
    return tuple(found)


DUELS: Final = _duels()
WORKERS, SERVERS = 4, 1
BUSIEST: Final = f"busiest link, n={WORKERS} k={SERVERS}, in sizes of the model: "
FORMULAS: Final[Mapping[str, float]] = {
    "plain parameter servers, by the formula": bandwidth.parameter_servers(WORKERS, SERVERS),
    "all-reduce, by the formula": bandwidth.all_reduce(WORKERS),
    "optimum, by the formula": bandwidth.optimum(WORKERS, SERVERS),
}
OURS, RING = "ours, Sync, measured", "MultiWorkerMirroredStrategy, measured"


def busiest(effort: Effort) -> Taken:
    """Return an update's bytes in the busier direction of the busiest link, measured and by formula."""
    loads = {
        OURS: Load("dense", ps=SERVERS, workers=WORKERS, training=SYNC),
        RING: Load("dense", ps=0, workers=WORKERS, chief=False, program=f"{PEERS}.all_reduce", environment=PLAIN),
    }
    found = {BUSIEST + name: value for name, value in FORMULAS.items()}
    for name, load in loads.items():
        with Links(load.tasks) as links:
            figures = measure(load, effort, links)
        most = max(number for both in figures.links.values() for number in both)
        found[BUSIEST + name] = most / figures.steps / models.bytes_of(effort.model("dense"))
    return found


MEASUREMENTS: Final = (
    *(duel.measurement for duel in DUELS),
    Measurement("bytes: busiest link", tuple(BUSIEST + name for name in (*FORMULAS, OURS, RING)), busiest),
)
