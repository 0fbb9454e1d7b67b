"""The dashboard in a real Chromium: its content, and the pictures of docs/users/watch-a-job.md.

The pictures are written to build/pictures; `make pictures` writes them to docs/users/pictures.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from pstraining.cli.dashboard.server import DashboardServer
from tests.support.chromium import Tab, browser
from tests.support.soak_marks import in_all
from tests.support.training_cluster import TrainingCluster

ROOT = Path(__file__).parents[3]
PICTURES: Final = ROOT / os.environ.get("PSTRAINING_PICTURES", "build/pictures")
SIZE: Final = 100_000
"""Maximum size of a picture in bytes."""
COUNTED: Final = """
window.asked = [];
window.before = window.fetch;
window.fetch = (url, ...rest) =>
  before(url, ...rest).finally(() => setTimeout(() => asked.push(url.split("?")[0]), 50));
undefined
"""
"""Records in the page which requests have been answered."""
pytestmark = in_all("tests/unit/cli/test_dashboard.py::test_a_job_its_curves_and_its_log")  # needs a browser


@pytest.fixture(scope="module")
def cluster() -> TrainingCluster:
    return TrainingCluster()


@pytest.fixture(scope="module")
def served(cluster: TrainingCluster) -> Iterator[DashboardServer]:
    with cluster.served() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Tab]:
    with browser() as tab:
        yield tab


@pytest.fixture
def tab(chromium: Tab, cluster: TrainingCluster, served: DashboardServer) -> Iterator[Tab]:
    """Return a new page, and demand at the end that its console has no errors."""
    cluster.denied = set()
    chromium.open("about:blank")
    chromium.complaints.clear()
    yield chromium
    assert chromium.complaints == []
    assert chromium.eval("document.querySelectorAll('img, main script').length") == 0


def shown(tab: Tab, served: DashboardServer, name: str) -> None:
    """Open a job, and wait until all of its parts are loaded."""
    tab.open(f"{served.url}#default/{name}")
    tab.until(f"document.querySelector('#head h2')?.innerText.startsWith('default/{name}')")
    tab.until("document.querySelector('#curves figure') && document.querySelector('#log-pod').value")


def keep(tab: Tab, name: str, until: str) -> None:
    """Save the picture for the docs, from the top to the end of a section."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"dashboard-{name}.webp"
    tab.picture(path, tab.eval(f"Math.ceil(document.querySelector('{until}').getBoundingClientRect().bottom) + 12"))
    assert path.stat().st_size < SIZE, path


def rows(tab: Tab, section: str) -> list[list[str]]:
    """Return the cells of a section's tables as texts."""
    cells = "[...row.children].map((cell) => cell.innerText.trim())"
    found = tab.eval(f"[...document.querySelectorAll('#{section} tbody tr')].map((row) => {cells})")
    return [[str(cell) for cell in row] for row in found]


def test_a_running_job(tab: Tab, served: DashboardServer, cluster: TrainingCluster) -> None:
    for step in range(12):
        cluster.say("digits-chief-", f"step {13_000 + 100 * step}: loss {0.1 - step / 1000:.4f}")
    shown(tab, served, "digits")
    tab.until("document.querySelectorAll('#curves polyline').length === 3")
    assert [row[0] for row in rows(tab, "jobs")] == ["broken", "digits", "recommender"]
    assert tab.text("#curves figure:nth-child(2) figcaption").startswith("Steps per second: 2")
    assert [row[:2] for row in rows(tab, "tasks")][:3] == [
        ["chief-0", "● Ready"],
        ["ps-0", "● Ready"],
        ["ps-1", "● Ready"],
    ]
    assert [row[0] for row in rows(tab, "speed") if row[-1] == "▲ straggler"] == ["worker-2"]
    assert tab.eval("document.querySelector('#curves svg').getAttribute('aria-label')").startswith("Loss: ")
    tab.until("document.querySelectorAll('#log-lines div').length === 12")
    keep(tab, "running", "#speed")
    assert "Straggler: worker-2." in tab.text("#speed .problem")
    # New lines appear without a reload, and unchanged elements are not recreated, so that selections stay.
    tab.eval(COUNTED)
    tab.eval("window.marked = [...document.querySelectorAll('#log-lines div, #conditions tr')]")
    cluster.say("digits-chief-", "the newest line")
    tab.until("document.querySelector('#log-lines').innerText.endsWith('the newest line')")
    tab.until("['jobs', 'job', 'curves'].every((what) => asked.includes(what))")
    assert tab.eval("marked.length > 12 && marked.every((one) => one.isConnected)")
    for place, what in (("table", "caption"), ("tbody tr", "th[scope=row]"), ("thead tr", "th[scope=col]")):
        script = f"[...document.querySelectorAll('{place}')].every((one) => one.querySelector('{what}'))"
        assert tab.eval(script), what


def test_a_job_with_a_failover(tab: Tab, served: DashboardServer) -> None:
    shown(tab, served, "recommender")
    tab.until("document.querySelectorAll('#curves svg text.mark').length === 3")
    assert tab.eval("document.querySelector('#curves svg text.mark').textContent") == "failover"
    assert rows(tab, "shards")[1][:2] == ["1", "recommender-ps-1"]
    assert rows(tab, "shards")[1][3:] == ["1", "pod gone"]
    assert any(row[:1] == ["TookOver"] for row in rows(tab, "events"))
    keep(tab, "failover", "#shards")


