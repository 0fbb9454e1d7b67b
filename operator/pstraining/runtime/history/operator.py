"""Asks the operator for the chief's own job and its logs, with the token and at the endpoint of reports of progress."""

import gzip
import http.client
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from typing import Any, Final
from urllib.parse import quote

from pstraining.api.summary import HEADER_WHOLE, LogEnd
from pstraining.progress import OperatorServer

TIMEOUT_SECONDS: Final = 10.0
"""Seconds for one answer."""
_PROGRESS, _HISTORY = "/progress", "/history"


class OperatorError(Exception):
    """The operator has not answered, or has refused the request; the message has the reason."""


@dataclass(frozen=True)
class Known:
    """What the operator knows of a job."""

    job: dict[str, Any]
    pods: Sequence[dict[str, Any]]
    logs: Sequence[dict[str, Any]]
    """Task, pod and run (`previous`) of every log."""


class OperatorClient:
    """The operator, as the chief of one job reaches it.

    Args:
        environ: the program's environment, with the variables of KEP-2779.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._server = OperatorServer.of(environ)
        path = self._server.url.path
        self._path = path.removesuffix(_PROGRESS) + _HISTORY if path.endswith(_PROGRESS) else ""

    @property
    def is_there(self) -> bool:
        """Return whether this task may ask the operator."""
        return bool(self._server.url.hostname and self._path)

    def job(self) -> Known:
        """Return what the operator knows of the job.

        Raises:
            OperatorError: there is no answer.
        """
        try:
            found = json.loads(self._get("")[0])
            return Known(dict(found["job"]), list(found["pods"]), list(found["logs"]))
        except (ValueError, KeyError, TypeError) as error:
            raise OperatorError(f"the operator's answer is not a job: {error!r}") from None

    def log(self, pod: str, *, previous: bool) -> LogEnd:
        """Return the end of a log.

        Raises:
            OperatorError: there is no answer.
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
        except (OSError, http.client.HTTPException) as error:
            raise OperatorError(f"{type(error).__name__}: {error}") from None
        if answer.status != 200:
            raise OperatorError(f"{answer.status} {answer.reason}: {_message(body)}")
        return body, answer.headers


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
