"""Keys of images, pip's settings, and the layers that are sent to a node."""

import hashlib
import io
import json
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localcluster import images, load, pauseimage, pipconfig
from localcluster.config import PAUSE_IMAGE
from localcluster.errors import ClusterError
from localcluster.layerstore import LayerStore, StoredImage
from localcluster.layout import read_layout
from localcluster.load import loaded_digest, write_archive
from localcluster.pauseimage import build_archive, ensure_archive
from tests.support.image_storage import image_storage, sha


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "operator").mkdir()
    (tmp_path / "operator" / "a.py").write_text("a")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "b.md").write_text("b")
    (tmp_path / "Dockerfile").write_text("FROM x")
    (tmp_path / ".dockerignore").write_text("# why\n*\n!operator/\n**/*.pyc\n")
    return tmp_path


def key(repo: Path) -> str:
    return images.image_key(repo, "operator", images.context_files(repo))


def test_only_what_the_build_sees_counts(repo: Path) -> None:
    before = key(repo)
    (repo / "docs" / "b.md").write_text("changed")
    (repo / "operator" / "__pycache__").mkdir()
    (repo / "operator" / "__pycache__" / "a.pyc").write_text("x")
    assert key(repo) == before


@pytest.mark.parametrize("change", ["operator/a.py", "operator/new.py", "Dockerfile", ".dockerignore"])
def test_any_input_changes_the_key(repo: Path, change: str) -> None:
    before = key(repo)
    (repo / change).write_text("*\n!operator\n!other\n" if change == ".dockerignore" else "other")
    assert key(repo) != before


def test_a_mode_changes_the_key(repo: Path) -> None:
    """A changed mode changes the key, because the file in the image has the same mode."""
    before = key(repo)
    (repo / "operator" / "a.py").chmod(0o600)
    assert key(repo) != before


def test_targets_have_keys_of_their_own(repo: Path) -> None:
    files = images.context_files(repo)
    assert images.image_key(repo, "operator", files) != images.image_key(repo, "runtime", files)


def test_an_ordinary_dockerignore_means_everything(repo: Path) -> None:
    assert images.allowed_paths("docs\n") is None
    (repo / ".dockerignore").write_text("build\n")
    assert repo / "docs" / "b.md" in images.context_files(repo)


def test_versions_come_from_the_project() -> None:
    assert images.project_version('[project]\nname = "x"\nversion = "0.3.1"\n') == "0.3.1"
    assert images.image_name("operator", "0.3.1") == "docker.io/pstraining/operator:0.3.1"
    with pytest.raises(ClusterError):
        images.project_version("[project]\n")


def test_pip_settings_merge_with_the_environment_last() -> None:
    files = ["[global]\nindex-url = one\ncert = /a\n", "[install]\nindex_url = two\n", "no ini file"]
    settings = pipconfig.merge(files, {"PIP_INDEX_URL": "three", "PIP_CACHE_DIR": "/c", "OTHER": "x", "PIP_CERT": ""})
    assert settings == {"index-url": "three", "cert": "/a"}
    assert "index-url = three" in pipconfig.render(settings)


