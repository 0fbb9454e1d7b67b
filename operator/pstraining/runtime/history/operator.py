"""Requests the chief's job and its logs from the operator, with the token and the endpoint of progress reports."""

import gzip
import http.client
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from typing import Any, Final, TypedDict
from urllib.parse import quote

from pstraining.api.summary import HEADER_WHOLE, LogEnd
from pstraining.progress import OperatorServer

TIMEOUT_SECONDS: Final = 10.0
"""Time limit for one reply in seconds."""
_PROGRESS, _HISTORY = "/progress", "/history"


class OperatorError(Exception):
    """The operator has not answered, or has refused the request; the message states the reason."""


KubernetesObject = dict[str, Any]
"""A job or a pod, as JSON."""


class LogRun(TypedDict):
    """A log that the operator can read."""

    task: str
    pod: str
    previous: bool
    """Whether it is the log of the container's previous run."""


@dataclass(frozen=True)
class Known:
    """The operator's data on a job."""

    job: KubernetesObject
    pods: Sequence[KubernetesObject]
    logs: Sequence[LogRun]


class OperatorClient:
    """A client of the operator for the chief of one job.

    Args:
        environ: the program's environment, with the variables of KEP-2779.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._server = OperatorServer.of(environ)
        path = self._server.url.path
        self._path = path.removesuffix(_PROGRESS) + _HISTORY if path.endswith(_PROGRESS) else ""

    @property
    def is_there(self) -> bool:
        """Return whether the environment names the operator's endpoint."""
        return bool(self._server.url.hostname and self._path)

    def job(self) -> Known:
        """Return the operator's data on the job.

        Raises:
            OperatorError: the operator has not answered, or has refused the request.
        """
        try:
            found = json.loads(self._get("")[0])
            return Known(dict(found["job"]), list(found["pods"]), list(found["logs"]))
        except (ValueError, KeyError, TypeError) as error:
            raise OperatorError(f"the operator's answer is not a job: {error!r}") from None

    def log(self, pod: str, *, previous: bool) -> LogEnd:
        """Return the end of a log.

        Raises:
            OperatorError: see `job`.
        """
        content, headers = self._get(f"/logs/{quote(pod, safe='')}" + ("?previous=true" if previous else ""))
        return LogEnd(content, whole=headers.get(HEADER_WHOLE) == "true")

    def _get(self, rest: str) -> tuple[bytes, Message]:
        """Return the body and the headers of the operator's answer."""
        try:
            connection = self._server.connection(TIMEOUT_SECONDS)
            try:
                headers = {**self._server.authorization(), "Accept-Encoding": "gzip"}
                connection.request("GET", self._path + rest, headers=headers)
                answer = connection.getresponse()
                body = answer.read()
                if answer.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
            finally:
                connection.close()
        except (OSError, ValueError, EOFError, zlib.error, http.client.HTTPException) as error:
            raise OperatorError(f"{type(error).__name__}: {error}") from None
        if answer.status != 200:
            raise OperatorError(f"{answer.status} {answer.reason}: {_message(body)}")
        return body, answer.headers


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
