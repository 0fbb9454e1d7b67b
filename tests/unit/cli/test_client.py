"""The requests of commands to a server on this machine, and their handling of every kind of response."""

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pstraining.cli.client import PAGE, KubeconfigClient, lines
from pstraining.cli.connection.credentials import escaped
from pstraining.cli.connection.overrides import Overrides
from pstraining.cli.connection.session import _line
from pstraining.cli.doctor.checks import CheckResult
from pstraining.cli.doctor.examination import definition
from pstraining.cli.errors import CommandError, ConflictError, DeniedError, RequestError
from tests.support.api_answers import NO_PAGE, Answer, Server, kubeconfig, status
from tests.support.builders import job
from tests.support.ports import free_port

JOBS = "/apis/pstraining.dev/v1alpha1/namespaces/team/pstrainingjobs"
DIGITS = "/apis/pstraining.dev/v1alpha1/namespaces/default/pstrainingjobs/digits"
PODS = "/api/v1/namespaces/team/pods"


def forbidden(what: str, where: str = ' in the namespace "team"') -> Answer:
    return status(403, "Forbidden", f'{what.split()[2]} is forbidden: User "jane" cannot {what}{where}')


def pointed_at(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(path))


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def cluster(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubeconfigClient:
    url = f"http://127.0.0.1:{server.server_address[1]}"
    pointed_at(monkeypatch, kubeconfig(tmp_path, url, namespace="team"))
    return KubeconfigClient(Overrides(context="test"))


def test_requests_go_to_the_contexts_server_and_namespace(server: Server, cluster: KubeconfigClient) -> None:
    server.answers[f"{JOBS}/digits"] = (200, json.dumps({"kind": "PSTrainingJob"}))
    server.answers[PODS] = (200, json.dumps({"items": [], "metadata": {}}))
    assert cluster.namespace == "team"
    assert cluster.job("team", "digits") == {"kind": "PSTrainingJob"}
    assert cluster.pods("team", "digits") == []
    assert [asked.authorization for asked in server.asked] == [""] * 2, "a token is not sent where others could read it"
    assert server.asked[1].query["labelSelector"] == ["pstraining.dev/job-name=digits"]


def test_a_namespace_stays_one_part_of_the_path(server: Server, cluster: KubeconfigClient) -> None:
    with pytest.raises(CommandError, match=r"'../team' is not a name"):
        cluster.pods("../team", "digits")
    with pytest.raises(RequestError):
        cluster.pods("team?x", "digits")
    assert [asked.path for asked in server.asked] == ["/api/v1/namespaces/team%3Fx/pods"]


def test_bytes_that_are_not_utf8_are_sent_as_kubectl_sends_them(server: Server, cluster: KubeconfigClient) -> None:
    argument = os.fsdecode(b"d\xff")
    server.answers[f"{JOBS}/d%FF"] = (200, "{}")
    assert cluster.job("team", argument) == {}
    assert [asked.path for asked in server.asked] == [f"{JOBS}/d%FF"]
    assert _line("Impersonate-User", argument).encode("latin-1") == b"d\xff"
    assert escaped(argument) == "d%FF"


def test_long_lists_come_in_pages(server: Server, cluster: KubeconfigClient) -> None:
    first = {"items": [{"a": 1}], "metadata": {"continue": "more"}}
    server.answers[JOBS] = [(200, json.dumps(first)), (200, json.dumps({"items": [{"a": 2}], "metadata": {}}))]
    assert cluster.jobs("team") == [{"a": 1}, {"a": 2}]
    assert [asked.query.get("continue") for asked in server.asked] == [None, ["more"]]
    assert server.asked[0].query["limit"] == [str(PAGE)]


def test_a_list_whose_pages_are_compacted_meanwhile_is_read_at_once(server: Server, cluster: KubeconfigClient) -> None:
    first = {"items": [{"a": 1}], "metadata": {"continue": "more"}}
    gone = status(410, "Expired", "The provided continue parameter is too old")
    server.answers[JOBS] = [(200, json.dumps(first)), gone, (200, json.dumps({"items": [{"a": 3}, {"a": 4}]}))]
    assert cluster.jobs("team") == [{"a": 3}, {"a": 4}]
    assert "limit" not in server.asked[2].query


@pytest.mark.parametrize("text", ["<html>", "[]", "{}", "1"])
def test_an_answer_of_another_server_is_an_error(server: Server, cluster: KubeconfigClient, text: str) -> None:
    server.answers[JOBS] = (200, text)
    with pytest.raises(RequestError, match="does not respond like a Kubernetes API server"):
        cluster.jobs("team")


def test_a_log_comes_in_lines(server: Server, cluster: KubeconfigClient) -> None:
    server.answers[f"{PODS}/digits-ps-0/log"] = (200, "one\ntwo\n\nünd drei")
    found = cluster.log("team", "digits-ps-0", {"container": "tensorflow", "tailLines": "4"})
    assert list(found) == ["one", "two", "", "ünd drei"]
    assert server.asked[0].query == {"container": ["tensorflow"], "tailLines": ["4"]}


GONE = "unable to retrieve container logs for containerd://0a1b"
"""The kubelet's error in place of a log, which arrives with the status 200."""


def test_an_error_of_the_kubelet_is_no_log(server: Server, cluster: KubeconfigClient) -> None:
    path = f"{PODS}/digits-ps-0/log"
    for text in (GONE, 'failed to try resolving symlinks in path "/var/log/pods/a/0.log": lstat: no such file'):
        server.answers[path] = (200, text)
        with pytest.raises(RequestError, match="the kubelet does not find the log: ") as raised:
            list(cluster.log("team", "digits-ps-0", {}))
        assert raised.value.status == 404
    for found in ([GONE, "two"], [GONE, "", "three"], ["one", GONE], [""], []):
        server.answers[path] = (200, "".join(f"{line}\n" for line in found))
        assert list(cluster.log("team", "digits-ps-0", {})) == found


def test_lines_stay_whole_across_chunks() -> None:
    text = "eins\nzwö\n".encode()
    assert list(lines(text[i : i + 1] for i in range(len(text)))) == ["eins", "zwö"]
    assert list(lines([b"no text: \xff\n"])) == ["no text: \ufffd"]


def test_metrics_come_through_the_api_server(server: Server, cluster: KubeconfigClient) -> None:
    server.answers[f"{PODS}/digits-worker-0:2240/proxy/metrics"] = (200, "a 1\n")
    assert cluster.metrics("team", "digits-worker-0", 2240) == "a 1\n"


def test_a_missing_job_differs_from_a_missing_kind(server: Server, cluster: KubeconfigClient) -> None:
    absent = status(404, "NotFound", 'pstrainingjobs.pstraining.dev "digits" not found')
    server.answers[f"{JOBS}/digits"] = absent
    assert cluster.job("team", "digits") is None
    for answer in (NO_PAGE, status(404, "NotFound", "the server could not find the requested resource")):
        server.answers = {JOBS: answer, f"{JOBS}/digits": answer}
        with pytest.raises(
            RequestError, match=r"does not serve PSTrainingJobs: pstrainingjobs\.pstraining\.dev is not"
        ):
            cluster.job("team", "digits")
        with pytest.raises(RequestError, match="does not serve PSTrainingJobs"):
            cluster.jobs("team")


def test_only_a_missing_kind_is_a_missing_crd(server: Server, cluster: KubeconfigClient) -> None:
    metrics = f"{PODS}/digits-worker-0:2240/proxy/metrics"
    for path in (metrics, "/apis/scheduling.volcano.sh/v1beta1/podgroups"):
        server.answers[path] = NO_PAGE
        with pytest.raises(RequestError) as caught:
            cluster.read(path)
        assert str(caught.value) == f"There is nothing at {path}: 404 page not found"
        assert caught.value.status == 404


def test_doctor_finds_a_missing_crd_without_the_right_to_read_crds(server: Server, cluster: KubeconfigClient) -> None:
    resource = "customresourcedefinitions"
    denied = forbidden(f'get resource "{resource}" in API group "apiextensions.k8s.io"', " at the cluster scope")
    server.answers[f"/apis/apiextensions.k8s.io/v1/{resource}/pstrainingjobs.pstraining.dev"] = denied
    server.answers["/apis/pstraining.dev/v1alpha1"] = NO_PAGE
    found = definition(cluster)
    assert (found.result, found.message) == (CheckResult.FAIL, "pstrainingjobs.pstraining.dev is not installed")


def test_a_missing_right_names_verb_and_resource(server: Server, cluster: KubeconfigClient) -> None:
    get = 'get resource "pstrainingjobs" in API group "pstraining.dev"'
    server.answers[f"{JOBS}/digits"] = forbidden(get)
    with pytest.raises(DeniedError) as caught:
        cluster.job("team", "digits")
    assert str(caught.value) == (
        "You (jane) may not get pstrainingjobs.pstraining.dev in namespace team: request a role with the verb get on "
        "pstrainingjobs.pstraining.dev."
    )
    path = f"{PODS}/digits-worker-0:2240/proxy/metrics"
    server.answers[path] = forbidden('get resource "pods/proxy" in API group ""')
    with pytest.raises(DeniedError, match="may not get pods/proxy in namespace team"):
        cluster.metrics("team", "digits-worker-0", 2240)
    server.answers["/apis/pstraining.dev/v1alpha1/pstrainingjobs"] = forbidden(
        'list resource "pstrainingjobs" in API group "pstraining.dev"', " at the cluster scope"
    )
    with pytest.raises(DeniedError, match=r"may not list pstrainingjobs\.pstraining\.dev in all namespaces"):
        cluster.jobs(None)


def test_a_token_that_expires_while_a_command_runs_is_renewed(server: Server, cluster: KubeconfigClient) -> None:
    """As in a `wait` of hours. Credentials that were never accepted are not tried twice."""
    found, expired = (200, json.dumps({"kind": "PSTrainingJob"})), status(401, "Unauthorized", "Unauthorized")
    server.answers[f"{JOBS}/digits"] = [expired, found, expired, found, expired, expired]
    with pytest.raises(DeniedError):
        cluster.job("team", "digits")
    assert len(server.asked) == 1
    assert cluster.job("team", "digits")
    assert cluster.job("team", "digits")
    assert len(server.asked) == 4
    with pytest.raises(DeniedError):
        cluster.job("team", "digits")
    assert len(server.asked) == 6


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (status(401, "Unauthorized", "Unauthorized"), "did not authenticate you: Unauthorized. Log in again"),
        (status(403, "Forbidden", "pods is forbidden: no"), "denied the request: pods is forbidden: no"),
        (status(500, "InternalError", "etcd is away"), "The API server rejected the request: etcd is away"),
        ((503, "no backend"), "The API server rejected the request: no backend"),
    ],
)
def test_rejections_keep_the_servers_message(
    server: Server, cluster: KubeconfigClient, answer: Answer, words: str
) -> None:
    server.answers = {PODS: answer, f"{JOBS}/digits": answer}
    with pytest.raises(RequestError) as caught:
        cluster.pods("team", "digits")
    assert words in str(caught.value)
    assert caught.value.status == answer[0]
    with pytest.raises(RequestError) as caught:
        cluster.job("team", "digits")
    assert words in str(caught.value)


