"""The buildah commands that we use, with a storage of our own in the cache.

Own storage, own registry and signature settings: the user's images and configuration are neither
used nor touched, and a short name can only mean what is built here.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from hack.cluster.errors import ClusterError
from hack.cluster.layout import Layout
from hack.cluster.procs import boot_id
from hack.cluster.shell import run, run_logged

KEY_LABEL = "pstraining.local/base-key"


class Buildah:
    """Runs buildah on the cache's storage."""

    def __init__(self, layout: Layout) -> None:
        self.folder = layout.cache / "buildah"

    def label(self, image: str) -> str:
        """The base key that an image was labelled with; empty when there is no such image."""
        try:
            text = run([*self._base(), "inspect", "--type", "image", image])
        except ClusterError:
            return ""
        labels = json.loads(text).get("OCIv1", {}).get("config", {}).get("Labels") or {}
        return str(labels.get(KEY_LABEL, ""))

    def commit_root(self, root: Path, image: str, key: str) -> None:
        """Commit a folder as an image."""
        base = self._base()
        container = run([*base, "from", "scratch"]).strip()
        try:
            run([*base, "add", "--quiet", container, str(root), "/"], timeout=600)
            run([*base, "config", "--cmd", "python3", "--label", f"{KEY_LABEL}={key}", container])
            path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            run([*base, "config", "--env", path, "--env", "LANG=C.UTF-8", container])
            run([*base, "commit", "--quiet", container, image], timeout=600)
        finally:
            run([*base, "rm", container], check=False)

    def build(
        self,
        context: Path,
        *,
        target: str,
        name: str,
        mounts: Sequence[tuple[Path, Path]],
        log: Path,
        on_line: Callable[[str], None],
    ) -> None:
        """Build a target of the context's Dockerfile with cached layers."""
        args = [*self._base(), "bud", "--isolation", "chroot", "--network", "host", "--pull-never", "--layers"]
        for source, place in mounts:
            args += ["-v", f"{source}:{place}:ro"]
        args += ["--target", target, "-t", name, "-f", str(context / "Dockerfile"), str(context)]
        run_logged(args, log, what=f"building image {target}", env=self._env(), on_line=on_line)

    def push(self, name: str, folder: Path, log: Path) -> str:
        """Write an image into an OCI layout of its own; returns the manifest's digest.

        Layers stay uncompressed: packing them costs more than the disk that it saves. Blobs
        that are there already are not written again; those no longer needed are removed.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "index.json").unlink(missing_ok=True)
        args = [*self._base(), "push", "--disable-compression", "--quiet", name, f"oci:{folder}:latest"]
        run_logged(args, log, what=f"storing image {name}", env=self._env())
        manifests = json.loads((folder / "index.json").read_text(encoding="utf-8"))["manifests"]
        digest = str(manifests[0]["digest"])
        keep = {digest, *referenced(folder, digest)}
        for blob in (folder / "blobs" / "sha256").iterdir():
            if f"sha256:{blob.name}" not in keep:
                blob.unlink()
        return digest

    def _base(self) -> list[str]:
        # Mount counts are only true for one boot.
        state = self.folder / f"run-{boot_id()[:8]}"
        for old in self.folder.glob("run-*"):
            if old != state:
                shutil.rmtree(old, ignore_errors=True)
        state.mkdir(parents=True, exist_ok=True)
        self._settings()
        return ["buildah", "--root", str(self.folder / "root"), "--runroot", str(state)] + [
            "--storage-driver",
            self._driver(),
            "--registries-conf",
            str(self.folder / "registries.conf"),
        ]

    def _settings(self) -> None:
        """Nothing is fetched (--pull-never), so a short name means the local image."""
        conf = self.folder / "registries.conf"
        if not conf.exists():
            conf.write_text('unqualified-search-registries = ["docker.io"]\n', encoding="utf-8")

    def _env(self) -> dict[str, str]:
        return {"BUILDAH_LAYERS": "true", "TMPDIR": os.environ.get("TMPDIR", "/var/tmp")}

    def _driver(self) -> str:
        root = self.folder / "root"
        root.mkdir(parents=True, exist_ok=True)
        kind = run(["stat", "-f", "-c", "%T", str(root)], check=False).strip()
        return "vfs" if kind in ("overlayfs", "overlay") else "overlay"


def referenced(folder: Path, digest: str) -> list[str]:
    """The digests that a manifest names: configuration first, then layers."""
    text = (folder / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_text(encoding="utf-8")
    manifest = json.loads(text)
    return [str(manifest["config"]["digest"]), *(str(layer["digest"]) for layer in manifest["layers"])]
