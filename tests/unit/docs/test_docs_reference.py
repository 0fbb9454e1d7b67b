"""The pages of conditions, events and metrics have every member of the source; a new member needs a text."""

import ast
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

import pytest

from hack.docs import conditions_page, events_page, gallery, glossary_page, members, versions_page
from hack.docs.members import UndocumentedError
from hack.docs.metrics_page import metrics_page
from pstraining.api.condition_reasons import OF_CONDITIONS
from pstraining.api.conditions import Condition, Phase, Reason
from pstraining.core.actions import Kind
from pstraining.runtime.telemetry.event_texts import EVENTS
from tests.support.builders import job
from tests.support.queued_world import queued
from tests.support.simulation import World
from tests.tfjob import converted
from tests.tfjob.converted import EXAMPLES

OPERATOR = Path(__file__).parents[3] / "operator" / "pstraining"


class Half(StrEnum):
    SAID = "Said"
    """What it
    means."""
    UNSAID = "Unsaid"


class Whole(StrEnum):
    SAID = "Said"
    """What it means."""


def test_a_member_without_a_text_is_rejected() -> None:
    assert members.texts(Whole) == {Whole.SAID: "What it means."}
    with pytest.raises(UndocumentedError, match="UNSAID of Half"):
        members.texts(Half)


def test_a_reason_or_condition_in_no_table_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    conditions_page.checked()
    without = {c: own for c, own in OF_CONDITIONS.items() if c is not Condition.STALLED}
    monkeypatch.setattr(conditions_page, "OF_CONDITIONS", without)
    with pytest.raises(UndocumentedError, match="lacks NoReports, NoStep, Stalled, Stepping"):
        conditions_page.checked()


def test_an_event_of_the_runtime_without_a_text_is_rejected(tmp_path: Path) -> None:
    events_page.checked()
    names = (f"event('{name}', step=1)" for name in EVENTS if name != "stuck")
    (tmp_path / "all.py").write_text("\n".join([*names, "event('new_one' if odd else 'stuck')"]))
    with pytest.raises(UndocumentedError, match=r"differ: new_one$"):
        events_page.checked(tmp_path)


def test_the_other_events_of_a_job_are_those_of_the_source() -> None:
    """The other events of a job are those of the source: each event that the operator creates outside `transition` has
    a literal reason.
    """
    found = set()
    for path in sorted([*(OPERATOR / "core").rglob("*.py"), *(OPERATOR / "controller").rglob("*.py")]):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Event" and len(call.args) == 3:
                reason = call.args[1]
                if isinstance(reason, ast.Constant):
                    found.add(str(reason.value))
                elif isinstance(reason, ast.Attribute) and getattr(reason.value, "id", "") == "Reason":
                    found.add(Reason[reason.attr].value)
    assert found == {reason for _, reason in events_page.OTHERS}


def test_every_row_of_the_events_page_has_a_text() -> None:
    page = events_page.events_page()
    assert "| Warning | `Unschedulable` | For 30 seconds, no node has accepted a pod." in page
    assert "| Normal | `Succeeded` |" in page
    assert "| Warning | `JobFinished`" not in page  # the end of a job is not a warning about its pods


def test_metrics_have_their_labels_and_alerts() -> None:
    page = metrics_page()
    assert "| `pstraining_writes_total` | counter | `kind`; `verb` |" in page
    assert "| `pstraining_longest_seconds` | gauge | `state`: Pending, Restarting, Rescaling, Degraded |" in page
    (standstill,) = (line for line in page.splitlines() if line.startswith("| `pstraining_global_step`"))
    assert "[PSTrainingStandsStill](../operators/alerts.md#pstrainingstandsstill)" in standstill


def test_the_glossary_has_the_words_of_the_package_and_each_once() -> None:
    doc = "Glossary:\n\n- *shard*: a part\n  of it\n- *in sync*: as new\n"
    assert glossary_page.of_replication(doc) == {"shard": "a part of it", "in sync": "as new"}
    assert "| learner | a member that applies every step while it receives older state" in glossary_page.glossary_page()
    with pytest.raises(glossary_page.GlossaryError, match="twice: shard"):
        glossary_page.page({"A job": {"shard": "else"}, glossary_page.LAST: {}}, {"shard": "a part"})
    with pytest.raises(glossary_page.GlossaryError, match="defines no word"):
        glossary_page.of_replication("Nothing.")


