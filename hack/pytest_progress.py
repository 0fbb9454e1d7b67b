"""A plugin of pytest that writes the number of tests, and a character for each finished test, to a file.

Used as `-p hack.pytest_progress`, with the file's path in the environment (FILE). The first line is the number of
tests. It is followed by `.` passed, `s` skipped and `F` failed. With pytest-xdist only the controlling process writes.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

FILE = "PSTRAINING_TEST_COUNT_FILE"
"""Environment variable. Processes of tests inherit it, so it is none of the product's."""
_RANK = ".sF"
"""Results in ascending order: the worst of a test's reports counts."""


@dataclass(frozen=True)
class Count:
    """The progress of a run of pytest."""

    done: int = 0
    total: int | None = None
    """None until the tests are collected."""
    failed: int = 0

    @property
    def left(self) -> int:
        """The number of collected tests that have not ended."""
        return max(0, (self.total or 0) - self.done)


def read(path: Path) -> Count:
    """Return the progress that the plugin has written."""
    try:
        total, _, ended = path.read_text("ascii").partition("\n")
    except OSError:
        return Count()
    return Count(len(ended), int(total) if total.isdigit() else None, ended.count("F"))


class Writer:
    """Writes the file."""

    def __init__(self, path: Path) -> None:
        """Start with an empty file."""
        self.path = path
        self.path.write_text("", "ascii")
        self._counted = False
        self._seen: dict[str, str] = {}

    def total(self, number: int) -> None:
        """Write the number of tests once: every worker of xdist collects the same tests."""
        if not self._counted:
            self._counted = True
            self._write(f"{number}\n")

    def _write(self, text: str) -> None:
        with self.path.open("a", encoding="ascii") as file:
            file.write(text)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write the number of tests in a run without xdist."""
        if session.items:
            self.total(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Write the number of tests in a run with xdist."""
        self.total(len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a test's result at its teardown, or after the crash of its process (`???`)."""
        char = {"failed": "F", "skipped": "s"}.get(report.outcome, ".")
        worst = max(self._seen.get(report.nodeid, "."), char, key=_RANK.index)
        self._seen[report.nodeid] = worst
        if report.when not in ("setup", "call"):
            self._write(worst)
            del self._seen[report.nodeid]


def pytest_configure(config: pytest.Config) -> None:
    """Write to the file that the environment names, except in a worker of xdist."""
    path = os.environ.get(FILE)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(Path(path)), "pstraining-progress")
