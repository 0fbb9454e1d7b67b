"""A parameter server's launcher reads the chief's attempts."""

from pathlib import Path

import pytest

from pstraining.launcher.terms import Terms


@pytest.mark.parametrize("name", ["runtime-owned", "owned"])
def test_a_server_with_runtime_owned_state_keeps_running_in_every_version(tmp_path: Path, name: str) -> None:
    file, markers = tmp_path / "cluster.json", [tmp_path / "runtime-owned", tmp_path / "owned"]
    file.write_text('{"term": 1}')
    for marker in markers:
        marker.touch()
    terms = Terms(str(file), *map(str, markers))
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
    terms = Terms(str(file), str(tmp_path / "owned"))
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
    terms = Terms(str(file), str(tmp_path / "owned"))
    terms.server_started()
    assert (terms.term, terms.is_over()) == (0, False)
