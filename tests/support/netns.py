"""Network namespaces for a test's processes, in which packets can be lost."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

CLONE_NEWNET = 0x40000000


@contextmanager
def own_network() -> Iterator[None]:
    """Give this thread and the processes that it starts a network that has only a loopback interface.

    Skips the test where none may be made.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    former = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(CLONE_NEWNET):
            pytest.skip(f"a network namespace cannot be made here: {os.strerror(ctypes.get_errno())}")
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            if libc.setns(former, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "the way back to the former network namespace")
    finally:
        os.close(former)


@contextmanager
def cut_off(port: int) -> Iterator[None]:
    """Drop all packets to and from a server's port inside the block, without a notice to either side."""
    with ExitStack() as stack:
        for way in ("--dport", "--sport"):
            rule = ["INPUT", "-p", "tcp", way, str(port), "-j", "DROP"]
            subprocess.run(["iptables", "-w", "-I", *rule], check=True)
            stack.callback(subprocess.run, ["iptables", "-w", "-D", *rule], check=True)
        yield
