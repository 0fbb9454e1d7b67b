"""The status that a parameter server's launcher reports during a restart of the server."""

import errno
from pathlib import Path

import pytest

from pstraining.launcher import contract, launch, probe, status_port


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> launch.Launcher:
    """Return the launcher of a server that was started for term 1, and whose cluster map now has term 2."""
    cluster_map = tmp_path / contract.CLUSTER_FILE
    monkeypatch.setattr(contract, "RUN_DIR", str(tmp_path))
    monkeypatch.setattr(launch, "map_file", lambda: str(cluster_map))
    monkeypatch.setattr(probe, "is_open", lambda *_: True)
    cluster_map.write_text('{"job": "digits", "cluster": {"ps": ["127.0.0.1:2222"]}, "term": 1}')
    env = {"PSTRAINING_TASK_TYPE": "ps", "PSTRAINING_TASK_INDEX": "0", contract.ENV_SERVER: "Program"}
    made = launch.Launcher(env, ["server"])
    made.start_boot()
    cluster_map.write_text('{"job": "digits", "cluster": {"ps": ["127.0.0.1:2222"]}, "term": 20}')
    return made


def test_a_status_taken_across_a_restart_does_not_join_the_new_term_to_the_former_server(
    launcher: launch.Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = launcher.report()

    def restart(*_: object) -> bool:
        launcher.start_boot()
        return True  # the former server accepted the connection

    monkeypatch.setattr(probe, "is_open", restart)
    across = launcher.report()
    monkeypatch.setattr(probe, "is_open", lambda *_: True)
    after = launcher.report()
    assert (before["term"], after["term"], before["bootId"] == after["bootId"]) == (1, 20, False)
    assert (across["term"], across["bootId"]) == (1, before["bootId"]), "a chief of term 20 asks again"


def test_the_new_term_appears_after_the_new_identity(
    launcher: launch.Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, started = launcher.report()["bootId"], launcher.terms.server_started
    during = []

    def observed() -> None:
        started()
        during.append(launcher.report())

    monkeypatch.setattr(launcher.terms, "server_started", observed)
    launcher.start_boot()
    assert during[0]["term"] == 20
    assert during[0]["bootId"] not in (former, "")


def test_a_server_whose_status_port_is_taken_names_the_ports_to_leave_free(
    launcher: launch.Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: object) -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(status_port, "serve_status", taken)
    with pytest.raises(contract.ExitError) as refused:
        launcher.run_server()
    code, message = refused.value.args
    assert code == contract.EXIT_BAD_CONTRACT
    assert message == "port 2223 is taken (Address already in use): leave 2222 to 2240 free in this pod"