def test_an_error_of_a_pod_is_not_one_of_the_api_server(server: Server, cluster: KubeconfigClient) -> None:
    server.answers[f"{PODS}/digits-worker-0:2240/proxy/metrics"] = (403, "go away")
    with pytest.raises(RequestError) as caught:
        cluster.metrics("team", "digits-worker-0", 2240)
    assert not isinstance(caught.value, DeniedError)


def test_an_unreachable_api_server_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    pointed_at(monkeypatch, kubeconfig(tmp_path, url))
    cluster = KubeconfigClient(Overrides(context="test"))
    assert cluster.namespace == "default"
    for ask in (lambda: cluster.jobs(None), lambda: cluster.job("team", "digits")):
        with pytest.raises(RequestError) as caught:
            ask()
        said = str(caught.value)
        assert said.startswith(f"The API server {url} (context test) did not respond: [Errno 111] Connection refused.")
        assert caught.value.status == 0
    assert capsys.readouterr().err == "", "urllib3's warnings are not for people"


def test_an_apply_is_strict_and_has_a_field_manager(server: Server, cluster: KubeconfigClient) -> None:
    server.answers[DIGITS] = (200, json.dumps(job()))
    assert cluster.apply(job(), dry_run=True, force=True) == job()
    cluster.apply(job())
    query = {"fieldManager": ["kubectl-pstraining"], "fieldValidation": ["Strict"]}
    assert [(asked.method, asked.kind, asked.body) for asked in server.asked] == [
        ("PATCH", "application/apply-patch+yaml", job())
    ] * 2
    assert [asked.query for asked in server.asked] == [{**query, "dryRun": ["All"], "force": ["true"]}, query]


