"""Renders the chart with helm: `render(values)` returns the objects, and `helm(*args)` runs the command.

`render` adds the only value without a default, image.repository.

The helm binary is $HELM, else the one that localcluster builds from its pinned module.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.builders import deep_merge

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "pstraining"
NAMESPACE = "pstraining-system"
REPOSITORY = "registry.example.org/pstraining/operator"
KUBERNETES = "1.34"
"""The Kubernetes version that helm assumes; a helm that is built from source assumes a very old one."""

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Helm:
    """Runs the helm command."""

    binary: str

    def __call__(self, *args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.binary, *args], input=stdin, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
        )


@dataclass(frozen=True)
class Rendered:
    """The objects of a release."""

    objects: tuple[Manifest, ...]

    def of_kind(self, kind: str) -> list[Manifest]:
        return [o for o in self.objects if o["kind"] == kind]

    def one(self, kind: str) -> Manifest:
        found = self.of_kind(kind)
        assert len(found) == 1, f"{kind}: {[o['metadata']['name'] for o in found]}"
        return found[0]

    def kinds(self) -> set[str]:
        return {o["kind"] for o in self.objects}


Render = Callable[..., Rendered]


@pytest.fixture(scope="session")
def helm() -> Helm:
    given = os.environ.get("HELM")
    if given:
        return Helm(given)
    found = subprocess.run(
        [sys.executable, "-m", "localcluster", "tool", "helm"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return Helm(found.stdout.strip())


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    @functools.cache
    def output(values: str, release: str, namespace: str) -> str:
        done = helm(
            *("template", release, str(CHART), "--namespace", namespace, "--kube-version", KUBERNETES, "--values", "-"),
            stdin=values,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def render(values: Manifest | None = None, *, release: str = "pstraining", namespace: str = NAMESPACE) -> Rendered:
        given = deep_merge({"image": {"repository": REPOSITORY}}, values or {})
        documents = yaml.load_all(output(json.dumps(given), release, namespace), Loader=yaml.CSafeLoader)
        return Rendered(tuple(o for o in documents if o))

    return render
