"""Bytes on the network: per sample with each codec, for embeddings, and their distribution over servers."""

from typing import Any, Final

from bench.training import models
from bench.training.figures import Taken
from bench.training.measurement import Effort, Measurement
from bench.training.network import Links
from bench.training.runs import Load, measure

SYNC: Final[dict[str, Any]] = {"mode": "Sync"}
MODES: Final[dict[str, dict[str, Any]]] = {"Async": {"mode": "Async"}, "Sync": SYNC}


def coded(codec: str, **more: Any) -> dict[str, Any]:
    """Return the load of synchronous training with a codec in both directions."""
    return {**SYNC, "compression": {"push": codec, "pull": codec}, **more}


CODECS: Final[dict[str, dict[str, Any]]] = {
    "Bf16": coded("Bf16"),
    "Int8": coded("Int8"),
    "OneBit": coded("OneBit"),
    "TopK, 4 accumulated": coded("TopK", accumulationSteps=4),
}
DENSE: Final = "bytes a sample: dense, over the formula 2M / batch"


def fewer(codec: str) -> str:
    """Return the name of a codec's figure."""
    return f"bytes a sample: dense / {codec}"


def codecs(effort: Effort) -> Taken:
    """Measure bytes on the network per useful sample, in both directions, relative to training without codecs."""
    dense = measure(Load("dense", training=SYNC), effort).bytes_per_sample
    found = {DENSE: dense / (2 * models.bytes_of(effort.model("dense")) / models.BATCH)}
    for name, training in CODECS.items():
        found[fewer(name)] = dense / measure(Load("dense", training=training), effort).bytes_per_sample
    return found


def touched(mode: str) -> str:
    """Return the name of an embedding's figure."""
    return f"embedding, {mode}: bytes / size of touched rows"


def embeddings(effort: Effort) -> Taken:
    """Measure all bytes on the network relative to the necessary ones: each different row of a batch, both ways.

    The other bytes are row indices (8 bytes per direction), headers, the dense layer, heartbeats and the chief's polls.
    """
    rows = 2 * 4 * models.WIDTH * models.touched_rows() / models.BATCH
    loads = {name: Load("table", ps=2, training=training) for name, training in MODES.items()}
    return {touched(name): measure(load, effort).bytes_per_sample / rows for name, load in loads.items()}


def uneven(mode: str) -> str:
    """Return the name of the balance's figure."""
    return f"even load, {mode}: bytes of the busiest of 3 servers / their mean"


def balance(effort: Effort) -> Taken:
    """Measure the bytes of each of three servers that hold one huge and two hundred small tensors."""
    found = {}
    for name, training in MODES.items():
        load = Load("uneven", ps=3, training=training)
        with Links(load.tasks) as links:
            figures = measure(load, effort, links)
        each = [sum(figures.links[f"ps-{index}"]) for index in range(load.ps)]
        found[uneven(name)] = max(each) / (sum(each) / len(each))
    return found


MEASUREMENTS: Final = (
    Measurement("bytes: codecs", (DENSE, *map(fewer, CODECS)), codecs),
    Measurement("bytes: embeddings", tuple(map(touched, MODES)), embeddings),
    Measurement("bytes: balance", tuple(map(uneven, MODES)), balance),
)
