"""The limits of modules and of the runtime's packages."""

from pathlib import Path

import pytest

from hack import module_length


def test_a_long_module_and_a_full_package_are_printed_and_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / module_length.RUNTIME / "ps"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for number in range(module_length.MODULES_MAX):
        (package / f"module_{number}.py").write_text("pass\n" * module_length.LIMIT, encoding="utf-8")
    assert module_length.main(tmp_path) == 0
    (package / "one_more.py").write_text("pass\n" * (module_length.LIMIT + 1), encoding="utf-8")
    assert module_length.main(tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [
        "operator/pstraining/runtime/ps/one_more.py: 401 lines, too many for one module",
        "operator/pstraining/runtime/ps: 13 modules, too many for one package",
    ]
