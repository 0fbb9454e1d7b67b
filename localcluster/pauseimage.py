"""The pause image, written without an image builder: one static program in one layer."""

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from pathlib import Path

from localcluster.config import PAUSE_IMAGE
from localcluster.layout import Layout

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def ensure_archive(layout: Layout, program: Path) -> Path:
    """Return the image's archive in the cache, which is named after the program's folder (its key)."""
    archive = layout.cache / "images" / f"{program.parent.name}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        # Nodes start at the same time: each writes a file of its own, and the last one replaces equal bytes.
        with tempfile.NamedTemporaryFile(dir=archive.parent, prefix=f".{archive.name}.", delete=False) as fresh:
            fresh.write(build_archive(program.read_bytes(), PAUSE_IMAGE))
        Path(fresh.name).rename(archive)
    return archive


def build_archive(program: bytes, name: str) -> bytes:
    """Return an archive in docker's format with one program as /pause."""
    layer = tar_of({"pause": program}, mode=0o755)
    settings = json.dumps(
        {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {"config.json": settings, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    return tar_of(files)


def tar_of(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    """Return a tar file with fixed times: equal content results in equal bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = mode
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()
