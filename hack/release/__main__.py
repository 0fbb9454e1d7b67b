"""Build a release into a folder: `make release`.

All artefacts are built from the commit, with its time: the same commit results in the same bytes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hack.release import chart, images, plugin, sbom
from hack.release.archive import sha256
from hack.release.source import ReleaseError, Source, stage
from hack.test_cluster import ROOT
from localcluster.errors import ClusterError
from localcluster.layout import read_layout
from localcluster.progress import Progress
from localcluster.tools import Toolbox

REGISTRY = "REGISTRY"
"""Placeholder of the registry: no cluster can pull such a name, because of its capital letters."""
DOWNLOADS = "https://DOWNLOADS"
LOCKS = ("operator", "runtime-cpu", "cli")
"""The locks of a release's artefacts."""


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m hack.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "release", help="folder (default build/release)")
    parser.add_argument("--registry", default=REGISTRY, help="where you push the images, such as ghcr.io/me")
    parser.add_argument("--downloads", default=DOWNLOADS, help="URL of the folder that serves the plugin's archive")
    parser.add_argument("--without-images", action="store_true", help="name the operator's image by its tag")
    parser.add_argument("--uncommitted", action="store_true", help="accept files that differ from the commit")
    return parser.parse_args(arguments)


def python_packages(source: Source, folder: Path) -> Path:
    """Build the source distribution and the wheel, and return the wheel's path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(source.epoch)}
    done = subprocess.run(command, cwd=source.root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"hatchling: {done.stderr.strip()}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def helm() -> str:
    """Return the path of helm, from $HELM or built."""
    if given := os.environ.get("HELM"):
        return given
    toolbox = Toolbox(read_layout(os.environ), Progress())
    toolbox.ensure(["helm"])
    return str(toolbox.binary("helm"))


def make(source: Source, folder: Path, given: argparse.Namespace) -> None:
    """Write all artefacts into an empty folder."""
    wheel = python_packages(source, folder)
    repository = "localhost" if given.registry == REGISTRY else given.registry
    built = () if given.without_images else images.build(source, folder / "images", repository)
    digests = {image.target: image.digest for image in built}
    packed = chart.package(source, folder, digests.get("operator", ""))
    manifest = chart.install_manifest(helm(), packed, given.registry, source.version)
    (folder / "install.yaml").write_text(manifest, encoding="utf-8")
    archive = plugin.archive(source, wheel, folder)
    (folder / "pstraining.yaml").write_text(plugin.manifest(archive, source.version, given.downloads), "utf-8")
    sbom.write(folder / "sbom", source.root, LOCKS)
    listed = [
        {"name": f"{given.registry}/pstraining/{i.target}", "digest": i.digest, "archive": f"images/{i.archive.name}"}
        for i in built
    ]
    about = {"version": source.version, "commit": source.commit, "time": source.epoch, "images": listed}
    (folder / "release.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = "".join(f"{sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in files)
    (folder / "SHA256SUMS").write_text(sums, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the release, and return the exit status."""
    given = options(arguments)
    target: Path = given.out.absolute()
    if target.exists() and not (target / "release.json").exists() and any(target.iterdir()):
        print(f"error: {target} holds files that are no release: name another folder with --out", file=sys.stderr)
        return 1
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with tempfile.TemporaryDirectory(prefix="pstraining-release-") as folder:
            make(stage(ROOT, Path(folder) / "source", uncommitted=given.uncommitted), partial, given)
    except (ReleaseError, ClusterError, subprocess.CalledProcessError) as error:
        shutil.rmtree(partial)
        print(f"error: {error}", file=sys.stderr)
        return 1
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    print(f"the release is in {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