def test_the_measured_sizes_of_a_role(tab: Tab, served: DashboardServer, cluster: TrainingCluster) -> None:
    sizing = {"role": "ps", "peakMemory": "512Mi", "recommendedMemory": "615Mi", "message": "ps.replicas 2 -> 4."}
    cluster.there_by_name["broken"].job["status"]["autoscaling"] = [sizing]
    tab.open(f"{served.url}#default/broken")
    tab.until("document.querySelector('#tasks')?.innerText.includes('Size of ps')")
    words = "memory: measured peak 512Mi, recommended limit 615Mi, now none; ps.replicas 2 -> 4"
    assert f"Size of ps: {words}" in tab.text("#tasks")


def test_a_curve_has_a_gap_where_a_value_is_missing(tab: Tab, served: DashboardServer) -> None:
    tab.open(served.url)
    tab.until("document.querySelectorAll('#jobs a').length === 3")
    points = "{ at: [0, 5, 10, 15, 20, 25, 30], loss: [3, 2, null, 1, 1, null, 0], failovers: [], "
    points += "restarts: [0, 0, 0, 1, 1, 1, 1] }"
    drawing = f"curves.figure('Loss', {points}, 'loss').innerHTML"
    made = f"import(new URL('curves.js', location).href).then((curves) => {drawing})"
    drawn = tab.eval(made)
    assert (drawn.count("<polyline"), drawn.count("<circle"), drawn.count(">restart<")) == (2, 1, 1)
    assert "Loss: 0 " in drawn


def test_a_curve_of_equal_values_that_differ_by_rounding_is_drawn(tab: Tab, served: DashboardServer) -> None:
    tab.open(served.url)
    tab.until("document.querySelectorAll('#jobs a').length === 3")
    pairs = ["[1, 1 + 2 ** -52]", "[0.05, 0.05]", "[0, 0]", "[-2, -2 + 2 ** -51]", "[0, 5e-324]", "[1e17, 1e17 + 16]"]
    counting = f"[{', '.join(pairs)}].map((pair) => curves.ticks(...pair).length)"
    counts = tab.eval(f"import(new URL('curves.js', location).href).then((curves) => {counting})")
    assert len(counts) == len(pairs)
    assert max(counts) <= 5


def test_a_curve_of_several_days_has_dates(tab: Tab, served: DashboardServer) -> None:
    tab.open(served.url)
    tab.until("document.querySelectorAll('#jobs a').length === 3")
    at = "[new Date(2026, 10, 28, 14, 3, 22) / 1000, new Date(2026, 10, 28 + days, 15, 3, 22) / 1000]"
    points = f"{{ at: {at}, loss: [3, 2], failovers: [], restarts: [] }}"
    drawing = f"[0, 1].map((days) => curves.figure('Loss', {points}, 'loss').textContent)"
    texts = tab.eval(f"import(new URL('curves.js', location).href).then((curves) => {drawing})")
    assert "since 14:03:22" in texts[0]
    assert texts[0].endswith("14:03:2215:03:22")
    assert "since 28/11/2026, 14:03:22" in texts[1]
    assert texts[1].endswith("28/11/2026, 14:03:2229/11/2026, 15:03:22")


def test_a_job_that_has_failed(tab: Tab, served: DashboardServer) -> None:
    tab.open(served.url)
    tab.until("document.querySelectorAll('#jobs a').length === 3")
    tab.eval("[...document.querySelectorAll('#jobs a')].find((link) => link.innerText === 'broken').click()")
    tab.until("document.querySelector('#log-lines').innerText.includes('batch_size is 0')")
    assert "✖ Failed" in tab.text("#head")
    assert "BadSettings" in tab.text("#head")
    # Markup in a log or an event is shown as text.
    assert "<script>" in tab.text("#log-lines")
    assert "<img src=x" in tab.text("#events")
    assert tab.eval("document.title") == "broken - pstraining"
    keep(tab, "failed", "#conditions")


def test_a_job_that_is_deleted_has_no_tasks_any_more(tab: Tab, served: DashboardServer) -> None:
    shown(tab, served, "recommender")
    tab.until("document.querySelectorAll('#curves svg').length === 3")
    assert rows(tab, "tasks")
    gone = "new Response(JSON.stringify({error: 'There is no PSTrainingJob recommender.'}), {status: 404})"
    tab.eval(f"window.fetch = () => Promise.resolve({gone}); undefined")
    tab.until("document.querySelector('#head').innerText === '⚠ There is no PSTrainingJob recommender.'")
    for section in ("tasks", "shards", "conditions", "events"):
        assert tab.text(f"#{section}") == "", section
    assert tab.eval("document.querySelectorAll('#curves svg').length") == 3, "they show the past"


def test_missing_rights_and_a_finished_job(tab: Tab, served: DashboardServer, cluster: TrainingCluster) -> None:
    cluster.denied = {"pods", "pods/proxy", "events"}
    tab.open(f"{served.url}#default/digits")
    tab.until("document.querySelector('#tasks .problem')")
    assert tab.text("#tasks .problem") == "⚠ You (jane) may not get pods in namespace default."
    assert tab.text("#events .problem") == "⚠ You (jane) may not get events in namespace default."
    assert tab.text("#log-problem") == "⚠ No task has a pod whose log you may read."
    assert rows(tab, "conditions"), "the rest is there"
    tab.eval("window.fetch = () => Promise.reject(new Error('gone'))")
    tab.eval(COUNTED)
    tab.until("['jobs', 'job', 'curves'].every((what) => asked.includes(what))")
    tab.until("document.querySelector('#connection').innerText.includes('no longer responds')")
    assert rows(tab, "jobs"), "the shown rows stay"
    assert rows(tab, "conditions")
    tab.eval("location.hash = '#%'")
    tab.until("document.querySelector('#job').hidden")
