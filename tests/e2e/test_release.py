"""A release with its images: two builds are identical, and the release alone installs an operator."""

import json
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from hack.release import __main__ as release
from localcluster.images import image_repository
from tests.e2e.conftest import RELEASE_NAMESPACE, cluster_command
from tests.support.kube import Kube, wait_for
from tests.support.scripted_program import Puppet
from tests.support.soak_marks import in_all

pytestmark = [pytest.mark.cluster, pytest.mark.alone]
REGISTRY = image_repository("operator").removesuffix("/pstraining/operator")
"""The registry in the names of the images on the nodes."""


@in_all("tests/chart/test_release.py::test_one_commit_gives_one_release_byte_by_byte")  # gigabytes
def test_a_release_with_images_is_reproducible(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert release.main(["--uncommitted", "--out", str(tmp_path / name)]) == 0
    one, two = tmp_path / "one", tmp_path / "two"
    assert (one / "SHA256SUMS").read_bytes() == (two / "SHA256SUMS").read_bytes()
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=one, check=True)
    built = json.loads((one / "release.json").read_text())["images"]
    assert [image["name"] for image in built] == ["REGISTRY/pstraining/operator", "REGISTRY/pstraining/runtime"]
    for image in built:
        with tarfile.open(one / image["archive"]) as archive:
            archive.getmember(f"blobs/{image['digest'].replace(':', '/')}")
    assert f"image: {built[0]['name']}@{built[0]['digest']}\n" in (one / "install.yaml").read_text()


@in_all("tests/chart/test_release.py::test_install_yaml_is_what_the_chart_renders")  # needs the whole cluster
def test_install_yaml_installs_the_operator(
    kube: Kube, crd: None, namespace: str, shared: Path, tmp_path: Path
) -> None:
    given = ["--without-images", "--uncommitted", "--registry", REGISTRY, "--out", str(tmp_path / "made")]
    assert release.main(given) == 0
    manifest = tmp_path / "made" / "install.yaml"
    place = ["--kubeconfig", kube.target.kubeconfig, "--context", kube.target.context]
    kubectl = [cluster_command("tool", "kubectl"), *place]
    # Other tests have applied the CRD under another field manager.
    subprocess.run([*kubectl, "apply", "--server-side", "--force-conflicts", "-f", str(manifest)], check=True)
    try:
        rollout = ["rollout", "status", "deployment/pstraining-operator", "--timeout=120s"]
        subprocess.run([*kubectl, "-n", RELEASE_NAMESPACE, *rollout], check=True)
        puppet = Puppet.make(kube, namespace, "job", shared)
        puppet.wait_phase("Running")
        puppet.exit("chief-0", 0)
        puppet.wait_phase("Succeeded")
    finally:
        installed = [o for o in yaml.safe_load_all(manifest.read_text()) if o["kind"] != "CustomResourceDefinition"]
        left = yaml.safe_dump_all(installed)
        subprocess.run([*kubectl, "delete", "--wait", "-f", "-"], input=left, text=True, check=True)
    wait_for(lambda: kube.get("Namespace", "", RELEASE_NAMESPACE) is None, "the namespace is gone", 120)
