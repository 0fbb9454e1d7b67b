"""The chief's reports on tables with rows by key: numbers of rows and keys, and when a table is full."""

from collections.abc import Mapping

from pstraining.runtime.ps.tables.dynamic_table import RowCount
from pstraining.runtime.telemetry.counters import ChiefCounters
from pstraining.runtime.telemetry.events import event


class RowReporter:
    """Reports the tables' counts.

    Args:
        counters: the chief's counters for Prometheus.
    """

    def __init__(self, counters: ChiefCounters) -> None:
        self._counters = counters
        self._full: set[str] = set()
        """Paths of the tables that were reported as full, each once."""

    def report(self, tables: Mapping[str, tuple[int, Mapping[RowCount, int]]]) -> None:
        """Report the number of rows of each table, and its other counts, by the table's path."""
        for path, (rows, counts) in tables.items():
            self._counters.tables[path] = rows, {name.name.lower(): number for name, number in counts.items()}
            evicted, no_room = counts[RowCount.EVICTED], counts[RowCount.NO_ROOM]
            if (evicted or no_room) and path not in self._full:
                self._full.add(path)
                event("table_full", table=path, rows=rows, evicted=evicted, no_room=no_room)