def test_a_rule_on_versions_names_an_existing_test(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "| standbys | Kubernetes | >=1.31 |" in versions_page.versions_page()
    gone = versions_page.Skew("plugin, CRD", "yes", "", "tests/unit/cli/test_doctor.py::test_that_is_gone")
    monkeypatch.setattr(versions_page, "SKEWS", (gone,))
    with pytest.raises(versions_page.VersionsError, match="test_that_is_gone, which shows plugin, CRD"):
        versions_page.versions_page()


def test_upgrades_are_from_one_version_of_the_changelog_to_the_next() -> None:
    old = "## [0.2.0] - 2026-01-02\n\n### From 0.1: what to change\n\n- all\n"
    assert [*versions_page._upgrades(f"# Changes\n\n## [0.2.1] - 2026-02-03\n\ntext\n\n{old}")] == [
        "| 0.2.0 | 0.2.1 | [changes](../../CHANGELOG.md#021---2026-02-03) |",
        "| 0.1 | 0.2.0 | [what to change](../../CHANGELOG.md#from-01-what-to-change) |",
    ]


def test_a_tfjob_without_a_description_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = EXAMPLES[0]
    assert gallery._row(example).startswith("| [dist-mnist](")
    (tmp_path / "tfjobs").mkdir()
    (tmp_path / "tfjobs" / "dist-mnist.yaml").write_text("kind: TFJob\n")
    monkeypatch.setattr(converted, "FOLDER", tmp_path)
    with pytest.raises(gallery.GalleryError, match=r"dist-mnist\.yaml: begin with a comment"):
        gallery._row(example)


def course(world: World, *deeds: Callable[[World], object]) -> set[tuple[str | None, str]]:
    """Return the changes of a job's phase while it is played: one entry per event, after nothing changes any more."""
    assert world.job is not None
    seen, found = world.job.get("status", {}).get("phase"), set()
    for deed in deeds:
        deed(world)
        for _ in range(8):
            world.reconcile()
            phase = world.job["status"]["phase"]
            found |= {(seen, phase)} if phase != seen else set()
            seen = phase
            world.controllers()
    return found


def begin(world: World) -> None:
    """Do nothing yet."""


def correct(world: World) -> None:
    """Replace the template by one that the API server accepts."""
    assert world.job is not None
    world.refuse = None
    world.edit({"ps": {"template": world.job["spec"]["worker"]["template"]}})


def pass_an_hour(world: World) -> None:
    world.now += timedelta(hours=1)


def test_the_usual_course_of_a_job_is_what_a_job_does() -> None:
    spec = {"runPolicy": {"activeDeadlineSeconds": 3600}, "worker": {"restartPolicy": "Never"}}
    found = course(
        World(job(spec=spec)),
        begin,
        lambda world: world.delete_pod("ps"),
        lambda world: world.edit({"ps": {"replicas": 2}}),
        lambda world: world.edit({"runPolicy": {"suspend": True}}),
        lambda world: world.edit({"runPolicy": {"suspend": False}}),
        lambda world: world.end("chief"),
    )
    found |= course(World(job(spec=spec)), begin, lambda world: world.end("worker", 1, code=1))
    refusing = World(job(spec=spec), refuse=lambda action: "no" if action.kind is Kind.STATEFUL_SET else "")
    found |= course(refusing, begin, correct)
    waiting = World(job(spec=spec))
    waiting.reconcile()
    found |= course(waiting, pass_an_hour)
    queue = queued()
    evicted = (begin, lambda world: queue.admit(), lambda world: queue.evict())
    found |= course(queue, *evicted)
    assert {(old and old.value, new.value) for old, new, _ in conditions_page.COURSE} == found
    assert {new for _, new, _ in conditions_page.COURSE} == {*Phase}


def test_the_state_rescaling_excludes_the_time_in_which_servers_start() -> None:
    assert f"`{Reason.STARTING_SERVERS}`" in members.texts(Phase)[Phase.RESCALING]
