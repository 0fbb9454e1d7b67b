"""The launcher of the plugin's archive for krew: when it installs the packages."""

import sys
from pathlib import Path

import pytest

from hack.release import launcher


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the commands of the plugin that the launcher runs; each installation appends `install`."""
    calls: list[list[str]] = []

    def install() -> None:
        calls.append(["install"])
        python = launcher.VENV / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.unlink(missing_ok=True)
        python.symlink_to(tmp_path / "python3")
        launcher.COMPLETE.write_text(str(launcher.interpreter()), "utf-8")

    monkeypatch.setattr(launcher, "HERE", tmp_path)
    monkeypatch.setattr(launcher, "VENV", tmp_path / "venv")
    monkeypatch.setattr(launcher, "COMPLETE", tmp_path / "venv" / "complete")
    monkeypatch.setattr(launcher, "install", install)
    monkeypatch.setattr("os.execv", lambda _, words: calls.append(words[1:]))
    monkeypatch.setattr(sys, "argv", ["kubectl-pstraining", "status"])
    for version in ("3.11", "3.12"):
        (tmp_path / f"python{version}").touch()
    (tmp_path / "python3").symlink_to("python3.11")
    return calls


def test_the_packages_are_installed_once(installed: list[list[str]]) -> None:
    launcher.main()
    launcher.main()
    assert installed == [["install"], ["status"], ["status"]]


def test_they_are_installed_again_for_another_python(installed: list[list[str]], tmp_path: Path) -> None:
    """An upgrade leaves an environment without its packages, or without its Python."""
    launcher.main()
    (tmp_path / "python3").unlink()
    (tmp_path / "python3").symlink_to("python3.12")
    launcher.main()
    assert installed == [["install"], ["status"]] * 2


def test_they_are_installed_again_if_their_python_is_gone(installed: list[list[str]], tmp_path: Path) -> None:
    launcher.main()
    (tmp_path / "python3.11").unlink()
    launcher.main()
    assert installed == [["install"], ["status"]] * 2
