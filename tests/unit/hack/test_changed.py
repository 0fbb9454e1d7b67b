"""The selection of `make test-changed`: the layers, and the files of slow layers, that a change can have broken."""

import subprocess
from pathlib import Path

import pytest

from hack import changed
from hack.changed import Plan, Repository
from hack.layers import names

RING = "operator/pstraining/runtime/allreduce/ring.py"
FILES = (
    RING,
    "operator/pstraining/api/models.py",
    "operator/pstraining/launcher/__init__.py",
    "operator/pstraining/launcher/serve.py",
    "hack/site.py",
    "tests/support/rig.py",
    "tests/unit/runtime/test_ring.py",
    "tests/property/test_rings.py",
    "tests/training/conftest.py",
    "tests/training/test_rig.py",
    "tests/training/test_other.py",
    "tests/e2e/test_jobs.py",
)
USERS = {
    "pstraining.runtime.allreduce.ring": {
        "tests.support.rig",
        "tests.unit.runtime.test_ring",
        "tests.property.test_rings",
    },
    "tests.support.rig": {"tests.training.test_rig"},
    "pstraining.api.models": {"tests.e2e.test_jobs"},
    "pstraining.launcher": {"tests.training.test_other"},
    "hack.site": {"tests.e2e.test_jobs"},
}


def planned(*changes: str) -> Plan:
    modules = {changed.module_of(file) for file in FILES}
    users = {module: frozenset(USERS.get(module, ())) for module in modules}
    return changed.plan(changes, Repository(frozenset(FILES), users))


def test_no_change_selects_no_test() -> None:
    assert planned().layers() == []
    assert "nothing to run" in planned().text()


def test_a_module_selects_the_files_that_import_it() -> None:
    plan = planned(RING)
    assert [layer.name for layer in plan.layers()] == ["lint", "drift", "unit", "property", "training"]
    assert plan.files["property"] == {"tests/property/test_rings.py"}
    assert plan.files["training"] == {"tests/training/test_rig.py"}
    assert "only inside a pod" in plan.text()


def test_a_file_selects_its_readers() -> None:
    assert planned("operator/pstraining/launcher/serve.py").files == {"training": {"tests/training/test_other.py"}}
    assert planned("hack/site.toml").files == {"e2e": {"tests/e2e/test_jobs.py"}}
    assert planned("tests/training/data/x.csv").files["training"] == {
        "tests/training/test_rig.py",
        "tests/training/test_other.py",
    }


def test_a_conftest_selects_all_tests_of_its_folder() -> None:
    plan = planned("tests/training/conftest.py")
    assert plan.files["training"] == {"tests/training/test_rig.py", "tests/training/test_other.py"}


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ("docs/operators/install.md", ["lint", "drift", "unit"]),
        ("charts/pstraining/values.yaml", ["lint", "drift", "unit", "chart", "controlplane"]),
        ("Dockerfile", ["lint", "drift", "e2e"]),
        ("operator/pstraining/api/models.py", ["lint", "drift", "unit", "e2e"]),
        ("hack/site.py", ["lint", "drift", "unit", "e2e"]),
        ("hack/gone.py", ["lint", "drift", "unit"]),
        ("elsewhere/new.py", list(names())),
        ("pyproject.toml", list(names())),
        ("something/else.bin", list(names())),
    ],
)
def test_layers_of_a_change(change: str, layers: list[str]) -> None:
    assert [layer.name for layer in planned(change).layers()] == layers


def test_an_unknown_file_is_reported() -> None:
    assert (
        "every layer is run because of something/else.bin, of which it is not known what uses it"
        in planned("something/else.bin").text()
    )


def test_changes_are_those_since_the_revision_and_the_new_files(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=nn", "-c", "user.email=nn@example.com"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    for name in ("same.py", "committed.py", "edited.py"):
        (tmp_path / name).write_text("1\n")
    git("add", ".")
    git("commit", "-qm", "first")
    git("tag", "first")
    (tmp_path / "committed.py").write_text("2\n")
    git("commit", "-qam", "second")
    (tmp_path / "edited.py").write_text("2\n")
    (tmp_path / "new.py").write_text("1\n")
    assert changed.changed_files("first", tmp_path) == ["committed.py", "edited.py", "new.py"]
    assert changed.changed_files("HEAD", tmp_path) == ["edited.py", "new.py"]
    with pytest.raises(changed.ChangeError, match="merge-base"):
        changed.changed_files("no-such-revision", tmp_path)
