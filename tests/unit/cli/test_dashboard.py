"""The dashboard's server, over a fake cluster: access, content of answers, and stored samples."""

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from pstraining.cli.commands import dashboard
from pstraining.cli.dashboard import content, history, sampling, server
from pstraining.cli.dashboard.sampling import Sampler
from pstraining.cli.errors import CommandError, DeniedError, RequestError
from pstraining.cli.main import app
from pstraining.cli.tasks import tasks_of
from tests.support.builders import job, pod
from tests.support.cli_cluster import Object, WithJobs
from tests.support.command_runner import CliRunner

HOSTILE = "</pre><img src=x onerror=alert(1)>"


class DashboardCluster(WithJobs):
    """Has a job with a chief that trains, a worker whose log is hostile, and a server; some reads can be denied."""

    def __init__(self) -> None:
        made = job(workers=1) | {"status": {"phase": "Running", "takeovers": 1, "training": {"step": 7, "loss": "0.5"}}}
        super().__init__(made, pods=[pod("chief", term=1), pod("worker"), pod("ps")])
        self.step = 0
        self.scrapes: list[str] = []
        self.refusals = 0
        self.denied: set[str] = set()
        self.logs = [f"2030-01-01T12:00:0{n}.000000001Z line {n}" for n in range(3)]
        self.asked: list[dict[str, str]] = []

    def _refuse(self, what: str) -> None:
        if what in self.denied:
            self.refusals += 1
            raise DeniedError(f"You (jane) may not get {what}.", 403)

    def jobs(self, namespace: str | None) -> list[Object]:
        self._refuse("jobs")
        return super().jobs(namespace)

    def pods(self, namespace: str, job: str) -> list[Object]:
        self._refuse("pods")
        return super().pods(namespace, job)

    def events(self, namespace: str, uid: str) -> list[Object]:
        self._refuse("events")
        return []

    def metrics(self, namespace: str, pod: str, port: int, seconds: float = 10) -> str:
        self._refuse("pods/proxy")
        self.scrapes.append(pod)
        self.step += 50
        if "chief" in pod:
            return f"pstraining_global_step {self.step}\npstraining_loss 0.25\n"
        return f"pstraining_worker_steps_total {self.step}\n"

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        self._refuse("pods/log")
        self.asked.append(dict(query))
        yield from self.logs


