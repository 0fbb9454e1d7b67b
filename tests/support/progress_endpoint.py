"""An endpoint for progress that is served over TLS, with an API server that recognizes genuine tokens."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from pstraining.api import contract
from pstraining.controller.informer_cache import InformerCache
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.progress import certificates
from pstraining.controller.progress.authentication import Authenticator
from pstraining.controller.progress.board import ProgressBoard
from pstraining.controller.progress.history import HistoryAnswers
from pstraining.controller.progress.server import ProgressServer
from pstraining.controller.progress.usage_board import UsageBoard
from pstraining.kube.errors import NotFound, Transient
from pstraining.resources.installation import progress_audience, progress_path
from tests.support.builders import UID, job, pod
from tests.support.fakekube import FakeKube
from tests.support.ports import free_port

KEY = ("default", "digits")
CHIEF = pod("chief", term=1, uid="uid-of-the-chief")
CLAIMS = {
    "aud": [progress_audience(UID)],
    "kubernetes.io": {
        "namespace": "default",
        "pod": {"name": CHIEF["metadata"]["name"], "uid": CHIEF["metadata"]["uid"]},
    },
}


def token(claims: Mapping[str, Any], signature: str = "genuine") -> str:
    def part(content: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    return f"{part({'alg': 'RS256'})}.{part(claims)}.{signature}"


def forged(**changes: Any) -> str:
    """Return a token with other claims, whose signature the API server rejects."""
    claims = json.loads(json.dumps(CLAIMS))
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = claims
        for parent in parents:
            place = place["kubernetes.io" if parent == "k8s" else parent]
        place[last] = value
    return token(claims, "forged")


class Reviewer:
    """The API server's TokenReview, which checks signatures."""

    def __init__(self) -> None:
        self.reviews = 0
        self.away = False
        self.changes: dict[str, Any] = {}

    async def review_token(self, token: str, audience: str) -> Mapping[str, Any]:
        self.reviews += 1
        if self.away:
            raise Transient("away")
        if not token.endswith(".genuine"):
            return {"error": "invalid signature"}
        claimed = CLAIMS["kubernetes.io"]["pod"]  # type: ignore[index]
        extra = {f"authentication.kubernetes.io/pod-{key}": [value] for key, value in claimed.items()}
        user = {"username": "system:serviceaccount:default:default", "extra": extra}
        return {"authenticated": True, "audiences": [audience], "user": user, **self.changes}


class Endpoint:
    """A served endpoint, and the reports that it has accepted."""

    def __init__(self, folder: Path) -> None:
        self.kube, self.cache, self.reviewer, self.now = FakeKube(), InformerCache(), Reviewer(), 0.0
        self.cache.observed(job())
        self.cache.observed({**CHIEF, "kind": "Pod"})
        metrics = OperatorMetrics(lambda: 0, lambda: 0)
        self.board = ProgressBoard(self.kube, self.cache, metrics, lambda key: None)
        self.accepted: list[Any] = []
        self.board.note = lambda key, sender, report: self.accepted.append(report)  # type: ignore[method-assign]
        authenticator = Authenticator(self.reviewer, self.cache, lambda: self.now)
        self.logs: dict[tuple[str, bool], bytes] = {}
        """Logs by pod and by whether the previous container's log is asked for."""
        answers = HistoryAnswers(self, self.cache)
        self.queued: list[Any] = []
        self.usage = UsageBoard(self.queued.append, lambda: self.now)
        self.server = ProgressServer(authenticator, self.board, self.usage, answers, metrics)
        self.port, self.authority = free_port(), certificates.new_authority(datetime.now(UTC))
        self.certificate, self.token = folder / "authority.crt", folder / "token"
        self.certificate.write_bytes(self.authority.certificate)
        self.token.write_text(token(CLAIMS))
        self.url = f"https://127.0.0.1:{self.port}{progress_path(*KEY)}"

    @property
    def environ(self) -> dict[str, str]:
        return {
            contract.ENV_SERVER_URL: self.url,
            contract.ENV_SERVER_CERTIFICATE: str(self.certificate),
            contract.ENV_SERVER_TOKEN: str(self.token),
        }

    async def log(self, namespace: str, pod: str, container: str, *, previous: bool, lines: int, limit: int) -> bytes:
        """Return a log as the API server does."""
        assert (namespace, container) == ("default", "tensorflow")
        if (pod, previous) not in self.logs:
            raise NotFound(f'pods "{pod}" not found', status=404, reason="NotFound")
        return b"".join(self.logs[pod, previous].splitlines(keepends=True)[-lines:])[:limit]

    async def get(self, bearer: str, rest: str = "", url: str = "") -> tuple[int, bytes]:
        context = ssl.create_default_context(cafile=str(self.certificate))
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        address = (url or self.url).removesuffix("/progress") + "/history" + rest
        async with (
            aiohttp.ClientSession() as session,
            session.get(address, headers=headers, ssl=context) as answer,
        ):
            return answer.status, await answer.read()

    async def post(self, bearer: str, body: Any, url: str = "") -> tuple[int, str]:
        context = ssl.create_default_context(cafile=str(self.certificate))
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        async with (
            aiohttp.ClientSession() as session,
            session.post(url or self.url, json=body, headers=headers, ssl=context) as answer,
        ):
            return answer.status, (await answer.json(content_type=None)).get("message", "")


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(folder)
    pair = certificates.sign_server(endpoint.authority, "127.0.0.1", datetime.now(UTC))
    stop = endpoint.server.serve(endpoint.port, certificates.server_context(pair))
    try:
        yield endpoint
    finally:
        await asyncio.to_thread(stop)
