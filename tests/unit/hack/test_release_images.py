"""The images of a release are archives of the images that their digests name."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from hack.release import images
from hack.release.source import ReleaseError, Source
from tests.support.image_storage import NAME, image_storage


def test_an_archive_holds_the_image_of_its_digest(tmp_path: Path) -> None:
    store = image_storage(tmp_path)
    built = [images.export(store, NAME, tmp_path / f"{n}.tar", "ghcr.io/me/pstraining/operator") for n in "ab"]
    assert built[0].digest == built[1].digest == store.find(NAME).digest
    assert built[0].archive.read_bytes() == built[1].archive.read_bytes()
    with tarfile.open(built[0].archive) as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    (manifest,) = json.loads(files["index.json"])["manifests"]
    assert manifest["annotations"] == {"io.containerd.image.name": "ghcr.io/me/pstraining/operator:1"}
    body = files[f"blobs/sha256/{built[0].digest.removeprefix('sha256:')}"]
    layers = [layer["digest"] for layer in json.loads(body)["layers"]]
    for digest in (manifest["digest"], *layers):
        name = digest.removeprefix("sha256:")
        assert hashlib.sha256(files[f"blobs/sha256/{name}"]).hexdigest() == name


def test_a_machine_that_cannot_build_images_gets_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ReleaseError, match="needs root and buildah: IMAGES=no"):
        images.build(Source(tmp_path, "1.0.0", "c", 0), tmp_path / "images", "localhost")
