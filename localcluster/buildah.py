"""The buildah commands of this package, with a separate storage in the cache.

Storage and registry settings are separate: the user's images and configuration are neither read
nor changed. A short name always means an image that was built here.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.layerstore import LayerStore
from localcluster.layout import Layout
from localcluster.procs import boot_id
from localcluster.shell import run, run_logged

KEY_LABEL = "pstraining.local/base-key"


class Buildah:
    """Runs buildah on the cache's storage."""

    def __init__(self, layout: Layout) -> None:
        self.folder = layout.cache / "buildah"

    def label(self, image: str) -> str:
        """Return the base key in an image's label; empty without the image or the label."""
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
        cached: bool = True,
    ) -> None:
        """Build a target of the context's Dockerfile, with cached layers or without any.

        All files get the same time, so that equal files result in equal images.
        """
        layers = ["--layers"] if cached else ["--no-cache", "--layers=false"]
        args = [*self._base(), "bud", "--isolation", "chroot", "--network", "host", "--pull-never", *layers]
        args += ["--timestamp", "0"]
        for source, place in mounts:
            args += ["-v", f"{source}:{place}:ro"]
        args += ["--target", target, "-t", name, "-f", str(context / "Dockerfile"), str(context)]
        run_logged(args, log, what=f"building image {target}", env=self._env(), on_line=on_line)

    def clean(self) -> None:
        """Remove the working containers of interrupted builds; the caller holds the lock."""
        run([*self._base(), "rm", "--all"], check=False)

    def store(self) -> LayerStore:
        """Return a view of the storage, from which images are loaded."""
        return LayerStore(self.folder / "root", self._driver())

    def _base(self) -> list[str]:
        # Mount counts are valid for one boot only.
        state = self.folder / f"run-{boot_id()[:8]}"
        for old in self.folder.glob("run-*"):
            if old != state:
                shutil.rmtree(old, ignore_errors=True)
        state.mkdir(parents=True, exist_ok=True)
        self._settings()
        folders = ["--root", str(self.folder / "root"), "--runroot", str(state)]
        registries = ["--registries-conf", str(self.folder / "registries.conf")]
        return ["buildah", *folders, "--storage-driver", self._driver(), *registries]

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
