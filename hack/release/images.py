"""The images of a release as OCI archives, and their digests.

Layers are not compressed: the digest is that of the built image, and does not depend on the version of zlib.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from hack.release.source import ReleaseError, Source
from localcluster.images import TARGETS, ImageStore
from localcluster.layerstore import LayerStore
from localcluster.layout import read_layout
from localcluster.load import write_archive
from localcluster.progress import Progress


@dataclass(frozen=True)
class Built:
    """An image in a release."""

    target: str
    digest: str
    archive: Path


def build(source: Source, folder: Path, registry: str) -> tuple[Built, ...]:
    """Build the operator's and the runtime's image, and write them into a folder.

    Raises:
        ReleaseError: this machine cannot build images.
    """
    if os.geteuid() != 0 or shutil.which("buildah") is None:
        raise ReleaseError("building images needs root and buildah: IMAGES=no makes the release without them")
    store = ImageStore(read_layout(os.environ, source.root), Progress())
    folder.mkdir()
    return tuple(
        export(store.buildah.store(), image.name, folder / f"{target}.tar", f"{registry}/pstraining/{target}")
        for target, image in zip(TARGETS, store.ensure(TARGETS), strict=True)
    )


def export(store: LayerStore, name: str, archive: Path, repository: str) -> Built:
    """Write a built image as an OCI archive, for an import under a repository's name and the version's tag."""
    image = store.find(name)
    with archive.open("wb") as out:
        write_archive(out, f"{repository}:{name.rpartition(':')[2]}", store, image, present=())
    return Built(archive.stem, image.digest, archive)