def test_folders_that_pip_needs_are_mounted(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    conf = tmp_path / "pip.conf"
    settings = {"find-links": f"{wheels} https://example.org/wheels", "cert": "/nonexistent.pem"}
    places = dict(pipconfig.mounts(settings, conf))
    assert places[wheels] == wheels
    assert str(places[conf]) == "/etc/pip.conf"
    assert not any("nonexistent" in str(path) for path in places)


def content_of(archive: tarfile.TarFile, name: str) -> bytes:
    stream = archive.extractfile(name)
    assert stream is not None
    return stream.read()


@pytest.fixture
def storage(tmp_path: Path) -> LayerStore:
    return image_storage(tmp_path)


def test_a_layer_is_rebuilt_byte_by_byte(storage: LayerStore) -> None:
    for layer in storage.find("x:1").layers:
        content = b"".join(storage.stream(layer))
        assert (sha(content), len(content)) == (layer.digest, layer.size)


def test_an_unknown_image_is_named(storage: LayerStore) -> None:
    with pytest.raises(ClusterError, match="x:2 was not built"):
        storage.find("x:2")


def members(storage: LayerStore, present: list[str]) -> tuple[StoredImage, dict[str, bytes]]:
    out = io.BytesIO()
    image = storage.find("x:1")
    write_archive(out, "x:1", storage, image, present)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        return image, {member.name: content_of(archive, member.name) for member in archive}


def test_a_node_gets_a_whole_and_consistent_archive(storage: LayerStore) -> None:
    image, files = members(storage, present=[])
    for name, content in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    index = json.loads(files["index.json"])
    assert index["manifests"][0]["digest"] == image.digest
    assert index["manifests"][0]["annotations"] == {"io.containerd.image.name": "x:1"}
    assert len(files) == 2 + 2 + 2


def test_a_node_is_not_sent_what_it_has(storage: LayerStore) -> None:
    image, files = members(storage, present=[storage.find("x:1").layers[0].digest])
    names = [name for name in files if name.startswith("blobs/")]
    assert f"blobs/{image.layers[0].digest.replace(':', '/')}" not in names
    assert len(names) == 3


def test_the_loaded_digest_is_read_from_the_list() -> None:
    listing = "REF TYPE DIGEST SIZE\nx:1 application/vnd sha256:abc 3 MiB\nx:12 application/vnd sha256:def 3 MiB\n"
    assert loaded_digest(listing, "x:1") == "sha256:abc"
    assert loaded_digest(listing, "x:2") == ""


def test_the_pause_image_is_the_same_every_time() -> None:
    first, second = build_archive(b"program", "p:1"), build_archive(b"program", "p:1")
    assert first == second
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        manifest = json.loads(content_of(archive, "manifest.json"))
        layer = content_of(archive, manifest[0]["Layers"][0])
        settings = json.loads(content_of(archive, manifest[0]["Config"]))
    assert settings["rootfs"]["diff_ids"] == [sha(layer)]
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        assert archive.getmember("pause").mode == 0o755


@pytest.mark.parametrize(
    ("errors", "calls"),
    [
        (["parent snapshot sha256:1 does not exist: not found"], 2),
        (["parent snapshot sha256:1 does not exist"] * 2, 2),
        (["no space left on device"], 1),
    ],
)
def test_an_import_that_lost_a_layer_to_the_garbage_collector_is_repeated_once(
    errors: list[str], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localcluster import load

    made, pending = [], list(errors)

    def import_once(*arguments: object) -> None:
        made.append(arguments)
        if pending:
            raise ClusterError(pending.pop(0))

    monkeypatch.setattr(load, "_import_once", import_once)
    arguments: Any = (None, "node-0", None)
    if len(errors) == calls:
        with pytest.raises(ClusterError, match=errors[-1]):
            load._import(*arguments)
    else:
        load._import(*arguments)
    assert len(made) == calls


def test_nodes_that_start_together_make_the_pause_image_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finds the archive whole, also if another node has made it meanwhile."""
    program = tmp_path / "key" / "pause"
    program.parent.mkdir()
    program.write_bytes(b"program")
    layout, together = read_layout({"PSTRAINING_CACHE": str(tmp_path / "cache")}), threading.Barrier(2)

    def built(content: bytes, name: str) -> bytes:
        archive = build_archive(content, name)
        together.wait(10)
        return archive

    monkeypatch.setattr(pauseimage, "build_archive", built)
    with ThreadPoolExecutor(2) as pool:
        made = [node.result() for node in [pool.submit(ensure_archive, layout, program) for _ in range(2)]]
    assert {path.read_bytes() for path in made} == {build_archive(b"program", PAUSE_IMAGE)}
    assert [path.name for path in made[0].parent.iterdir()] == ["key.tar"]


def test_the_message_of_an_import_that_ends_early_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program ends before it has read the archive, which then cannot be written."""
    ended = [sys.executable, "-c", "import sys; sys.stdin.close(); print('no space left'); sys.exit(1)"]
    monkeypatch.setattr(load, "_ctr", lambda *_: ended)
    monkeypatch.setattr(load, "run", lambda *_: "")
    monkeypatch.setattr(load, "Buildah", lambda _: SimpleNamespace(store=lambda: SimpleNamespace(find=str)))

    def written(out: Any, *_: object) -> None:
        for _piece in range(100):
            out.write(bytes(1 << 20))

    monkeypatch.setattr(load, "write_archive", written)
    with pytest.raises(ClusterError, match="loading x:1 into n: no space left"):
        load._import_once(read_layout({"PSTRAINING_CACHE": str(tmp_path)}), "n", images.Image("x:1", "k", "d"))
