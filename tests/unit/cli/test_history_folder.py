"""`--from FOLDER` shows a job from its history, without a cluster."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pstraining.api.summary import JobOutcome, KeptLog, Summary
from pstraining.cli.commands.dashboard import create_server
from pstraining.cli.history.folder import HistoryFolder
from pstraining.cli.main import app
from tests.support.builders import job, pod
from tests.support.command_runner import CliRunner

NOW = datetime(2030, 1, 2, tzinfo=UTC)
RUNNING = {
    "type": "Running",
    "status": "True",
    "reason": "Training",
    "message": "",
    "lastTransitionTime": "2030-01-01T00:00:00Z",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the history of a job with a restarted worker, as a chief writes it."""
    (tmp_path / "history").mkdir()
    for name, text in {"worker-0": "step 1\nstep 2\n", "worker-0.previous": "Traceback\n"}.items():
        (tmp_path / "history" / f"digits-{name}.log").write_text(text)
    write(tmp_path)
    return tmp_path


def write(folder: Path, **changes: Any) -> None:
    status = {"phase": "Running", "conditions": [RUNNING], "takeovers": 2, "worker": {"restarts": 1}}
    kept = {"task": "worker-0", "pod": "digits-worker-0"}
    known = {
        "name": "digits",
        "namespace": "default",
        "uid": job()["metadata"]["uid"],
        "outcome": JobOutcome.SUCCEEDED,
        "time": NOW,
        "term": 1,
        "result": {"step": 60.0, "test_accuracy": 0.9},
        "training": {"step": 60, "loss": "0.25", "progressPercentage": 100},
        "job": {**job(workers=1), "status": status},
        "pods": [pod("chief", term=1), pod("worker", restarts=1)],
        "logs": [
            KeptLog(**kept, file="history/digits-worker-0.log"),
            KeptLog(**kept, previous=True, file="history/digits-worker-0.previous.log"),
            KeptLog(task="chief-0", pod="digits-chief-1", missing="404 Not Found: it is deleted"),
        ],
    }
    (folder / "summary.json").write_text(Summary(**(known | changes)).model_dump_json(by_alias=True))


def ran(*arguments: str) -> str:
    found = CliRunner().invoke(app, [*arguments])
    assert found.exit_code == 0, found.output
    return str(found.output)


def refused(*arguments: str) -> str:
    found = CliRunner().invoke(app, [*arguments])
    assert found.exit_code != 0
    return str(found.exception)


def test_status_shows_the_last_state_with_the_chiefs_result(folder: Path) -> None:
    shown = ran("status", "--from", str(folder))
    assert shown == ran("status", "digits", "--from", str(folder))
    assert shown.splitlines()[0].startswith("digits  Succeeded  namespace default")
    for words in ("worker-0", "1 restart", "Result: step=60 test_accuracy=0.9", "Succeeded True", "ReportedByChief"):
        assert words in shown
    assert "Running True" not in shown
    found = json.loads(ran("status", "--from", str(folder), "-o", "json"))
    assert (found["phase"], found["takeovers"]) == ("Succeeded", 2)


def test_a_failure_keeps_the_operators_message(folder: Path) -> None:
    failed = {**RUNNING, "type": "Failed", "reason": "DeadlineExceeded", "message": "active for 60 s"}
    status = {"phase": "Failed", "conditions": [failed]}
    write(
        folder, outcome=JobOutcome.FAILED, message="DeadlineExceeded: active for 60 s", job={**job(), "status": status}
    )
    shown = ran("status", "--from", str(folder))
    assert "Failed True" in shown
    assert "DeadlineExceeded: active for 60 s" in shown
    assert "ReportedByChief" not in shown


def test_without_the_job_the_available_files_are_shown(folder: Path) -> None:
    write(folder, job=None, pods=[], logs=[], outcome=JobOutcome.UNFINISHED, notes=["The chief had no endpoint."])
    shown = ran("status", "--from", str(folder))
    assert "The chief had no endpoint." in shown
    assert "the job was unfinished then" in shown


def test_a_progress_bar_is_one_line_as_in_a_cluster(folder: Path) -> None:
    bar = "".join(f"{number}/60 \u2501\r" for number in range(60))
    (folder / "history" / "digits-worker-0.log").write_bytes(f"Epoch 1\n{bar}\x0c\u2028\nstep 2\n".encode())
    found = list(HistoryFolder(folder).log("default", "digits-worker-0", {"tailLines": "2"}))
    assert found == [f"{bar}\x0c\u2028", "step 2"]


def test_logs_are_those_of_the_folder(folder: Path) -> None:
    found = CliRunner().invoke(app, ["logs", "digits", "--from", str(folder), "--tail", "1"])
    assert found.stdout == "worker-0: step 2\n"
    assert "chief-0 (digits-chief-1): no log: 404 Not Found: it is deleted" in found.stderr
    assert "worker-0: Traceback" in ran("logs", "digits", "--from", str(folder), "--previous", "--role", "worker")


def test_the_dashboard_shows_them(folder: Path) -> None:
    server = create_server(HistoryFolder(folder), "default")  # type: ignore[arg-type]
    try:
        content = server.content
        (row,) = content.jobs()["jobs"]
        assert (row["name"], row["phase"], row["training"]["step"]) == ("digits", "Succeeded", 60)
        assert [role["role"] for role in content.job("default", "digits")["roles"]][:1] == ["chief"]
        assert content.curves("default", "digits")["points"]["step"] == [60]
        log = content.log("default", "digits", "digits-worker-0", "", "")
        assert log["lines"] == ["step 1", "step 2"]
        assert content.log("default", "digits", "digits-worker-0", log["last"], "")["lines"] == []
    finally:
        server.server_close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("status", "other"), "There is no PSTrainingJob other in namespace default."),
        (("status", "-A"), "remove --all-namespaces"),
        (("status", "-n", "default"), "remove the options of the cluster and --namespace"),
        (("status", "--context", "mine"), "remove the options of the cluster and --namespace"),
        (("logs", "digits", "-f"), "remove --follow and --since"),
        (("logs", "digits", "--since", "5m"), "remove --follow and --since"),
        (("dashboard", "-A"), "remove --all-namespaces"),
    ],
)
def test_a_request_for_missing_files_is_rejected(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in refused(*arguments, "--from", str(folder))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        ("{", "is not a summary that this version can read"),
        ('{"schema": "pstraining.dev/summary/v9"}', "(schema: Input should be 'pstraining.dev/summary/v1')"),
    ],
)
def test_a_folder_without_a_summary_is_rejected(content: str | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    assert words in refused("status", "--from", str(tmp_path))


def test_a_summary_references_no_file_outside_its_folder(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    log = KeptLog(task="worker-0", pod="digits-worker-0", file="../history/digits-worker-0.log")
    write(inner, logs=[log])
    found = CliRunner().invoke(app, ["logs", "digits", "--from", str(inner), "--role", "worker"])
    assert found.stdout == ""
    assert "its file is not in the folder" in found.stderr
