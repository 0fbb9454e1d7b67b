"""Two runs of `make release` give the same bytes, and the release installs without the checkout."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.release import __main__ as release
from hack.release import chart, sbom
from hack.release.source import FOLDERS, TOPS, ReleaseError, stage
from pstraining import __version__
from tests.support.soak_marks import ALL, in_all

from .conftest import KUBERNETES, NAMESPACE, REPOSITORY, ROOT, Helm, Render

OPTIONS = ("--without-images", "--downloads", "https://example.org/files")


@contextmanager
def machine(umask: int, zone: str) -> Iterator[None]:
    """Use another user's settings."""
    before, old = os.environ.get("TZ"), os.umask(umask)
    os.environ["TZ"] = zone
    time.tzset()
    try:
        yield
    finally:
        os.umask(old)
        os.environ.pop("TZ")
        os.environ.update({"TZ": before} if before is not None else {})
        time.tzset()


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with a release's files, because the tests' own folder may be no checkout, or unreadable for
    git.
    """
    folder = tmp_path_factory.mktemp("repo")
    without = shutil.ignore_patterns("__pycache__")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=without)
    for name in TOPS:
        shutil.copyfile(ROOT / name, folder / name)
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "--all"), (*author, "commit", "-q", "-m", "all")):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def releases(repo: Path, tmp_path_factory: pytest.TempPathFactory, helm: Helm) -> tuple[Path, Path]:
    """Build two releases with different settings; in `make test` without the lists of packages, which cost most of the
    time.
    """
    folder = tmp_path_factory.mktemp("releases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "ROOT", repo)
        patch.setenv("HELM", helm.binary)
        if not ALL:
            patch.setattr(sbom, "write", lambda *_: None)
        for name, umask, zone in (("one", 0o022, "UTC"), ("two/below", 0o077, "Asia/Tokyo")):
            with machine(umask, zone):
                assert release.main([*OPTIONS, "--out", str(folder / name)]) == 0
    return folder / "one", folder / "two" / "below"


@pytest.fixture(scope="module")
def made(releases: tuple[Path, Path]) -> Path:
    return releases[0]


def test_one_commit_gives_one_release_byte_by_byte(releases: tuple[Path, Path]) -> None:
    one, two = map(contents, releases)
    assert one.keys() == two.keys()
    assert not [name for name in one if one[name] != two[name]]


def test_every_file_is_listed_with_its_hash(made: Path) -> None:
    files = contents(made)
    listed = dict(line.split("  ")[::-1] for line in files.pop("SHA256SUMS").decode().splitlines())
    assert listed == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    about = json.loads(files["release.json"])
    assert (about["version"], about["images"]) == (__version__, [])
    assert re.fullmatch(r"[0-9a-f]{40}", about["commit"])


def test_the_wheel_runs_without_the_checkout(made: Path, tmp_path: Path) -> None:
    """The wheel runs without the checkout, in a separate environment; its dependencies are those of the tests."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (wheel,) = made.glob("*.whl")
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def output(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert output(str(python), "-c", "import pstraining; print(pstraining.__file__)").startswith(str(site))
    program = str(python.with_name("kubectl-pstraining"))
    assert __version__ in output(program, "version", "--client")
    output(program, "validate", "-f", str(ROOT / "examples" / "digits" / "job.yaml"))


def test_the_chart_is_the_checkouts(made: Path, helm: Helm, render: Render) -> None:
    packed = str(made / f"pstraining-{__version__}.tgz")
    assert helm("lint", "--strict", packed).returncode == 0
    where = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES)
    refused = helm("template", "pstraining", packed, *where)
    assert "image.repository is not set" in refused.stderr
    done = helm("template", "pstraining", packed, *where, "--set", f"image.repository={REPOSITORY}")
    assert tuple(found for found in yaml.safe_load_all(done.stdout) if found) == render().objects


