"""The page of trackers and tuning: Katib's collector finds the metrics in the chief's lines, and the study with Optuna
runs.
"""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from hack.docs.pages import ROOT
from pstraining.api import names
from pstraining.api.conditions import Condition
from pstraining.runtime.telemetry.events import event
from tests.support.documented import MINIMAL
from tests.support.extra_packages import add_packages
from tests.support.soak_marks import in_all

PAGE = (ROOT / "docs/users/experiment-trackers.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def experiment() -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load(block("yaml"))["spec"]
    return spec


def test_katibs_collector_finds_the_metrics_of_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    event("result", step=1000, test_accuracy=0.95, test_loss=1.5e-05)
    line = capsys.readouterr().out
    (pattern,) = experiment()["metricsCollectorSpec"]["source"]["filter"]["metricsFormat"]
    found = {match[1]: match[2] for match in re.finditer(pattern, line)}
    objective = experiment()["objective"]["objectiveMetricName"]
    assert (float(found[objective]), float(found["test_loss"])) == (0.95, 1.5e-05)


def test_katibs_trial_is_a_job_of_this_version() -> None:
    template = experiment()["trialTemplate"]
    trial = template["trialSpec"]
    assert (trial["apiVersion"], trial["kind"]) == (MINIMAL["apiVersion"], MINIMAL["kind"])
    assert f"- {names.KIND}.{names.VERSION}.{names.GROUP}" in block("text")
    assert template["primaryPodLabels"] == {names.LABEL_ROLE: names.CHIEF}
    assert template["primaryContainerName"] == names.MAIN_CONTAINER


def test_katibs_trial_ends_with_its_job() -> None:
    template = experiment()["trialTemplate"]
    for field, kinds in (
        ("successCondition", [Condition.SUCCEEDED]),
        ("failureCondition", [Condition.FAILED, Condition.INVALID_TEMPLATE]),
    ):
        parts = [f'status.conditions.#(type=="{kind}")#|#(status=="True")#' for kind in kinds]
        # Both lists of GJSON are joined: Katib takes the first condition in the result.
        assert template[field] == (parts[0] if len(parts) == 1 else f"[{','.join(parts)}]|@flatten")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Invalid"])
def test_a_trial_of_the_study_ends_with_its_job(phase: str) -> None:
    def asleep(seconds: float) -> None:
        raise AssertionError("the trial waits")

    client = SimpleNamespace(
        train=lambda *_, **__: "digits",
        get=lambda job: SimpleNamespace(phase=phase),
        wait=lambda job: None,
        progress=lambda job: SimpleNamespace(metrics={"test_loss": 0.5}),
    )
    known: dict[str, Any] = {"client": client, "time": SimpleNamespace(sleep=asleep), "train": None}
    exec("def objective" + block("python").partition("def objective")[2].partition("study =")[0], known)
    trial = SimpleNamespace(suggest_float=lambda *_, **__: 0.1)
    assert known["objective"](trial) == 0.5


@in_all("tests/unit/client/test_client.py::test_train_creates_the_job_and_its_program")
def test_the_study_with_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_packages(tmp_path / "packages", monkeypatch, "optuna>=4,<5")
    study = tmp_path / "study.py"
    study.write_text(block("python").replace("n_trials=10", "n_trials=2"))
    ran = subprocess.run([sys.executable, study], capture_output=True, text=True, timeout=1800, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "'rate': " in ran.stdout
    assert ran.stderr.count("Trial ") >= 2
