"""Reports what a layout leaves unused or uneven, and what a job without checkpoints loses."""

from typing import Final

from pstraining.runtime.model.partition import Layout
from pstraining.runtime.telemetry.events import event

UNEVEN: Final = 1.5
"""Ratio of the fullest server's bytes to the mean of all, above which a layout of whole tensors is reported."""


def report_unused(layout: Layout, servers: int) -> None:
    """Report servers that hold nothing, and a server that holds much more than the others.

    Args:
        layout: the layout of the state on the servers.
        servers: number of the job's servers, or of its shards if servers have standbys.
    """
    if layout.ps < servers:
        unused = [f"ps-{index}" for index in range(layout.ps, servers)]
        reason = "with one more, each holds less than spec.training.minShardBytes of the parameters"
        event("unused_servers", servers=unused, reason=reason)
    if any(tensor.whole for tensor in layout.tensors) and (times := layout.skew()) > UNEVEN:
        reason = (
            f"one parameter server holds {times:.1f} times the mean of all servers, because the optimizer or a "
            "constraint needs whole tensors, which are not split; fewer servers may be as fast"
        )
        event("uneven_layout", times=round(times, 2), reason=reason)


def report_no_checkpoints() -> None:
    """Report that nothing outlives the job's pods."""
    event(
        "no_checkpoints",
        reason="no checkpoint folder: the loss of a parameter server restarts training from the beginning, and the "
        "model is deleted with the job's pods unless the program saves it",
    )