def without_helm(found: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(found)
    for pattern in (r'"helm.sh/[\w-]+": "[^"]*"', r'"app.kubernetes.io/managed-by": "Helm"'):
        text = re.sub(rf", {pattern}|{pattern}, |{pattern}", "", text)
    return dict(json.loads(text.replace('"annotations": {}, ', "").replace(', "annotations": {}', "")))


def test_install_yaml_is_what_the_chart_renders(made: Path, render: Render) -> None:
    """install.yaml has the objects that the chart renders, with the namespace and without Helm's labels."""
    namespace, *objects = yaml.safe_load_all((made / "install.yaml").read_text(encoding="utf-8"))
    assert (namespace["kind"], namespace["metadata"]["name"]) == ("Namespace", NAMESPACE)
    image = f"REGISTRY/pstraining/operator:{__version__}"
    expected = [
        without_helm(found) for found in render({"image": {"repository": "REGISTRY/pstraining/operator"}}).objects
    ]
    assert objects == expected
    (deployment,) = (found for found in objects if found["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == image
    assert "helm" not in json.dumps([namespace, *objects]).lower()


def test_the_operator_is_named_by_its_digest(repo: Path, tmp_path: Path, helm: Helm) -> None:
    source, digest = stage(repo, tmp_path / "source", uncommitted=False), "sha256:" + "1" * 64
    packed = chart.package(source, tmp_path, digest)
    manifest = chart.install_manifest(helm.binary, packed, "ghcr.io/me", source.version)
    assert f"image: ghcr.io/me/pstraining/operator@{digest}\n" in manifest


def test_a_modified_checkout_is_rejected(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path / "repo")], check=True)
    (tmp_path / "repo" / "pyproject.toml").write_text('version = "1.0.0"\n')
    with pytest.raises(ReleaseError, match=r"1 files differ from the commit, such as pyproject.toml"):
        stage(tmp_path / "repo", tmp_path / "source", uncommitted=False)


def test_krew_gets_an_archive_that_its_manifest_names(made: Path, tmp_path: Path) -> None:
    """The archive for krew has the name and hash of its manifest, by the rules of krew's internal/index/validation; its
    launcher runs the installed plugin.
    """
    manifest = yaml.safe_load((made / "pstraining.yaml").read_text(encoding="utf-8"))
    assert (manifest["apiVersion"], manifest["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert manifest["metadata"]["name"] == "pstraining"
    assert manifest["spec"]["version"] == f"v{__version__}"
    assert "\n" not in manifest["spec"]["shortDescription"]
    (platform,) = manifest["spec"]["platforms"]
    assert {expression["key"] for expression in platform["selector"]["matchExpressions"]} <= {"os", "arch"}
    packed = made / platform["uri"].removeprefix("https://example.org/files/")
    assert platform["sha256"] == hashlib.sha256(packed.read_bytes()).hexdigest()
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    program = tmp_path / "venv" / "bin" / "kubectl-pstraining"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "called: $*"\n')
    program.chmod(0o755)
    program.with_name("python").symlink_to(sys.executable)
    (tmp_path / "venv" / "complete").write_text(os.path.realpath(sys.executable), "utf-8")
    link = tmp_path / "kubectl-pstraining-of-krew"
    link.symlink_to(tmp_path / platform["bin"])
    done = subprocess.run([link, "status", "-A"], capture_output=True, text=True, check=True)
    assert done.stdout == "called: status -A\n"


@in_all("tests/chart/test_release.py::test_krew_gets_an_archive_that_its_manifest_names")  # installs packages
def test_the_first_call_installs_the_plugin(made: Path, tmp_path: Path) -> None:
    (packed,) = made.glob("kubectl-pstraining-*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = [str(tmp_path / "kubectl-pstraining"), "version", "--client"]
    for said in ("installing the plugin's Python packages", ""):
        done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert __version__ in done.stdout
        assert said in done.stderr
        assert bool(said) == bool(done.stderr)
