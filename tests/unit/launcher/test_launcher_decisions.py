"""Tables of the launcher's decisions."""

import ast
import json
import sys
from pathlib import Path

import pytest

from pstraining.launcher import FILES, contract, launch, launcher_files, launcher_version, probe, supervisor
from pstraining.launcher.probe import OPEN, REFUSED, SILENT, LossVerdict, PsProbe

PS_LOST, OWN_FAILURE, ASK_AGAIN = LossVerdict.PS_LOST, LossVerdict.OWN_FAILURE, LossVerdict.ASK_AGAIN
BEFORE = PsProbe(OPEN, boot_id="a", state="Serving")


@pytest.mark.parametrize(
    ("before", "after", "early", "late"),
    [
        pytest.param(BEFORE, BEFORE, OWN_FAILURE, OWN_FAILURE, id="same server, serving"),
        pytest.param(BEFORE, PsProbe(OPEN, boot_id="b", state="Serving"), PS_LOST, PS_LOST, id="another server"),
        pytest.param(BEFORE, PsProbe(REFUSED, boot_id="b", state="Starting"), PS_LOST, PS_LOST, id="another, starting"),
        pytest.param(BEFORE, PsProbe(REFUSED, boot_id="a", state="Starting"), ASK_AGAIN, PS_LOST, id="restarting"),
        pytest.param(BEFORE, PsProbe(REFUSED, boot_id="a", state="Serving"), ASK_AGAIN, PS_LOST, id="port just closed"),
        pytest.param(BEFORE, PsProbe(OPEN, boot_id="a", state="Terminating"), ASK_AGAIN, PS_LOST, id="being stopped"),
        pytest.param(BEFORE, PsProbe(OPEN, boot_id="a", state="Starting"), ASK_AGAIN, PS_LOST, id="same, starting"),
        pytest.param(BEFORE, PsProbe(REFUSED), ASK_AGAIN, PS_LOST, id="pod gone"),
        pytest.param(BEFORE, PsProbe(SILENT), ASK_AGAIN, PS_LOST, id="silent"),
        pytest.param(BEFORE, PsProbe(OPEN), ASK_AGAIN, PS_LOST, id="its launcher does not answer"),
        pytest.param(PsProbe(OPEN, boot_id="a", state="Starting"), BEFORE, OWN_FAILURE, OWN_FAILURE, id="noted early"),
    ],
)
def test_one_ps(before: PsProbe, after: PsProbe, early: LossVerdict, late: LossVerdict) -> None:
    assert probe.judge({"x": before}, {"x": after}, 9.9, 10) is early
    assert probe.judge({"x": before}, {"x": after}, 10, 10) is late


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        ({"x": BEFORE, "y": BEFORE}, OWN_FAILURE),
        ({"x": BEFORE, "y": BEFORE._replace(boot_id="b")}, PS_LOST),
        ({"x": PsProbe(SILENT), "y": BEFORE._replace(boot_id="b")}, PS_LOST),
        ({"x": PsProbe(SILENT), "y": BEFORE}, ASK_AGAIN),
        ({"x": BEFORE}, ASK_AGAIN),
    ],
)
def test_two_ps(after: dict[str, PsProbe], verdict: LossVerdict) -> None:
    assert probe.judge({"x": BEFORE, "y": BEFORE}, after, 0, 10) is verdict


def test_without_a_ps_every_failure_is_that_of_the_program() -> None:
    assert probe.judge({}, {}, 0, 10) is OWN_FAILURE