class Page:
    """Sends requests to a server as a browser does."""

    def __init__(self, served: server.DashboardServer) -> None:
        self.served = served
        self.port = served.server_address[1]

    def get(self, path: str, method: str = "GET", host: str = "") -> tuple[int, http.client.HTTPMessage, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{self.port}"})
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, answer.msg, body

    def ask(self, what: str, **given: str) -> tuple[int, Any]:
        status, _, body = self.get(f"/{self.served.token}/{what}?{urlencode(given)}")
        return status, json.loads(body)

    def of_job(self, what: str, **given: str) -> Any:
        status, found = self.ask(what, namespace="default", name="digits", **given)
        assert status == 200, found
        return found


@pytest.fixture
def cluster() -> DashboardCluster:
    return DashboardCluster()


@pytest.fixture
def page(cluster: DashboardCluster) -> Iterator[Page]:
    with dashboard.create_server(cluster, "default") as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Page(served)
        served.shutdown()
        thread.join()


def test_each_address_serves_only_its_content(page: Page, cluster: DashboardCluster) -> None:
    token = page.served.token
    assert page.served.server_address[0] == "127.0.0.1"
    assert urlsplit(page.served.url).path == f"/{token}/"
    for name, (file, kind) in server.FILES.items():
        status, headers, body = page.get(f"/{token}/{name}")
        assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8"), file
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "innerHTML" not in body
        assert "http://" not in body.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in body
    for path in ("/", "/jobs", f"/{token}", f"/{token[:-1]}/jobs", f"/{token}x/jobs", "//jobs", f"/{token}/../jobs"):
        assert page.get(path)[0] == 404, path
    assert "digits" not in page.get("/jobs")[2]
    for host in ("evil.example", f"evil.example:{page.port}", f"127.0.0.1.evil.example:{page.port}", "[::1]:1"):
        assert page.get(f"/{token}/jobs", host=host)[0] == 403, host
    assert page.get(f"/{token}/jobs", host="localhost:9000")[0] == 200
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        assert page.get(f"/{token}/jobs", method)[0] == 501, method


def test_an_address_that_is_no_url_is_refused(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    assert page.get("http://[", host=f"127.0.0.1:{page.port}")[::2] == (400, "The address is not a URL.\n")
    assert not capsys.readouterr().err


def test_a_secret_is_valid_for_one_start(cluster: DashboardCluster) -> None:
    with dashboard.create_server(cluster, "default") as one, dashboard.create_server(cluster, "default") as other:
        assert one.token != other.token
        assert len(one.token) >= 32
        with pytest.raises(CommandError, match=f"--port: 127.0.0.1:{one.server_address[1]} cannot be used"):
            dashboard.create_server(cluster, "default", int(one.server_address[1]))


def test_a_job_its_curves_and_its_log(page: Page, cluster: DashboardCluster) -> None:
    (row,) = page.ask("jobs")[1]["jobs"]
    assert (row["name"], row["takeovers"], row["training"]) == ("digits", 1, {"step": 7, "loss": "0.5"})
    found = page.of_job("job")
    assert [p["task"] for r in found["roles"] for p in r["pods"]] == ["chief-0", "ps-0", "worker-0"]
    assert (found["uid"], found["denied"]) == (cluster.there[0]["metadata"]["uid"], {})
    assert not cluster.scrapes, "the state of a job needs no metrics"
    curves = page.of_job("curves")
    assert sorted(cluster.scrapes) == ["digits-chief-1", "digits-worker-0"]
    assert (curves["points"]["loss"], curves["points"]["failovers"]) == ([0.25], [1])
    assert curves["rates"]["job"]["stepsPerSecond"] is None, "one scrape has no rates"
    assert [t["task"] for t in curves["rates"]["tasks"]] == ["chief-0", "worker-0"]
    log = page.of_job("log", pod="digits-worker-0")
    assert log["lines"] == ["line 0", "line 1", "line 2"]
    assert cluster.asked == [{"container": "tensorflow", "tailLines": "500", "timestamps": "true"}]


def test_a_missing_right_is_explained_in_place(page: Page, cluster: DashboardCluster) -> None:
    cluster.denied = {"pods/proxy", "events"}
    cluster.there[0]["status"]["training"]["lastUpdatedTime"] = "2030-01-01T12:00:00Z"
    found = page.of_job("job")
    assert found["denied"] == {"events": "You (jane) may not get events."}
    assert [p["task"] for r in found["roles"] for p in r["pods"]] == ["chief-0", "ps-0", "worker-0"]
    curves = page.of_job("curves")
    assert (curves["rates"], curves["denied"]) == (None, "You (jane) may not get pods/proxy.")
    assert (curves["points"]["step"], curves["points"]["loss"]) == ([7], [0.5]), "the status has them"
    cluster.denied = {"pods", "events"}
    found = page.of_job("job")
    assert set(found["denied"]) == {"pods", "events"}
    assert not any(r["withoutPod"] or r["pods"] for r in found["roles"])
    assert page.of_job("curves")["rates"] is None
    cluster.denied = {"jobs", "pods/log"}
    assert page.ask("jobs") == (403, {"error": "You (jane) may not get jobs."})
    given = {"namespace": "default", "name": "digits", "pod": "digits-worker-0"}
    assert page.ask("log", **given) == (403, {"error": "You (jane) may not get pods/log."})


def test_a_log_continues_from_its_last_line(page: Page, cluster: DashboardCluster) -> None:
    first = page.of_job("log", pod="digits-worker-0")
    cluster.logs.append("2030-01-01T12:00:03.5Z line 3")
    then = page.of_job("log", pod="digits-worker-0", after=first["last"])
    assert (then["lines"], then["skipped"]) == (["line 3"], False)
    assert cluster.asked[-1]["sinceTime"] == "2030-01-01T12:00:02Z"
    cluster.logs = [f"2030-01-01T12:01:00.{n:06}Z {n}" for n in range(2 * content.LINES)][-content.LINES :]
    late = page.of_job("log", pod="digits-worker-0", after=then["last"])
    assert (len(late["lines"]), late["skipped"]) == (content.LINES, True)
    page.of_job("log", pod="digits-worker-0", previous="true")
    assert cluster.asked[-1]["previous"] == "true"


def test_hostile_texts_and_parameters(page: Page, cluster: DashboardCluster) -> None:
    cluster.there[0]["status"]["conditions"] = [
        {"type": "Running", "status": "False", "reason": "R", "message": f"{HOSTILE}\x1b]0;x\x07\u202e"}
    ]
    cluster.logs = [f"2030-01-01T12:00:00Z \x1b[31m{HOSTILE}\x1b[0m\x1b[2J" + "y" * 10_000]
    message = page.of_job("job")["conditions"][0]["message"]
    assert message == HOSTILE + r"\x1b]0;x\x07\u202e", "the page shows it as text"
    (line,) = page.of_job("log", pod="digits-worker-0")["lines"]
    assert line.startswith(HOSTILE + r"\x1b[2Jyyy")
    assert len(line) < content.WIDTH + 10
    status, headers, _ = page.get(f"/{page.served.token}/job?namespace=default&name={HOSTILE}".replace(" ", "%20"))
    assert (status, headers["Content-Type"]) == (404, "application/json; charset=utf-8")
    for given in ({"pod": "../../secrets/x"}, {"pod": ""}, {"pod": "other"}):
        assert page.ask("log", namespace="default", name="digits", **given)[0] == 404
    assert len(cluster.asked) == 1, "no pod that is not the job's is asked"
    assert page.ask("log", namespace="default", name="digits", pod="digits-ps-0", after="x")[0] == 400
    assert page.ask("nothing")[0] == 404


def test_errors_of_the_cluster_are_answers(
    page: Page, cluster: DashboardCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise RequestError("The API server did not respond.", 0)

    def waits(*_: Any) -> Any:
        raise RequestError("container is waiting to start", 400)

    monkeypatch.setattr(cluster, "log", waits)
    found = page.of_job("log", pod="digits-worker-0")
    assert found["problem"] == "no log (Ready): container is waiting to start"
    monkeypatch.setattr(cluster, "job", away)
    assert page.ask("job", namespace="default", name="digits") == (502, {"error": "The API server did not respond."})


class Clocked:
    """A sampler whose clock the test moves."""

    def __init__(self, cluster: DashboardCluster) -> None:
        self.now = 0.0
        self.sampler = Sampler(cluster, lambda: self.now, lambda: 1e9 + self.now)
        self.cluster = cluster

    def look(self, seconds: float = 0, uid: str = "") -> dict[str, Any]:
        self.now += seconds
        made = self.cluster.there[0]
        asked = made if not uid else made | {"metadata": made["metadata"] | {"uid": uid}}
        return self.sampler.look(asked, tasks_of(made, self.cluster.there_pods))


def test_samples_are_taken_on_request_and_at_most_once_per_interval(cluster: DashboardCluster) -> None:
    rig = Clocked(cluster)
    for _ in range(5):  # for several pages
        rig.look(sampling.EVERY / 10)
    assert len(cluster.scrapes) == 2
    rig.look(sampling.EVERY)
    found = rig.look(3600)  # no page was open for an hour
    assert len(cluster.scrapes) == 6
    assert found["points"]["at"] == [1e9 + 0.5, 1e9 + 7.5, 1e9 + 3607.5]
    assert found["rates"]["job"]["stepsPerSecond"] == pytest.approx(200 / 3607)
    cluster.denied = {"pods/proxy"}
    rig.look(sampling.EVERY)
    refusals = cluster.refusals
    assert "pods/proxy" in rig.look(sampling.EVERY)["denied"]
    assert cluster.refusals == refusals > 0, "denied reads are repeated after a minute"
    cluster.denied = set()
    rig.look(sampling.DENIED)
    assert len(cluster.scrapes) == 8


def test_a_chief_without_metrics_leaves_a_gap_in_its_curves(cluster: DashboardCluster) -> None:
    rig = Clocked(cluster)
    rig.look()
    chief = cluster.there_pods.pop(0)
    cluster.there[0]["status"]["restarts"] = 1
    rig.look(sampling.EVERY)
    cluster.there_pods.insert(0, chief)
    points = rig.look(sampling.EVERY)["points"]
    assert (points["loss"], points["restarts"]) == ([0.25, None, 0.25], [0, 1, 1])
    cluster.there_pods.clear()  # the job has ended
    assert rig.look(sampling.EVERY)["points"] == points


def test_no_thread_samples_without_an_open_page(cluster: DashboardCluster) -> None:
    before = threading.active_count()
    rig = Clocked(cluster)
    rig.look()
    assert threading.active_count() == before


def test_many_tasks_are_sampled_less_often(cluster: DashboardCluster) -> None:
    cluster.there_pods = [pod("worker", n) for n in range(100)]
    rig = Clocked(cluster)
    rig.look()
    rig.look(100 / sampling.PER_SECOND - 0.1)
    assert len(cluster.scrapes) == 100
    rig.look(0.2)
    assert len(cluster.scrapes) == 200


def test_memory_is_bounded(cluster: DashboardCluster) -> None:
    rig = Clocked(cluster)
    for number in range(3 * sampling.JOBS):
        rig.look(uid=f"job-{number}")
    assert len(rig.sampler._watched) == sampling.JOBS
    curve = history.Curve(limit=100)
    for second in range(0, 100_000, 5):
        curve.add(history.Point(float(second)))
        assert len(curve._points) < 100
    times = curve.columns()["at"]
    assert times[0] == 0, "the beginning of training stays in the curve"
    assert times[-1] > 95_000
    gaps = [b - a for a, b in pairwise(times)]
    assert max(gaps) < 10 * min(gaps)
    assert curve.columns()["loss"] == [None] * len(times)


def test_reported_values_are_numbers_or_nothing() -> None:
    made = job() | {"status": {"training": {"loss": "nan", "samplesPerSecond": "12.5", "step": 3}}}
    assert history.reported_point(made) is None, "without its time it is no point"
    made["status"]["training"]["lastUpdatedTime"] = "2030-01-01T12:00:00Z"
    point = history.reported_point(made)
    assert point is not None
    assert (point.loss, point.examples_per_second, point.step) == (None, 12.5, 3)
    assert server.shown({"a": [float("inf"), float("nan"), 1.0, None, True]}) == {"a": [None, None, 1.0, None, True]}


def test_the_command_serves_until_it_is_interrupted(cluster: DashboardCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def interrupted(self: server.DashboardServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dashboard, "KubeconfigClient", lambda _: cluster)
    monkeypatch.setattr(server.DashboardServer, "serve_forever", interrupted)
    monkeypatch.setattr("webbrowser.open", opened.append)
    run = CliRunner().invoke(app, ["dashboard", "pstj/digits", "--open"])
    assert run.exit_code == 0, run.output
    assert opened == [run.output.splitlines()[0].removeprefix("Dashboard: ")]
    assert opened[0].endswith("/#default/digits")
    assert CliRunner().invoke(app, ["dashboard"]).exit_code == 0
    assert len(opened) == 1
    cluster.denied = {"jobs"}
    assert "The page shows single jobs" in CliRunner().invoke(app, ["dashboard"]).output
    for arguments in (["digits", "-A"], ["-A", "-n", "x"], ["missing"]):
        assert isinstance(CliRunner().invoke(app, ["dashboard", *arguments]).exception, CommandError), arguments
