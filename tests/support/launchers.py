"""A parameter server's launcher as a thread: the status port, and transfers of files in a folder of this machine."""

from pathlib import Path

from pstraining.launcher import probe, status_port, transfers
from tests.support.ports import free_neighbours


def start_launcher(folder: Path | None) -> str:
    """Start a launcher, which ends with the process, and return the address of its server, which need not run.

    Args:
        folder: the folder of the transfers; None for the launcher of a task that is not a parameter server.
    """
    port = free_neighbours()

    def transfer(name: str) -> transfers.Answer:
        return transfers.transfer(str(folder), name)  # found at each call, for tests that replace it

    status_port.serve_status(
        probe.status_port(port), dict, lambda _: True, transfer=transfer if folder is not None else None
    )
    return f"127.0.0.1:{port}"