def test_only_immediate_failures_back_off() -> None:
    delays, delay = [], 0.0
    for _ in range(8):
        delay = supervisor.next_delay(delay, lived=1.9)
        delays.append(delay)
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    assert supervisor.next_delay(5, lived=2) == 0


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"PSTRAINING_TASK_INDEX": "0"}, "PSTRAINING_TASK_TYPE is None"),
        ({"PSTRAINING_TASK_TYPE": "master", "PSTRAINING_TASK_INDEX": "0"}, "PSTRAINING_TASK_TYPE is 'master'"),
        ({"PSTRAINING_TASK_TYPE": "chief"}, "PSTRAINING_TASK_INDEX is None"),
        ({"PSTRAINING_TASK_TYPE": "chief", "PSTRAINING_TASK_INDEX": "-1"}, "PSTRAINING_TASK_INDEX is '-1'"),
        ({"PSTRAINING_TASK_TYPE": "chief", "PSTRAINING_TASK_INDEX": "$(I)"}, "PSTRAINING_TASK_INDEX is '$(I)'"),
        ({"PSTRAINING_TASK_TYPE": "ps", "PSTRAINING_TASK_INDEX": "0"}, "PSTRAINING_SERVER is None"),
        (
            {"PSTRAINING_TASK_TYPE": "ps", "PSTRAINING_TASK_INDEX": "0", "PSTRAINING_SERVER": "builtin"},
            "PSTRAINING_SERVER is 'builtin'",
        ),
        (
            {
                "PSTRAINING_TASK_TYPE": "chief",
                "PSTRAINING_TASK_INDEX": "0",
                "PSTRAINING_START_TIMEOUT_SECONDS": "1h",
            },
            "PSTRAINING_START_TIMEOUT_SECONDS is '1h'",
        ),
        (
            {
                "PSTRAINING_TASK_TYPE": "chief",
                "PSTRAINING_TASK_INDEX": "0",
                "PSTRAINING_START_TIMEOUT_SECONDS": "9" * 5000,
            },
            "PSTRAINING_START_TIMEOUT_SECONDS is '999",
        ),
    ],
)
def test_the_environment_is_checked(env: dict[str, str], named: str) -> None:
    with pytest.raises(contract.ExitError, match="environment variable") as error:
        contract.read_task(env)
    code, message = error.value.args
    assert code == 72
    assert named in message


@pytest.mark.parametrize(
    ("text", "kind", "index"),
    [
        ("", "chief", 0),
        ("[]", "chief", 0),
        ("{}", "chief", 0),
        ('{"cluster": null}', "chief", 0),
        ('{"cluster": []}', "chief", 0),
        ('{"cluster": {"chief": "a:1"}}', "chief", 0),
        ('{"cluster": {"chief": [1]}}', "chief", 0),
        ('{"cluster": {"chief": ["a"]}}', "chief", 0),
        ('{"cluster": {"chief": ["a:1"], "ps": ["b"]}}', "chief", 0),
        ('{"cluster": {"worker": ["a:1"]}}', "chief", 0),
        ('{"cluster": {"worker": ["a:1"]}}', "worker", 1),
        ('{"cluster": {"ps": ["a:1", "b:1"]}}', "ps", 2),
    ],
)
def test_the_map_is_checked(text: str, kind: str, index: int) -> None:
    with pytest.raises(contract.ExitError) as error:
        contract.read_cluster(text, "/x/cluster.json", kind, index)
    code, message = error.value.args
    assert code == 72
    assert "field 'cluster' of /x/cluster.json" in message
    assert f"{kind} {index}" in message
    assert "\n" not in message


def test_an_evaluator_is_in_no_map() -> None:
    cluster = {"chief": ["a:1"], "ps": ["b:2"]}
    assert contract.read_cluster(json.dumps({"cluster": cluster}), "x", "evaluator", 3) == cluster


