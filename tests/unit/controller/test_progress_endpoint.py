"""The endpoint for progress over TLS: the accepted requests, in this project's form and in Kubeflow's."""

import asyncio
import base64
import json
import random
import socket
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from cryptography.hazmat.primitives import serialization

from pstraining.api import names
from pstraining.controller.informer_cache import InformerCache
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.progress import certificates
from pstraining.controller.progress.authentication import REVIEW_SECONDS, Refusal
from pstraining.controller.progress.board import ProgressBoard
from pstraining.controller.progress.endpoint import ProgressReceiver
from pstraining.controller.progress.server import CONNECTIONS
from pstraining.controller.progress.usage_board import UsageBoard
from pstraining.controller.settings import Settings
from pstraining.kube.errors import Conflict, NotFound, Refused
from pstraining.progress import Progress, ProgressReporter
from pstraining.resources.installation import progress_audience, progress_path
from tests.support.builders import job
from tests.support.fakekube import FakeKube
from tests.support.ports import free_port
from tests.support.progress_endpoint import CHIEF, CLAIMS, KEY, forged, serving, token

pytestmark = pytest.mark.asyncio
KEP = {
    "trainerStatus": {
        "progressPercentage": 45,
        "estimatedRemainingSeconds": 600,
        "metrics": [{"name": "loss", "value": "0.2347"}, {"name": "global_step", "value": "900"}],
        "lastUpdatedTime": "2030-01-01T00:00:00.123456+00:00",
    }
}
"""A request as `kubeflow.trainer`'s update_trainjob_status sends it."""


