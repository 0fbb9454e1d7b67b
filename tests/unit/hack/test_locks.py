"""The locks: each has every package that pyproject.toml asks for, in a version that it allows."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hack.install import EXTRAS, LOCK, ROOT

LOCKS, DEVELOPMENT, BUILD = LOCK.parent, LOCK.stem, "build"
IMAGES = {"operator": ("operator",), "runtime": ("runtime", "examples"), "runtime-cpu": ("runtime-cpu", "examples")}
"""Extras of pyproject.toml by lock, as `make lock` and the Dockerfile have them."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINNED = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?P<rest>.*(?:\n    .*)*)", re.MULTILINE)


def wanted(name: str) -> list[str]:
    """What a lock is made of."""
    if name == BUILD:
        return list(PROJECT["build-system"]["requires"])
    project = PROJECT["project"]
    extras = EXTRAS if name == DEVELOPMENT else IMAGES[name]
    return [*project.get("dependencies", ()), *(r for extra in extras for r in project["optional-dependencies"][extra])]


@pytest.mark.parametrize("name", [*IMAGES, BUILD, DEVELOPMENT])
def test_a_lock_is_what_pyproject_asks_for(name: str) -> None:
    text = (LOCKS / f"{name}.txt").read_text(encoding="utf-8")
    pinned = {canonicalize_name(found["name"]): found for found in PINNED.finditer(text)}
    for requirement in map(Requirement, wanted(name)):
        found = pinned.get(canonicalize_name(requirement.name))
        assert found, f"{requirement.name} is not in {name}.txt: run `make lock`"
        assert requirement.specifier.contains(found["version"]), f"{found[0]}: run `make lock`"
    for found in pinned.values():
        assert ("--hash=sha256:" in found["rest"]) == (name != DEVELOPMENT), found["name"]


def test_an_image_has_what_the_dockerfile_says() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    named = set(re.findall(r"hack/locks/([\w-]+)\.txt", dockerfile)) | set(
        re.findall(r"RUNTIME_LOCK=([\w-]+)", dockerfile)
    )
    assert named <= {*IMAGES, BUILD}
    installs = re.findall(r"pip install .*-r .*", dockerfile)
    assert installs
    assert all("--require-hashes" in command for command in installs)
