"""Tables of a job's network traffic, with the figures of `planning.bandwidth`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pstraining.api.codec_sizes import SCALE
from pstraining.api.models import MAX_SERVERS, PSTrainingJob
from pstraining.cli.formatting import plain, several, size
from pstraining.cli.planning import bandwidth
from pstraining.cli.planning.bandwidth import Exchange, Link
from pstraining.core.actions import Manifest
from pstraining.core.observe import observe
from pstraining.core.policies import grown_sizes

Row = tuple[str, float]
"""A setting, and the bytes on its busiest link."""


@dataclass(frozen=True)
class Carried:
    """The load of a job's links for one batch of every worker."""

    how: Exchange
    values: int
    megabits: float | None
    links: tuple[Link, ...]
    best: int
    """The recommended number of parameter servers."""
    numbers: tuple[tuple[int, float], ...]
    """Numbers of parameter servers, and the bytes on the busiest link with each."""
    ways: tuple[Row, ...]
    bounds: tuple[Row, ...]
    """Lower bounds that no setting reaches, for comparison."""

    @property
    def unused(self) -> int:
        """Number of the job's parameter servers that the model is too small for."""
        return self.how.servers - bandwidth.used(self.how, self.values)

    @property
    def most(self) -> float:
        """Bytes in the busier direction of the busiest link."""
        return bandwidth.busiest(self.links).busier

    def seconds(self, carried: float) -> float | None:
        """Return the seconds that a number of bytes take; None if the bandwidth is unknown."""
        return None if self.megabits is None else carried * 8 / (self.megabits * 1e6)


def carried(job: Manifest, values: int, megabits: float | None) -> Carried:
    """Compute the load of a job's links.

    Args:
        job: the job with its defaults. The status of an existing job has the number of servers that it has grown to.
        values: number of dense parameters of its model.
        megabits: bandwidth of a link in megabits per second each way; None if it is unknown.
    """
    read = PSTrainingJob.model_validate(job)
    how = bandwidth.of_job(read)
    grown = grown_sizes.servers(read, observe(job, (), ()).typed_status)
    how = bandwidth.with_servers(how, max(how.servers, grown))

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
    """Return the numbers of parameter servers to compare: the job's own, the best, and the powers of two up to them."""
    found, power = {own, best}, 1
    while power < max(own, best):
        found.add(power)
        power *= 2
    return sorted(found)


def report(found: Carried) -> dict[str, Any]:
    """Return the loads, for programs: bytes for one batch of every worker, and seconds if the bandwidth is known."""

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
        "unusedParameterServers": found.unused,
        "recommendedParameterServers": found.best,
        "parameterServers": [{"number": number, **entry(most)} for number, most in found.numbers],
        "ways": [{"way": name, **entry(most)} for name, most in (*found.ways, *found.bounds)],
    }


def picture(found: Carried) -> RenderableType:
    """Render the loads as tables."""
    how = found.how
    known = "" if found.megabits is None else f" at {found.megabits:.10g} Mbit/s each way"
    model = f"{found.values:,} parameters ({size(SCALE * found.values)})"
    every = f", an update every {several(how.batches, 'batch')}" if how.batches > 1 else ""
    links = _table("LINK OF", "SENDS", "RECEIVES", "SECONDS")
    busiest = bandwidth.busiest(found.links)
    for link in found.links:
        mark = "   <- limits the update" if link is busiest else ""
        sender = f"each of {several(link.number, link.task)}"
        links.add_row(sender, size(link.sent), size(link.received), _seconds(found, link.busier) + mark)
    servers = several(how.servers, "parameter server")
    unused = f"{found.unused} of {servers} would hold less than spec.training.minShardBytes, and carry nothing."
    return Group(
        Text(f"Traffic when every worker processes one batch, with {model}{every}{known}:"),
        links,
        *([Text(unused)] if found.unused else ()),
        Text(),
        Text(f"Best with {several(found.best, 'parameter server')}: {_why_best(found)}."),
        _compared(found, "PARAMETER SERVERS", [(f"{n}", most) for n, most in found.numbers]),
        Text(),
        Text(f"Other settings with {servers}:"),
        _compared(found, "SPEC.TRAINING", found.ways),
        Text(),
        _compared(found, "TO COMPARE WITH", found.bounds),
    )


def _why_best(found: Carried) -> str:
    """Return why further parameter servers are of no use."""
    further = bandwidth.with_servers(found.how, found.best + 1)
    if bandwidth.used(further, found.values) == found.best:
        return "with more, each would hold less than spec.training.minShardBytes, and some stay unused"
    if found.best == MAX_SERVERS:
        return "a job cannot have more"
    return "with more, the link of a worker is the busiest"


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
    return "-" if seconds is None else plain(seconds, 3)
