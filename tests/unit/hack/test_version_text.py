"""The version is written in one place, from which all other places are updated."""

from pathlib import Path

import pytest

from hack.docs import version_text
from hack.docs.pages import ROOT
from pstraining import __version__


def test_the_package_has_the_projects_version() -> None:
    assert __version__ == version_text.project_version(ROOT)


@pytest.mark.parametrize(
    "text",
    [
        "image: pstraining/runtime:{}",
        "-t REGISTRY/pstraining/operator:{} .",
        '"REGISTRY/runtime-gpu:{}"  # one',
        "helm push pstraining-{}.tgz and kubectl-pstraining-{}.tar.gz, pstraining-{}-py3-none-any.whl",
        "https://example.org/pstraining/{}",
        '__version__ = "{}"\n',
        'name: x\nversion: {}\nappVersion: "{}"\n',
        "the same as this CLI's ({})",
        "plugin      {} (pstraining.dev/v1alpha1)",
    ],
)
def test_files_that_name_the_version_are_updated(text: str) -> None:
    assert version_text.rewritten(text.replace("{}", "0.1.0"), "3.4.5") == text.replace("{}", "3.4.5")


@pytest.mark.parametrize(
    "text",
    ["namex==0.1.0", "python:3.11.2", "operator sys/op has version 0.0.9", "pstraining/operator:0.0.9", "Helm 3.22.0"],
)
def test_other_versions_are_kept(text: str) -> None:
    assert version_text.rewritten(text, "3.4.5") == text


def test_only_current_files_are_written(tmp_path: Path) -> None:
    text = "pstraining/runtime:0.1.0\n"
    for name in ("README.md", "docs/a.md", "docs/project/benchmarks/b.md", "CHANGELOG.md", "examples/x/job.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    made = {tmp_path / "docs" / "a.md": "generated: pstraining/runtime:0.0.1\n"}
    found = {path.relative_to(tmp_path).as_posix(): new for path, new in version_text.versioned(tmp_path, made)}
    assert found == {
        "README.md": "pstraining/runtime:0.2.0\n",
        "docs/a.md": "generated: pstraining/runtime:0.2.0\n",
        "examples/x/job.yaml": "pstraining/runtime:0.2.0\n",
    }