def test_the_programs_environment() -> None:
    cluster = {"chief": ["a:1"], "ps": ["b:2"]}
    env = {"TF_CONFIG": "the template's", "GRPC_FAIL_FAST": "mine", "OTHER": "1"}
    made = contract.program_env(env, cluster, "evaluator", 1)
    assert json.loads(made["TF_CONFIG"]) == {
        "cluster": cluster,
        "task": {"type": "evaluator", "index": 1},
        "environment": "cloud",
    }
    assert made["GRPC_FAIL_FAST"] == "mine"
    assert made["OTHER"] == "1"
    assert made["TF_CPP_MIN_LOG_LEVEL"] == "1"
    options = dict(option.split("=") for option in made["TF_GRPC_DEFAULT_OPTIONS"].split(","))
    assert options["grpc.keepalive_time_ms"] == "2000"
    assert options["grpc.max_reconnect_backoff_ms"] == "500"
    assert contract.program_env({}, cluster, "chief", 0)["GRPC_FAIL_FAST"] == "use_caller"
    tunables = {
        kind: contract.program_env({}, cluster, kind, 0)["GLIBC_TUNABLES"] for kind in ("ps", "chief", "worker")
    }
    assert "arena_max=1" in tunables["ps"]
    assert "arena_max=1" in tunables["chief"], "each thread that moves a state would keep memory"
    assert "arena_max" not in tunables["worker"], "a worker's threads read data beside one another"
    assert all("mmap_max=0" in found for found in tunables.values())
    assert contract.program_env({"GLIBC_TUNABLES": ""}, cluster, "ps", 0)["GLIBC_TUNABLES"] == "", "the template's"


def test_a_program_finds_the_variables_of_kep_2779(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "RUN_DIR", str(tmp_path))
    env = {contract.ENV_PROGRESS_URL: "https://there/", contract.ENV_PROGRESS_AUTHORITY: "the authority"}
    contract.write_authority(env)
    made = contract.program_env(env, {}, "chief", 0)
    assert made["KUBEFLOW_TRAINER_SERVER_URL"] == "https://there/"
    assert Path(made["KUBEFLOW_TRAINER_SERVER_CA_CERT"]).read_text() == "the authority"
    assert made["KUBEFLOW_TRAINER_SERVER_TOKEN"] == "/pstraining/progress-token"
    contract.write_authority({})
    assert not any(name.startswith("KUBEFLOW") for name in contract.program_env({}, {}, "worker", 0))


@pytest.mark.parametrize(
    ("address", "parts"), [("digits-ps-0:2222", ("digits-ps-0", 2222)), ("[fd00::1]:2222", ("fd00::1", 2222))]
)
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    assert contract.host_and_port(address) == parts


@pytest.mark.parametrize("name", FILES)
def test_the_launcher_needs_only_python_3_8(name: str) -> None:
    tree = ast.parse(launcher_files()[name], feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    own = {Path(file).stem for file in FILES}
    assert {name.partition(".")[0] for name in imported} <= set(sys.stdlib_module_names) | own
    lengths = [
        node.end_lineno - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.end_lineno
    ]
    assert max(lengths) <= 60


def test_the_version_identifies_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    version = launcher_version()
    assert len(version) == 10
    assert launcher_files()["launch.py"] == Path(launch.__file__).read_text(encoding="utf-8")
    monkeypatch.setattr("pstraining.launcher.launcher_files", lambda: {**launcher_files(), "serve.py": "another"})
    assert launcher_version() != version


def test_bad_contracts_end_with_78_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    env = {"PSTRAINING_TASK_TYPE": "chief", "PSTRAINING_TASK_INDEX": "0"}
    monkeypatch.setattr(launch, "__file__", str(tmp_path / "launch.py"))
    monkeypatch.setattr(contract, "RUN_DIR", str(tmp_path / "missing"))

    def outcome(*argv: str) -> tuple[int, str]:
        code = launch.main(list(argv), env)
        line = capfd.readouterr().err
        assert line.count("\n") == 1
        assert line.startswith("pstraining-launcher: ")
        return code, line

    code, line = outcome("--", "x")
    assert code == 72
    assert f"{tmp_path}/cluster.json cannot be read: No such file" in line
    (tmp_path / "cluster.json").write_text('{"cluster": {"chief": ["a:1"]}}')
    code, line = outcome("--")
    assert code == 72
    assert "no command after --" in line
    code, line = outcome("--", "x")
    assert code == 72
    assert f"{tmp_path}/missing is not a folder" in line
    code, line = outcome("serve")
    assert code == 72
    assert "TF_CONFIG" in line


def test_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["--help"], {}) == 0
    assert "python3 launch.py -- COMMAND" in capfd.readouterr().out
    assert launch.main(["train.py"], {}) == 72
