"""Configures logging: one JSON object per line, or text. kopf's own lines have the same format.

A line about a job has its namespace, name, uid and generation as fields (`about`), never its templates.
"""

import logging
import sys
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from pstraining.api.text import printable
from pstraining.controller.settings import LogFormat

QUIET = ("kopf.objects", "kopf.activities", "asyncio", "aiohttp.access")
"""Loggers that log every watch event and every index at INFO."""


class TextFormatter(logging.Formatter):
    """Formats a line as time, level, job and message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(place)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with the job in front of the message if the line is about a job."""
        job = getattr(record, "job", None)
        record.place = f"[{getattr(record, 'namespace', '')}/{job}] " if job else ""
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the text as one line: a message may quote text from a pod, which must not forge further lines."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return the traceback, indented so that none of its lines looks like a line of the log."""
        return "\n".join(f"    {printable(line)}" for line in super().formatException(ei).splitlines())


def json_formatter() -> JsonFormatter:
    """Return a formatter with the field names that log collectors expect."""
    return JsonFormatter(
        "%(asctime)s %(levelname)s %(name)s %(message)s",
        rename_fields={"asctime": "time", "levelname": "level", "name": "logger", "job": "name"},
        datefmt="%Y-%m-%dT%H:%M:%S%z",
    )


def configure(level: str, form: LogFormat) -> None:
    """Log everything to stderr in one format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(json_formatter() if form is LogFormat.JSON else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level)))


def about(job: dict[str, Any] | None, namespace: str, name: str) -> dict[str, Any]:
    """Return the `extra` fields of a line about a job."""
    metadata = (job or {}).get("metadata") or {}
    return {
        "namespace": namespace,
        "job": name,
        "uid": metadata.get("uid", ""),
        "generation": metadata.get("generation", 0),
    }
