"""What a job's network carries, as tables; the figures are `planning.bandwidth`'s."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pstraining.api.codec_sizes import SCALE
from pstraining.api.models import PSTrainingJob
from pstraining.cli.formatting import several, size
from pstraining.cli.planning import bandwidth
from pstraining.cli.planning.bandwidth import Exchange, Link
from pstraining.core.actions import Manifest

Row = tuple[str, float]
"""A way to do it, and the bytes on its busiest link."""


@dataclass(frozen=True)
class Carried:
    """What the links of a job carry for a batch of every worker."""

    how: Exchange
    values: int
    megabits: float | None
    links: tuple[Link, ...]
    best: int
    """The number of parameter servers that is recommended."""
    numbers: tuple[tuple[int, float], ...]
    """Numbers of parameter servers, and the bytes on the busiest link with each."""
    ways: tuple[Row, ...]
    bounds: tuple[Row, ...]
    """What no setting of ours is, to compare with."""

    @property
    def most(self) -> float:
        """Bytes of the fuller way of the fullest link."""
        return bandwidth.busiest(self.links).busier

    def seconds(self, carried: float) -> float | None:
        """The seconds that a number of bytes take; None if the bandwidth is not known."""
        return None if self.megabits is None else carried * 8 / (self.megabits * 1e6)


def carried(job: Manifest, values: int, megabits: float | None) -> Carried:
    """What the links of a job carry.

    Args:
        job: with its defaults.
        values: dense parameters of its model.
        megabits: what a link carries a second each way, if it is known.
    """
    how = bandwidth.of_job(PSTrainingJob.model_validate(job))

    def most(other: Exchange) -> float:
        return bandwidth.busiest(bandwidth.links(other, values)).busier

    best, whole = bandwidth.recommended(how, values), SCALE * values / how.batches
    bounds = (
        ("all-reduce among the workers", bandwidth.all_reduce(how.workers) * whole),
        ("the minimum without compression (BytePS)", bandwidth.optimum(how.workers, how.servers) * whole),
    )
    return Carried(
        how,
        values,
        megabits,
        bandwidth.links(how, values),
        best,
        tuple((n, most(bandwidth.with_servers(how, n))) for n in numbers(how.servers, best)),
        tuple((name, most(other)) for name, other in bandwidth.ways(how).items()),
        bounds,
    )


def numbers(own: int, best: int) -> list[int]:
    """Numbers of parameter servers to compare: powers of two on the way to the best, that, and the job's own."""
    found, power = {own, best}, 1
    while power < max(own, best):
        found.add(power)
        power *= 2
    return sorted(found)


def report(found: Carried) -> dict[str, Any]:
    """All of it, for programs: bytes for a batch of every worker, seconds where the bandwidth is known."""

    def entry(most: float) -> dict[str, Any]:
        return {"busiestLinkBytes": round(most), "seconds": found.seconds(most)}

    return {
        "parameters": found.values,
        "bandwidthMegabits": found.megabits,
        "links": [
            {"task": k.task, "number": k.number, "sentBytes": round(k.sent), "receivedBytes": round(k.received)}
            for k in found.links
        ],
        **entry(found.most),
        "recommendedParameterServers": found.best,
        "parameterServers": [{"number": number, **entry(most)} for number, most in found.numbers],
        "ways": [{"way": name, **entry(most)} for name, most in (*found.ways, *found.bounds)],
    }


def picture(found: Carried) -> RenderableType:
    """All of it, for people."""
    how = found.how
    known = "" if found.megabits is None else f" at {found.megabits:g} Mbit/s each way"
    model = f"{found.values:,} parameters ({size(SCALE * found.values)})"
    every = f", an update every {several(how.batches, 'batch')}" if how.batches > 1 else ""
    links = _table("LINK OF", "SENDS", "RECEIVES", "SECONDS")
    busiest = bandwidth.busiest(found.links)
    for link in found.links:
        mark = "   <- limits the update" if link is busiest else ""
        sender = f"each of {several(link.number, link.task)}"
        links.add_row(sender, size(link.sent), size(link.received), _seconds(found, link.busier) + mark)
    best = f"{several(found.best, 'parameter server')}: with more, the link of a worker is the busiest."
    return Group(
        Text(f"Traffic when every worker processes one batch, with {model}{every}{known}:"),
        links,
        Text(),
        Text(f"Best with {best}"),
        _compared(found, "PARAMETER SERVERS", [(f"{n}", most) for n, most in found.numbers]),
        Text(),
        Text(f"Other settings with {several(how.servers, 'parameter server')}:"),
        _compared(found, "SPEC.TRAINING", found.ways),
        Text(),
        _compared(found, "TO COMPARE WITH", found.bounds),
    )


def _compared(found: Carried, title: str, rows: Sequence[Row]) -> Table:
    table = _table(title, "BUSIEST LINK", "SECONDS")
    for name, most in rows:
        table.add_row(name, size(most), _seconds(found, most))
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title)
    return table


def _seconds(found: Carried, most: float) -> str:
    seconds = found.seconds(most)
    return "-" if seconds is None else f"{seconds:.3g}"