async def test_the_form_of_kep_2779_is_accepted(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        assert await endpoint.post(token(CLAIMS), KEP) == (200, "")
        (report,) = endpoint.accepted
        assert (report.progress_percentage, report.loss, report.step) == (45, "0.2347", 900)


async def test_an_answer_is_one_record(tmp_path: Path) -> None:
    """An answer is one record: headers and body are encrypted and sent together."""
    async with serving(tmp_path) as endpoint:
        context = ssl.create_default_context(cafile=str(endpoint.certificate))
        request = f"POST /progress HTTP/1.1\r\nAuthorization: Bearer {token(CLAIMS)}\r\n\r\n"

        def ask() -> bytes:
            with (
                socket.create_connection(("127.0.0.1", endpoint.port), 30) as connection,
                context.wrap_socket(connection, server_hostname="127.0.0.1") as encrypted,
            ):
                encrypted.sendall(request.encode())
                return encrypted.recv(65536)  # only one record

        answer = await asyncio.to_thread(ask)
        assert answer.startswith(b"HTTP/1.0 404 ")
        assert answer.endswith(b'"}')


async def test_this_projects_client_reports(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        reporter = ProgressReporter(endpoint.environ)
        reporter.report(Progress(step=1, steps=4).content())
        reporter.report(Progress(step=4, steps=4, loss=0.5).content())
        await asyncio.to_thread(reporter.close)
        assert endpoint.accepted[-1].step == 4
        assert endpoint.accepted[-1].progress_percentage == 100
        assert endpoint.accepted[-1].last_updated_time is not None


async def test_a_client_of_another_authority_does_not_send_its_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as endpoint:
        endpoint.certificate.write_bytes(certificates.new_authority(datetime.now(UTC)).certificate)
        reporter = ProgressReporter(endpoint.environ)
        reporter.report(Progress(step=1).content())
        await asyncio.to_thread(reporter.close)
        assert endpoint.accepted == []
        assert "certificate verify failed" in caplog.text


@pytest.mark.parametrize(
    ("bearer", "status", "reviews"),
    [
        ("", 401, 0),
        ("no token", 401, 0),
        (token(CLAIMS, "forged"), 401, 1),
        (forged(aud=[progress_audience("another job")]), 403, 0),
        (forged(aud=["https://kubernetes.default.svc"]), 403, 0),
        (forged(k8s__namespace="other"), 403, 0),
        (forged(k8s__pod={"name": "digits-chief-1", "uid": "of another pod"}), 403, 0),
        (forged(k8s__pod={"name": "digits-worker-0", "uid": "uid-of-the-chief"}), 403, 0),
        (forged(k8s__pod="digits-chief-1"), 401, 0),
        (forged(k8s__pod={"name": ["digits-chief-1"], "uid": "uid-of-the-chief"}), 401, 0),
    ],
)
async def test_other_clients_are_rejected(bearer: str, status: int, reviews: int, tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        assert (await endpoint.post(bearer, KEP))[0] == status
        assert endpoint.reviewer.reviews == reviews
        assert endpoint.accepted == []


@pytest.mark.parametrize(
    "answer",
    [
        {"authenticated": False},
        {"audiences": ["https://kubernetes.default.svc"]},
        {"audiences": None},
        {"user": {"username": "system:serviceaccount:other:default"}},
        {"user": {"username": "system:serviceaccount:default:default", "extra": {}}},
    ],
)
async def test_an_unconfirmed_token_is_rejected(answer: dict[str, Any], tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        endpoint.reviewer.changes = answer
        assert (await endpoint.post(token(CLAIMS), KEP))[0] == 401
        assert endpoint.accepted == []


async def test_of_a_thousand_forged_tokens_none_is_accepted(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with serving(tmp_path) as endpoint:
        authenticate = endpoint.server._authenticator.authenticate
        for _ in range(1000):
            genuine = list(token(CLAIMS))
            for place in chance.sample(range(len(genuine)), chance.randint(1, 3)):
                genuine[place] = chance.choice([c for c in "ABCDEFGHabcdefgh0123456789-_." if c != genuine[place]])
            endpoint.reviewer.changes = {"authenticated": False}
            assert isinstance(await authenticate(KEY, f"Bearer {''.join(genuine)}"), Refusal)


async def test_other_jobs_are_not_reachable_with_a_token(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        other = job("other")
        other["metadata"]["uid"] = "another job"
        endpoint.cache.observed(other)
        urls = [endpoint.url.replace("/digits/", f"/{name}/") for name in ("other", "absent")]
        existing, absent = [await endpoint.post(token(CLAIMS), KEP, url) for url in urls]
        assert existing[0] == 403
        assert absent == existing, "the answer shows whether a job exists"
        assert len({await endpoint.get(token(CLAIMS), url=url) for url in urls}) == 1


async def test_a_token_review_is_cached_for_minutes_while_the_pod_exists(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        for _ in range(3):
            assert (await endpoint.post(token(CLAIMS), KEP))[0] == 200
        assert endpoint.reviewer.reviews == 1
        endpoint.now += REVIEW_SECONDS + 1
        assert (await endpoint.post(token(CLAIMS), KEP))[0] == 200
        assert endpoint.reviewer.reviews == 2
        endpoint.cache.vanished({**CHIEF, "kind": "Pod"})
        assert (await endpoint.post(token(CLAIMS), KEP))[0] == 403


async def test_a_report_whose_token_is_known_is_answered_without_the_event_loop(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        header, body, loop = f"Bearer {token(CLAIMS)}", json.dumps(KEP).encode(), asyncio.get_running_loop()
        assert endpoint.server.answer_known(KEY, header, body, loop) is None, "the token has to be reviewed"
        assert await endpoint.server.answer(KEY, header, body) == b"{}"
        del endpoint.accepted[:]
        assert endpoint.server.answer_known(KEY, header, body, loop) == b"{}"
        assert endpoint.accepted == [], "the event loop has not run"
        await asyncio.sleep(0)
        assert len(endpoint.accepted) == 1
        refused = endpoint.server.answer_known(KEY, header, b"{", loop)
        assert isinstance(refused, Refusal)
        assert refused.status == 400


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [({"trainerStatus": {"step": "x"}}, 422, "trainerStatus.step"), ({"a": "x" * 200_000}, 413, "")],
)
async def test_an_invalid_report_is_rejected(body: Any, status: int, words: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        found, message = await endpoint.post(token(CLAIMS), body)
        assert found == status
        assert words in message


async def test_an_unreachable_api_server_is_reported(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        endpoint.reviewer.away = True
        status, message = await endpoint.post(token(CLAIMS), KEP)
        assert (status, message) == (503, "the token could not be reviewed: away")


async def test_idle_connections_do_not_delay_others(tmp_path: Path) -> None:
    """Idle connections delay no others: neither those without a handshake, nor those without a request after it."""
    async with serving(tmp_path) as endpoint:
        context = ssl.create_default_context(cafile=str(endpoint.certificate))
        silent = [await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in range(CONNECTIONS)]
        silent += [await asyncio.open_connection("127.0.0.1", endpoint.port, ssl=context) for _ in range(20)]
        assert await endpoint.post(token(CLAIMS), KEP) == (200, "")
        assert await silent[0][0].read() == b"", "the oldest was closed"
        for _, writer in silent:
            writer.close()


async def test_another_path_is_rejected(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        status, message = await endpoint.post(token(CLAIMS), KEP, f"https://127.0.0.1:{endpoint.port}/other")
        assert (status, endpoint.reviewer.reviews) == (404, 0)
        assert "KUBEFLOW_TRAINER_SERVER_URL" in message


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (f"POST {progress_path(*KEY)} HTTP/1.0\r\nContent-Length: {'9' * 5000}", 413),
        ("GET http://[/x HTTP/1.0", 404),
    ],
)
async def test_a_malformed_request_is_answered(request_head: str, status: int, tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        context = ssl.create_default_context(cafile=str(endpoint.certificate))
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port, ssl=context)
        writer.write(f"{request_head}\r\n\r\n".encode())
        assert (await reader.read()).split(b" ")[1] == str(status).encode()
        writer.close()


async def test_a_label_that_a_user_has_changed_is_no_number(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        labels = {**CHIEF["metadata"]["labels"], names.LABEL_TERM: "first"}
        metadata = {**CHIEF["metadata"], "labels": labels, "resourceVersion": "9"}
        endpoint.cache.observed({**CHIEF, "kind": "Pod", "metadata": metadata})
        assert (await endpoint.post(token(CLAIMS), KEP))[0] == 403


class Secrets:
    """Secrets in memory; another operator may create one first."""

    def __init__(self, first: Mapping[str, Any] | None = None) -> None:
        self.first, self.stored = first, dict[str, Any]()

    async def review_token(self, token: str, audience: str) -> Mapping[str, Any]:
        return {"error": "invalid bearer token"}

    async def get_secret(self, namespace: str, name: str) -> Mapping[str, Any]:
        if not self.stored:
            raise NotFound("no Secret", status=404, reason="NotFound")
        return self.stored

    async def create_secret(self, namespace: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.first is not None:
            self.stored = dict(self.first)
            raise Conflict("it exists", status=409, reason="AlreadyExists")
        self.stored = dict(body)
        return body


async def test_the_authority_outlives_the_operator() -> None:
    secrets = Secrets()
    first = await certificates.load_authority(secrets, "system", "progress")
    assert await certificates.load_authority(secrets, "system", "progress") == first
    raced = Secrets(secrets.stored)
    assert await certificates.load_authority(raced, "system", "progress") == first


async def test_a_secret_without_an_authority_is_reported() -> None:
    secrets = Secrets()
    secrets.stored = {"data": {}}
    with pytest.raises(ValueError, match="delete it, and restart the operator"):
        await certificates.load_authority(secrets, "system", "progress")


async def test_a_certificate_is_valid_for_clocks_that_are_behind() -> None:
    from cryptography import x509

    authority = certificates.new_authority(datetime.now(UTC))
    pair = certificates.sign_server(authority, "progress.system.svc", datetime.now(UTC))
    found = x509.load_pem_x509_certificate(pair.certificate)
    assert found.not_valid_before_utc < datetime.now(UTC) - timedelta(minutes=50)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["progress.system.svc"]
    assert certificates.server_context(pair).num_tickets == 0, "no client resumes a session"


def secret(certificate: bytes, key: bytes) -> dict[str, Any]:
    return {"data": {"tls.crt": base64.b64encode(certificate).decode(), "tls.key": base64.b64encode(key).decode()}}


def with_password(key: bytes) -> bytes:
    encryption = serialization.BestAvailableEncryption(b"password")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    return serialization.load_pem_private_key(key, None).private_bytes(*form)


AUTHORITY = certificates.new_authority(datetime.now(UTC))
FORMER = certificates.new_authority(datetime.now(UTC) - timedelta(days=certificates.AUTHORITY_DAYS + 1))


class WithoutReviews(Secrets):
    async def review_token(self, token: str, audience: str) -> Mapping[str, Any]:
        raise Refused("tokenreviews is forbidden", status=403, reason="Forbidden")


class Forbidden(Secrets):
    async def get_secret(self, namespace: str, name: str) -> Mapping[str, Any]:
        raise Refused("secrets is forbidden", status=403, reason="Forbidden")


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (Secrets({}), ""),
        (Forbidden(), "secrets is forbidden"),
        (WithoutReviews(), "cannot review tokens (tokenreviews is forbidden). Set progress.enabled=true in the chart"),
        ({"data": {}}, "Secret pstraining-operator-progress has no 'tls.crt'"),
        (secret(b"no certificate", b"no key"), "Secret pstraining-operator-progress is unusable"),
        (secret(AUTHORITY.certificate, b"no key"), "is unusable"),
        (secret(AUTHORITY.certificate, with_password(AUTHORITY.key)), "is unusable (Password was not given"),
        (secret(AUTHORITY.certificate, FORMER.key), "is unusable (the key belongs to another certificate). Delete it"),
        (secret(FORMER.certificate, FORMER.key), "is unusable (the certificate has expired). Delete it"),
        (secret("Zürich\n".encode() + AUTHORITY.certificate, AUTHORITY.key), "is unusable ('ascii' codec can't decode"),
    ],
    ids=[
        *("no URL", "forbidden", "no reviews", "empty", "no certificate", "no key"),
        *("a password", "another key", "expired", "not ASCII"),
    ],
)
async def test_without_an_authority_the_operator_runs_and_accepts_no_progress(
    stored: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = stored if isinstance(stored, Secrets) else Secrets()
    if secrets is not stored:
        secrets.stored = stored
    url = {"PSTRAINING_PROGRESS_URL": "https://127.0.0.1:1"} if words else {}
    settings, metrics = Settings.from_env({"POD_NAME": "operator", **url}), OperatorMetrics(lambda: 0, lambda: 0)
    client, cache = cast(Any, secrets), InformerCache()
    board = ProgressBoard(FakeKube(), cache, metrics, lambda key: None)
    receiver = ProgressReceiver(settings, client, cache, board, UsageBoard(lambda key: None), metrics)
    assert await receiver.start() is None
    assert words in caplog.text
    await receiver.stop()


async def test_with_an_authority_it_serves() -> None:
    port = free_port()
    environ = {"PSTRAINING_PROGRESS_URL": f"https://127.0.0.1:{port}/", "PSTRAINING_PROGRESS_PORT": str(port)}
    settings, metrics = Settings.from_env({"POD_NAME": "operator", **environ}), OperatorMetrics(lambda: 0, lambda: 0)
    client, cache = cast(Any, Secrets()), InformerCache()
    board = ProgressBoard(FakeKube(), cache, metrics, lambda key: None)
    receiver = ProgressReceiver(settings, client, cache, board, UsageBoard(lambda key: None), metrics)
    endpoint = await receiver.start()
    assert endpoint is not None
    assert endpoint.url == f"https://127.0.0.1:{port}"
    context = ssl.create_default_context(cadata=endpoint.authority)
    async with aiohttp.ClientSession() as session, session.post(f"{endpoint.url}/x", json={}, ssl=context) as answer:
        assert answer.status == 404
    await receiver.stop()
