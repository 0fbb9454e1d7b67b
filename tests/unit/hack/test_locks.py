"""Each lock has every package that pyproject.toml requires, in an allowed version."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hack.install import EXTRAS, LOCK, ROOT

LOCKS, DEVELOPMENT, BUILD = LOCK.parent, LOCK.stem, "build"
IMAGES = {"operator": ("operator",)} | {name: (name, "examples") for name in ("runtime-cpu", "runtime-gpu")}
"""The extras of pyproject.toml by lock, as in `make lock` and the Dockerfile."""
LOCKED = IMAGES | {"cli": ("cli",)}
"""The same with the plugin's lock, which a release packs."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINNED = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?P<rest>.*(?:\n    .*)*)", re.MULTILINE)


def wanted(name: str) -> list[str]:
    """Return the requirements of a lock."""
    if name == BUILD:
        return list(PROJECT["build-system"]["requires"])
    project = PROJECT["project"]
    extras = EXTRAS if name == DEVELOPMENT else LOCKED[name]
    return [*project.get("dependencies", ()), *(r for extra in extras for r in project["optional-dependencies"][extra])]


@pytest.mark.parametrize("name", [*LOCKED, BUILD, DEVELOPMENT])
def test_a_lock_satisfies_pyproject(name: str) -> None:
    text = (LOCKS / f"{name}.txt").read_text(encoding="utf-8")
    pinned = {canonicalize_name(found["name"]): found for found in PINNED.finditer(text)}
    for requirement in map(Requirement, wanted(name)):
        found = pinned.get(canonicalize_name(requirement.name))
        assert found, f"{requirement.name} is not in {name}.txt: run `make lock`"
        assert requirement.specifier.contains(found["version"]), f"{found[0]}: run `make lock`"
    for found in pinned.values():
        assert ("--hash=sha256:" in found["rest"]) == (name != DEVELOPMENT), found["name"]


def test_an_image_has_the_packages_of_the_dockerfile() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert set(re.findall(r"hack/locks/([\w-]+)\.txt", dockerfile)) == {*IMAGES, BUILD}
    installs = re.findall(r"pip install .*-r .*", dockerfile)
    assert installs
    assert all("--require-hashes" in command for command in installs)


def test_the_image_for_gpus_has_the_libraries_of_its_tensorflow() -> None:
    """The image for GPUs has the libraries of its TensorFlow, and differs from the other image in nothing else."""
    gpu, cpu = (
        set(PINNED.findall((LOCKS / f"runtime-{kind}.txt").read_text(encoding="utf-8"))) for kind in ("gpu", "cpu")
    )
    names = {name for name, *_ in gpu}
    assert {"tensorflow", "nvidia-cudnn-cu12", "nvidia-cublas-cu12", "nvidia-nccl-cu12"} <= names
    assert not [name for name in names if re.search(r"-cu(?!12)\d+$", name)], "install.md names the driver of CUDA 12"
    assert {(name, version) for name, version, *_ in cpu if name != "tensorflow-cpu"} <= {
        (name, version) for name, version, *_ in gpu
    }


def test_images_and_releases_build_the_wheel_with_one_version() -> None:
    build, development = (
        {found["name"]: found["version"] for found in PINNED.finditer((LOCKS / f"{name}.txt").read_text("utf-8"))}
        for name in (BUILD, DEVELOPMENT)
    )
    assert build["hatchling"] == development["hatchling"]
