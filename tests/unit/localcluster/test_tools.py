"""Cache keys of built tools: the same input finds the same binary, and any change leads to a new build."""

from pathlib import Path

import pytest

from localcluster import tools
from localcluster.errors import ClusterError
from localcluster.gotoolchain import Go, parse_version
from localcluster.layout import read_layout
from localcluster.progress import Progress
from localcluster.tools import BY_NAME, TOOLS, Tool, Toolbox, cache_key, linker_flags, module_version, tool_named

FILES = [("go.mod", b"module x\n"), ("go.sum", b"sum\n")]
TOOL = Tool("x", ((".", "x"),))


def test_the_key_is_stable_and_ignores_the_order_of_files() -> None:
    assert cache_key(TOOL, FILES, "go1.26") == cache_key(TOOL, reversed(FILES), "go1.26")


@pytest.mark.parametrize(
    ("tool", "files", "go"),
    [
        (TOOL, [("go.mod", b"module y\n"), FILES[1]], "go1.26"),
        (TOOL, [FILES[0], ("go.sum", b"other\n")], "go1.26"),
        (TOOL, [*FILES, ("main.go", b"package main")], "go1.26"),
        (TOOL, FILES, "go1.27"),
        (Tool("x", (("./cmd", "x"),)), FILES, "go1.26"),
        (Tool("x", ((".", "x"),), tags=("small",)), FILES, "go1.26"),
    ],
)
def test_every_input_changes_the_key(tool: Tool, files: list[tuple[str, bytes]], go: str) -> None:
    assert cache_key(tool, files, go) != cache_key(TOOL, FILES, "go1.26")


def test_flags_change_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_key(TOOL, FILES, "go1.26")
    monkeypatch.setattr(tools, "FLAGS", ("-race",))
    assert cache_key(TOOL, FILES, "go1.26") != before


def test_moving_bytes_between_files_changes_the_key() -> None:
    assert cache_key(TOOL, [("a", b"bc"), ("d", b"")], "g") != cache_key(TOOL, [("a", b"b"), ("d", b"c")], "g")


def test_versions_are_read_from_go_mod() -> None:
    text = "require example.org/a v1.2.3\n\nrequire (\n\texample.org/b v0.4.0 // indirect\n)\n"
    assert module_version(text, "example.org/a") == "v1.2.3"
    assert module_version(text, "example.org/b") == "v0.4.0"
    assert module_version(text, "example.org/c") == ""


def test_kubernetes_is_stamped_with_the_version_of_its_go_mod() -> None:
    layout = read_layout({"HOME": "/h"})
    text = (layout.tools / "kubernetes" / "go.mod").read_text()
    flags = linker_flags(BY_NAME["kubernetes"], text)
    version = module_version(text, "k8s.io/kubernetes")
    assert f"gitVersion={version}" in flags
    assert "gitMajor=1 " in flags + " "


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_every_tool_has_pinned_modules(tool: Tool) -> None:
    folder = read_layout({"HOME": "/h"}).tools / tool.name
    assert (folder / "go.mod").exists()
    if tool.version_module:
        assert module_version((folder / "go.mod").read_text(), tool.version_module)
        assert (folder / "go.sum").exists()


def test_all_staging_modules_of_kubernetes_have_its_version() -> None:
    text = (read_layout({"HOME": "/h"}).tools / "kubernetes" / "go.mod").read_text()
    patch = module_version(text, "k8s.io/kubernetes").removeprefix("v1.")
    replaced = [line for line in text.splitlines() if "=>" in line]
    assert len(replaced) >= 31
    assert all(line.endswith(f" v0.{patch}") for line in replaced)


def test_programs_and_tools_are_found_by_name() -> None:
    assert tool_named("kubelet").name == "kubernetes"
    assert tool_named("helm").name == "helm"
    with pytest.raises(ClusterError, match="no tool 'nosuch'"):
        tool_named("nosuch")


@pytest.mark.parametrize(
    ("text", "version"), [("go1.26.8", (1, 26, 8)), ("1.24.0", (1, 24, 0)), ("go1.27", (1, 27, 0)), ("devel", ())]
)
def test_go_versions_are_parsed(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


def test_a_folder_of_links_follows_the_keys(tmp_path: Path) -> None:
    layout = read_layout({"HOME": str(tmp_path)})
    box = Toolbox(layout, Progress(quiet=True))
    box._go = Go(binary=Path("/nonexistent/go"), version="go1.26.0")
    first = box.path_folder(["etcd", "helm"])
    assert box.path_folder(["etcd", "helm"]) == first
    assert (first / "etcd").readlink() == box.binary("etcd")
    box._go = Go(binary=Path("/nonexistent/go"), version="go1.27.0")
    assert box.path_folder(["etcd", "helm"]) != first
