"""`make install`: the Pythons with which it works."""

import sys

import pytest

from hack import install


def test_a_python_without_tensorflow_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["install.py"])
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    monkeypatch.setattr(sys, "version", "3.14.0 (main)")
    monkeypatch.setattr(install, "is_current", lambda _: True)
    assert install.main() == 1
    assert capsys.readouterr().err == (
        "error: TensorFlow has no packages for Python 3.14.0, only up to 3.13; name another one: "
        "make PYTHON=python3.13 ...\n"
    )
