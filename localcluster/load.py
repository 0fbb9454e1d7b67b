"""Loads images into the containerd of every node, in parallel.

A node that has the image's digest is skipped, and a node with some of its layers receives only the
others. ``down`` keeps the nodes' stores, so a later start loads no image.
"""

import json
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

from localcluster.buildah import Buildah
from localcluster.errors import ClusterError
from localcluster.images import Image
from localcluster.layerstore import CHUNK, MANIFEST_TYPE, LayerStore, StoredImage
from localcluster.layout import ClusterPlan, Layout
from localcluster.progress import Progress
from localcluster.shell import run

COLLECTED = "parent snapshot"
"""Part of containerd's message about a layer that its garbage collector removed during the import."""


def node_names(plan: ClusterPlan, wanted: str) -> list[str]:
    """Return the nodes for "all", or for names that are separated by commas.

    Raises:
        ClusterError: a node of that name does not exist.
    """
    known = [node.name for node in plan.nodes]
    names = known if wanted == "all" else [name for name in wanted.split(",") if name]
    for name in names:
        if name not in known:
            raise ClusterError(f"no node {name!r}; there are: {', '.join(known)}")
    return names


def load(layout: Layout, plan: ClusterPlan, images: Sequence[Image], progress: Progress, nodes: str = "all") -> None:
    """Load images into nodes: the nodes in parallel, and the images of one node in sequence."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        jobs = [pool.submit(_load_node, layout, name, images, progress) for name in node_names(plan, nodes)]
        for job in jobs:
            job.result()


def load_archive(layout: Layout, plan: ClusterPlan, archive: Path, progress: Progress, nodes: str = "all") -> None:
    """Import an image archive (docker or OCI format) into nodes."""

    def one(name: str) -> None:
        with progress.step(f"loading {archive.name} into {name}"):
            run([*_ctr(layout, name), "images", "import", str(archive)], timeout=600)

    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(one, node_names(plan, nodes)))


def _ctr(layout: Layout, node: str) -> list[str]:
    return ["ctr", "-a", str(layout.containerd_socket(node)), "-n", "k8s.io"]


def _load_node(layout: Layout, node: str, images: Sequence[Image], progress: Progress) -> None:
    for image in images:
        if loaded_digest(run([*_ctr(layout, node), "images", "ls"]), image.name) == image.digest:
            continue
        with progress.step(f"loading {image.name.rpartition('/')[2]} into {node}"):
            _import(layout, node, image)


def loaded_digest(listing: str, name: str) -> str:
    """Return an image's digest from the output of ``ctr images ls``; empty without the image."""
    for line in listing.splitlines():
        fields = line.split()
        if len(fields) >= 3 and fields[0] == name:
            return fields[2]
    return ""


def _import(layout: Layout, node: str, image: Image) -> None:
    """Import an image; retry once if containerd's garbage collector removed a layer during the import."""
    try:
        _import_once(layout, node, image)
    except ClusterError as error:
        if COLLECTED not in str(error):
            raise
        _import_once(layout, node, image)


def _import_once(layout: Layout, node: str, image: Image) -> None:
    ctr = _ctr(layout, node)
    store = Buildah(layout).store()
    present = set(run([*ctr, "content", "ls", "-q"]).split())
    with subprocess.Popen(
        [*ctr, "images", "import", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=CHUNK,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # the program's output below has the reason
            write_archive(process.stdin, image.name, store, store.find(image.name), present)
        with suppress(BrokenPipeError):
            process.stdin.close()
        output = process.stdout.read().decode(errors="replace")
    if process.returncode != 0:
        raise ClusterError(f"loading {image.name} into {node}: {output.strip()[-2000:]}")


def write_archive(out: IO[bytes], name: str, store: LayerStore, image: StoredImage, present: Iterable[str]) -> None:
    """Stream an OCI archive with the manifest, the configuration, and the layers that the node lacks."""
    entry = {
        "mediaType": MANIFEST_TYPE,
        "digest": image.digest,
        "size": len(image.manifest),
        "annotations": {"io.containerd.image.name": name},
    }
    index = {"schemaVersion": 2, "manifests": [entry]}
    here = set(present)
    _add(out, "oci-layout", [b'{"imageLayoutVersion": "1.0.0"}'])
    _add(out, blob_path(image.digest), [image.manifest])
    _add(out, blob_path(image.config_digest), [image.config])
    for layer in image.layers:
        if layer.digest not in here:
            here.add(layer.digest)
            _add(out, blob_path(layer.digest), store.stream(layer), size=layer.size)
    _add(out, "index.json", [json.dumps(index).encode()])
    out.write(bytes(2 * tarfile.BLOCKSIZE))


def blob_path(digest: str) -> str:
    """Return a blob's path in an OCI archive."""
    return f"blobs/{digest.replace(':', '/')}"


def _add(out: IO[bytes], name: str, pieces: Iterable[bytes], size: int | None = None) -> None:
    """Write one member of the archive, without tarfile, which needs a file and copies it in small blocks."""
    known = list(pieces) if size is None else pieces
    member = tarfile.TarInfo(name)
    member.size = sum(map(len, known)) if size is None else size
    out.write(member.tobuf(tarfile.GNU_FORMAT))
    for piece in known:
        out.write(piece)
    out.write(bytes(-member.size % tarfile.BLOCKSIZE))
