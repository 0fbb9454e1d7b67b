"""Builds the project's images without a container engine and without a registry.

debootstrap builds the base, and buildah the images from the repository's Dockerfile. Images are in
buildah's storage in the cache, from which ``load`` reads them. An image is built again only if its
key has changed, which covers every file of the build.
"""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster import pipconfig
from localcluster.baseimage import BASE_IMAGE, base_key, make_root
from localcluster.buildah import Buildah
from localcluster.errors import ClusterError
from localcluster.layout import Layout
from localcluster.progress import Progress

TARGETS = ("operator", "runtime")
BASE = "python"


@dataclass(frozen=True)
class Image:
    """A built image: its full name, the key of its inputs, and its manifest's digest."""

    name: str
    key: str
    digest: str


def project_version(pyproject: str) -> str:
    """Return the version in a pyproject.toml text.

    Raises:
        ClusterError: the text has no version.
    """
    found = re.search(r'^version\s*=\s*"([^"]+)"', pyproject, re.MULTILINE)
    if not found:
        raise ClusterError("pyproject.toml names no version")
    return found.group(1)


def image_repository(target: str) -> str:
    """Return the name of a target's image without its tag."""
    return f"docker.io/pstraining/{target}"


def image_name(target: str, version: str) -> str:
    """Return the full name of an image on the nodes."""
    return BASE_IMAGE if target == BASE else f"{image_repository(target)}:{version}"


def allowed_paths(dockerignore: str) -> list[str] | None:
    """Return the paths that a .dockerignore allows if it excludes all others; None for other files."""
    lines = [line.strip() for line in dockerignore.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines or lines[0] not in ("*", "**"):
        return None
    return [line[1:].rstrip("/") for line in lines if line.startswith("!")]


def context_files(repo: Path) -> list[Path]:
    """Return every file that a build may read, sorted.

    Some more files than the build reads are harmless: a change costs a lookup in buildah's layer cache.
    """
    ignore = repo / ".dockerignore"
    allowed = allowed_paths(ignore.read_text(encoding="utf-8")) if ignore.exists() else None
    tops = [repo / path for path in allowed] if allowed is not None else [repo]
    found = {repo / "Dockerfile", ignore}
    for top in tops:
        if top.is_file():
            found.add(top)
        for folder, subfolders, names in os.walk(top):
            hidden = {name for name in subfolders if name.startswith(".") or name == "__pycache__"}
            subfolders[:] = sorted(set(subfolders) - hidden)
            found.update(Path(folder) / name for name in names if not name.endswith(".pyc"))
    return sorted(path for path in found if path.is_file())


def image_key(repo: Path, target: str, files: Sequence[Path]) -> str:
    """Return a hash of the base, the target and every input file with its mode."""
    digest = hashlib.sha256(f"{base_key()} {target}".encode())
    for path in files:
        mode = path.stat().st_mode & 0o777  # the image has the file's mode
        digest.update(f"{path.relative_to(repo)}\0{mode}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


class ImageStore:
    """Builds images and records them."""

    def __init__(self, layout: Layout, progress: Progress) -> None:
        self.layout = layout
        self.progress = progress
        self.folder = layout.cache / "images"
        self.buildah = Buildah(layout)

    def name(self, target: str) -> str:
        """Return the full name of a target's image."""
        text = (self.layout.repo / "pyproject.toml").read_text(encoding="utf-8")
        return image_name(target, project_version(text))

    def ensure(self, targets: Sequence[str]) -> list[Image]:
        """Build changed images, and return all in the order of `targets`.

        Raises:
            ClusterError: a target is unknown, or a build failed.
        """
        unknown = sorted(set(targets) - {BASE, *TARGETS})
        if unknown:
            raise ClusterError(f"no image {', '.join(unknown)}; there are: {BASE}, {', '.join(TARGETS)}")
        known = [self._current(target) for target in targets]
        if all(known):
            # Without the lock: loading must not wait for another build.
            return [image for image in known if image is not None]
        with self._locked():
            return [self._current(target) or self._make(target) for target in targets]

    def _current(self, target: str) -> Image | None:
        """Return the image of the last build if its inputs are unchanged; else None."""
        image = self._read(target)
        if image is None or (image.key, image.name) != (self._key(target), self.name(target)):
            return None
        try:
            return image if self.buildah.store().find(image.name).digest == image.digest else None
        except ClusterError:
            return None

    def _key(self, target: str) -> str:
        repo = self.layout.repo
        return base_key() if target == BASE else image_key(repo, target, context_files(repo))

    def _make(self, target: str) -> Image:
        # The key comes first: the next call builds again if a file changes during the build.
        key, name = self._key(target), self.name(target)
        self.buildah.clean()
        self._ensure_base()
        if target != BASE:
            self._build(target, name)
        image = Image(name=name, key=key, digest=self.buildah.store().find(name).digest)
        fresh = self.folder / f".{target}.json.new"
        fresh.write_text(json.dumps(asdict(image), indent=1), encoding="utf-8")
        fresh.rename(self.folder / f"{target}.json")
        return image

    def _ensure_base(self) -> None:
        key = base_key()
        if self.buildah.label(BASE_IMAGE) == key:
            return
        with self.progress.step("making the base image (debootstrap)") as step:
            root = self.layout.cache / "images" / "base.work"
            with make_root(root, self.layout.cache / "logs" / "debootstrap.log", step):
                step.detail = "committing"
                self.buildah.commit_root(root, BASE_IMAGE, key)

    def _build(self, target: str, name: str) -> None:
        settings = pipconfig.read_settings(os.environ)
        conf = self.folder / "pip.conf"
        conf.write_text(pipconfig.render(settings), encoding="utf-8")
        log = self.layout.cache / "logs" / f"image-{target}.log"
        with self.progress.step(f"building image {target}") as step:

            def on_line(line: str) -> None:
                if re.match(r"(\[\d+/\d+\] )?STEP ", line):
                    step.detail = line.strip()[:70]

            self.buildah.build(
                self.layout.repo,
                target=target,
                name=name,
                mounts=pipconfig.mounts(settings, conf),
                log=log,
                on_line=on_line,
            )

    def _read(self, target: str) -> Image | None:
        try:
            return Image(**json.loads((self.folder / f"{target}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield
