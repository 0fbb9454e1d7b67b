"""A parameter server's launcher reads the chief's attempts."""

import json
from pathlib import Path

import pytest

from pstraining.launcher.probe import OPEN, PsProbe
from pstraining.launcher.terms import Terms, for_server


@pytest.mark.parametrize("name", ["runtime-owned", "owned"])
def test_a_server_with_runtime_owned_state_keeps_running_in_every_version(tmp_path: Path, name: str) -> None:
    file, markers = tmp_path / "cluster.json", [tmp_path / "runtime-owned", tmp_path / "owned"]
    file.write_text('{"term": 1}')
    for marker in markers:
        marker.touch()
    terms = Terms(str(file), str(tmp_path / "layout"), *map(str, markers))
    terms.server_started()
    assert not any(marker.exists() for marker in markers), "a server that starts holds nothing"
    (tmp_path / name).touch()
    file.write_text('{"term": 20}')
    assert not terms.is_over()
    (tmp_path / name).unlink()
    file.write_text('{"term": 300}')
    assert terms.is_over()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"term": "x"}', '{"term": null}', None])
def test_a_map_that_cannot_be_read_changes_nothing(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "cluster.json"
    file.write_text('{"term": 3}')
    terms = Terms(str(file), str(tmp_path / "layout"), str(tmp_path / "owned"))
    terms.server_started()
    assert terms.term == 3
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    assert not terms.is_over()
    file.write_text('{"term": 4, "onChiefRestart": "Restart"}')
    assert terms.is_over()


def test_a_map_without_terms_requires_nothing(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text('{"cluster": {}}')
    terms = Terms(str(file), str(tmp_path / "layout"), str(tmp_path / "owned"))
    terms.server_started()
    assert (terms.term, terms.is_over()) == (0, False)


def test_a_process_that_has_followed_to_another_layout_keeps_running(tmp_path: Path) -> None:
    file, layout = tmp_path / "cluster.json", tmp_path / "layout"
    file.write_text('{"term": 1}')
    terms = Terms(str(file), str(layout), str(tmp_path / "owned"))
    terms.server_started()
    assert (layout.read_text(), terms.layout) == ("1", 1)
    layout.write_text("2")
    assert not terms.is_over(), "the cluster map does not list it yet"
    file.write_text('{"term": 1, "layout": 2}')
    assert not terms.is_over()
    assert terms.layout == 2
    file.write_text('{"term": 1, "layout": 3, "more": 1}')
    assert terms.is_over()
    terms.server_started()
    assert layout.read_text() == "3"


def test_a_program_that_has_followed_twice_keeps_running(tmp_path: Path) -> None:
    """The map lists a layout some time after the program uses it, and the program was started for the first one."""
    file, layout = tmp_path / "cluster.json", tmp_path / "layout"
    terms = Terms(str(file), str(layout))
    for used, listed in [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3)]:
        layout.write_text(str(used))
        file.write_text(json.dumps({"term": 1, "layout": listed, "size": used}))
        assert not terms.is_layout_over(1), (used, listed)
    file.write_text('{"term": 1, "layout": 4, "size": 3}')
    assert terms.is_layout_over(1), "the program has not followed"


def test_a_server_whose_map_is_late_keeps_running(tmp_path: Path) -> None:
    """The kubelets of two nodes deliver a map up to a minute apart, and a change takes seconds."""
    file, layout = tmp_path / "cluster.json", tmp_path / "layout"
    file.write_text('{"term": 1}')
    terms = Terms(str(file), str(layout))
    terms.server_started()
    layout.write_text("3")
    file.write_text('{"term": 1, "layout": 2}')
    assert not terms.is_over()
    file.write_text('{"term": 1, "layout": 3, "size": 3}')
    assert not terms.is_over()


def test_a_map_with_an_earlier_layout_than_the_one_of_the_start_ends_a_process(tmp_path: Path) -> None:
    file, layout = tmp_path / "cluster.json", tmp_path / "layout"
    file.write_text('{"term": 1, "layout": 1}')
    layout.write_text("2")
    assert Terms(str(file), str(layout)).is_layout_over(2)


@pytest.mark.parametrize("text", ["", "two", None])
def test_a_layout_that_cannot_be_read_was_not_followed(tmp_path: Path, text: str | None) -> None:
    file, layout = tmp_path / "cluster.json", tmp_path / "layout"
    file.write_text('{"term": 1, "layout": 2}')
    terms = Terms(str(file), str(layout))
    if text is not None:
        layout.write_text(text)
    assert terms.is_layout_over(1)
    assert not terms.is_layout_over(2)


def test_a_server_of_the_next_layout_finds_itself_in_the_map() -> None:
    text = json.dumps({"cluster": {"ps": ["a:1", "b:1"], "worker": ["w:1"]}, "members": 2, "nextServers": list("abcd")})
    assert for_server(text, "worker", 0) == for_server(text, "ps", 0) == text
    found = json.loads(for_server(text, "ps", 1))
    assert found["cluster"] == {"ps": list("abcd"), "worker": ["w:1"]}
    assert for_server('{"cluster": {"ps": ["a:1"]}}', "ps", 1) == '{"cluster": {"ps": ["a:1"]}}'


def test_an_open_port_alone_shows_no_server(tmp_path: Path) -> None:
    """The proxy of a service mesh accepts every connection, even to absent servers."""
    terms = Terms(str(tmp_path / "map"), str(tmp_path / "layout"))
    assert "its launcher does not answer" in terms.why_unavailable(PsProbe(OPEN, ""))
    assert terms.why_unavailable(PsProbe(OPEN, "", boot_id="a", state="Serving")) == ""