BUSY = status(429, "TooManyRequests", "too many requests, please try again later")


@pytest.mark.parametrize(
    ("retry_after", "busy", "pauses", "code"),
    [
        ("1", 3, [1.0] * 3, None),
        ("2", 20, [2.0] * 10, 429),
        ("", 1, [], 429),
        ("3600", 1, [], 429),
        ("Fri, 31 Dec 2100 23:59:59 GMT", 1, [], 429),
    ],
)
def test_an_overloaded_api_server_is_asked_again_after_the_pause_that_it_names(
    server: Server,
    cluster: KubeconfigClient,
    monkeypatch: pytest.MonkeyPatch,
    retry_after: str,
    busy: int,
    pauses: list[float],
    code: int | None,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("pstraining.cli.connection.session.time.sleep", slept.append)
    server.retry_after = retry_after
    server.answers[DIGITS] = [BUSY] * busy + [(200, json.dumps({"kind": "PSTrainingJob"}))]
    if code is None:
        assert cluster.patch("default", "digits", {}) == {"kind": "PSTrainingJob"}
    else:
        with pytest.raises(RequestError, match="too many requests, please try again later") as raised:
            cluster.patch("default", "digits", {})
        assert raised.value.status == code
    assert slept == pauses


def test_a_pod_does_not_delay_a_command(
    server: Server, cluster: KubeconfigClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pstraining.cli.connection.session.time.sleep", lambda _: pytest.fail("it waits"))
    server.retry_after = "60"
    server.answers["/api/v1/namespaces/team/pods/p:9000/proxy/metrics"] = (503, "busy")
    with pytest.raises(RequestError, match="busy"):
        cluster.metrics("team", "p", 9000)


def test_changes_are_merge_patches(server: Server, cluster: KubeconfigClient) -> None:
    server.answers = {path: (200, json.dumps(job())) for path in (DIGITS, f"{DIGITS}/scale")}
    cluster.patch("default", "digits", {"spec": {"a": False}})
    cluster.scale("default", "digits", 3)
    cluster.scale("default", "digits", 4, "17")
    assert [(asked.path, asked.body) for asked in server.asked] == [
        (DIGITS, {"spec": {"a": False}}),
        (f"{DIGITS}/scale", {"spec": {"replicas": 3}}),
        (f"{DIGITS}/scale", {"spec": {"replicas": 4}, "metadata": {"resourceVersion": "17"}}),
    ]
    assert {(asked.method, asked.kind) for asked in server.asked} == {("PATCH", "application/merge-patch+json")}
    assert all(asked.query == {"fieldManager": ["kubectl-pstraining"]} for asked in server.asked)


def test_only_the_job_with_the_uid_is_deleted(server: Server, cluster: KubeconfigClient) -> None:
    server.answers[DIGITS] = (200, "{}")
    cluster.delete("default", "digits", "uid-1")
    (asked,) = server.asked
    assert asked.method == "DELETE"
    assert asked.body == {"propagationPolicy": "Background", "preconditions": {"uid": "uid-1"}}


def test_rights_are_checked_with_the_api_server(server: Server, cluster: KubeconfigClient) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    server.answers[path] = [(201, json.dumps({"status": {"allowed": allowed}})) for allowed in (True, False)]
    assert cluster.allowed("patch", "pstrainingjobs", "team", "scale") is True
    assert cluster.allowed("get", "pstrainingjobs", "team") is False
    assert server.asked[0].body["spec"]["resourceAttributes"] == {
        "verb": "patch",
        "group": "pstraining.dev",
        "resource": "pstrainingjobs",
        "subresource": "scale",
        "namespace": "team",
    }


def test_a_text_answer_is_returned_unchanged(server: Server, cluster: KubeconfigClient) -> None:
    server.answers["/metrics"] = (200, "pstraining_jobs 1\n")
    assert cluster.read("/metrics") == "pstraining_jobs 1\n"


def test_a_conflict_names_the_fields_and_their_managers(server: Server, cluster: KubeconfigClient) -> None:
    cause = {"reason": "FieldManagerConflict", "message": 'conflict with "hpa"', "field": ".spec.worker.replicas"}
    server.answers[DIGITS] = status(409, "Conflict", "Apply failed with 1 conflict", causes=[cause])
    with pytest.raises(ConflictError, match="Conflict with a concurrent change: Apply failed") as caught:
        cluster.apply(job())
    assert caught.value.fields == ('spec.worker.replicas (conflict with "hpa")',)


def test_a_socks_proxy_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kubeconfig(tmp_path, "http://api.invalid")
    path.write_text(path.read_text().replace("server:", "proxy-url: socks5://127.0.0.1:1\n    server:"))
    pointed_at(monkeypatch, path)
    monkeypatch.setitem(sys.modules, "socks", None)
    with pytest.raises(CommandError, match="needs the package PySocks: `pip install pysocks`"):
        KubeconfigClient(Overrides(context="test")).jobs(None)


def test_a_timeout_applies_to_a_single_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pointed_at(monkeypatch, kubeconfig(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}"))
        cluster = KubeconfigClient(Overrides(context="test", request_timeout="50ms"))
        for ask in (lambda: cluster.jobs(None), lambda: cluster.metrics("team", "pod", 1)):
            with pytest.raises(RequestError, match=r"did not respond: Read timed out. \(read timeout=0.05\)"):
                ask()
            silent.accept()[0].close()
            silent.setblocking(False)
            with pytest.raises(BlockingIOError):
                silent.accept()
            silent.setblocking(True)
