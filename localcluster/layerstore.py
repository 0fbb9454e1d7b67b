"""Reads images directly from buildah's storage.

``buildah push`` packs every layer again (half a minute for TensorFlow), even after a change of one
small layer. The storage has the recipe of each layer's exact tar file (tar-split) beside its
unpacked files. With it, only the layers that a node lacks are streamed to the node.

The format is that of containers/storage: ``<driver>-images`` and ``<driver>-layers``.
"""

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.errors import ClusterError

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
FILE, SEGMENT = 1, 2
CHUNK = 1 << 20


@dataclass(frozen=True)
class Layer:
    """One layer: the digest and size of its tar, and its id in the storage."""

    digest: str
    size: int
    id: str


@dataclass(frozen=True)
class StoredImage:
    """One image: its manifest and configuration as bytes, its layers from the bottom."""

    digest: str
    manifest: bytes
    config_digest: str
    config: bytes
    layers: tuple[Layer, ...]


class LayerStore:
    """Reads a containers/storage folder; never writes to it."""

    def __init__(self, root: Path, driver: str) -> None:
        self.root = root
        self.driver = driver

    def find(self, name: str) -> StoredImage:
        """Return the image of this name.

        Raises:
            ClusterError: the image was not built, or the storage is inconsistent or unreadable.
        """
        for entry in self._read("images"):
            if name in (entry.get("names") or []):
                break
        else:
            raise ClusterError(f"image {name} was not built")
        folder = self.root / f"{self.driver}-images" / entry["id"]
        manifest = (folder / "manifest").read_bytes()
        body = json.loads(manifest)
        config_digest = str(body["config"]["digest"])
        layers = self._chain(str(entry["layer"]))
        if [layer.digest for layer in layers] != [str(layer["digest"]) for layer in body["layers"]]:
            raise ClusterError(f"image {name}: its manifest does not name the stored layers")
        return StoredImage(
            digest=str(entry["digest"]),
            manifest=manifest,
            config_digest=config_digest,
            config=(folder / big_data_name(config_digest)).read_bytes(),
            layers=layers,
        )

    def stream(self, layer: Layer) -> Iterator[bytes]:
        """Yield the layer's tar file in pieces.

        Raises:
            ClusterError: a file is shorter than its entry in the recipe.
        """
        files = self._files(layer.id)
        recipe = self.root / f"{self.driver}-layers" / f"{layer.id}.tar-split.gz"
        with gzip.open(recipe, "rt", encoding="utf-8") as lines:
            for line in lines:
                entry = json.loads(line)
                if entry["type"] == SEGMENT:
                    yield base64.b64decode(entry["payload"] or "")
                elif entry["type"] == FILE and entry.get("size"):
                    yield from _content(files / entry_name(entry), int(entry["size"]))

    def _chain(self, top: str) -> tuple[Layer, ...]:
        known = {entry["id"]: entry for entry in self._read("layers")}
        found: list[Layer] = []
        current: str | None = top
        while current:
            entry = known[current]
            found.append(Layer(digest=str(entry["diff-digest"]), size=int(entry["diff-size"]), id=current))
            current = entry.get("parent")
        return tuple(reversed(found))

    def _read(self, kind: str) -> list[dict[str, Any]]:
        path = self.root / f"{self.driver}-{kind}" / f"{kind}.json"
        try:
            return list(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ClusterError(f"cannot read buildah's storage: {error}") from error

    def _files(self, layer: str) -> Path:
        if self.driver == "vfs":
            return self.root / "vfs" / "dir" / layer
        return self.root / "overlay" / layer / "diff"


def big_data_name(key: str) -> str:
    """Return the storage's file name for data with this key."""
    return "=" + base64.b64encode(key.encode()).decode().replace("/", "_")


def entry_name(entry: dict[str, Any]) -> str:
    """Return a file's name in a recipe, relative to the layer's folder."""
    raw = entry.get("name_raw")
    name = base64.b64decode(raw).decode("utf-8", "surrogateescape") if raw else str(entry["name"])
    return name.lstrip("/")


def _content(path: Path, size: int) -> Iterator[bytes]:
    left = size
    with path.open("rb") as stream:
        while left:
            chunk = stream.read(min(left, CHUNK))
            if not chunk:
                raise ClusterError(f"{path} is shorter than its entry in the layer's recipe")
            left -= len(chunk)
            yield chunk
