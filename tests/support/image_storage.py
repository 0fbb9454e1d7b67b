"""A folder as containers/storage keeps images, with one small image."""

import base64
import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

from localcluster.layerstore import LayerStore, big_data_name
from localcluster.pauseimage import tar_of

NAME = "x:1"


def sha(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def split(tar: bytes) -> bytes:
    """Return how containers/storage describes a split tar file."""
    lines, start = [], 0
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            head = tar[start : member.offset_data]
            lines.append({"type": 2, "payload": base64.b64encode(head).decode()})
            lines.append({"type": 1, "name": member.name, "size": member.size, "payload": "crc"})
            start = member.offset_data + member.size
    lines.append({"type": 2, "payload": base64.b64encode(tar[start:]).decode()})
    return gzip.compress("\n".join(map(json.dumps, lines)).encode())


def image_storage(root: Path) -> LayerStore:
    """Create a storage with one image, NAME, of two layers."""
    layers = [{"bin/a": b"A" * 3000, "empty": b""}, {"etc/b": b"B"}]
    entries, parent = [], None
    for index, files in enumerate(layers):
        tar = tar_of(files)
        name = f"layer{index}"
        for path, content in files.items():
            target = root / "overlay" / name / "diff" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        folder = root / "overlay-layers"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.tar-split.gz").write_bytes(split(tar))
        entry = {"id": name, "diff-digest": sha(tar), "diff-size": len(tar)}
        entries.append({**entry, "parent": parent} if parent else entry)
        parent = name
    config = b"{}"
    manifest = json.dumps(
        {"config": {"digest": sha(config)}, "layers": [{"digest": entry["diff-digest"]} for entry in entries]}
    ).encode()
    folder = root / "overlay-images" / "image"
    folder.mkdir(parents=True)
    (folder / "manifest").write_bytes(manifest)
    (folder / big_data_name(sha(config))).write_bytes(config)
    image = {"id": "image", "digest": sha(manifest), "names": ["x:1"], "layer": parent}
    (root / "overlay-images" / "images.json").write_text(json.dumps([{"id": "other"}, image]))
    (root / "overlay-layers" / "layers.json").write_text(json.dumps(entries))
    return LayerStore(root, "overlay")
