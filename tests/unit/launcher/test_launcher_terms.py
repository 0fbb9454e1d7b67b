"""What a parameter server's launcher reads of the chief's attempts."""

from pathlib import Path

import pytest

from pstraining.launcher.terms import Terms


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"term": "x"}', '{"term": null}', None])
def test_a_map_that_cannot_be_read_changes_nothing(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "cluster.json"
    file.write_text('{"term": 3}')
    terms = Terms(str(file), str(tmp_path / "owned"))
    terms.started()
    assert terms.term == 3
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    assert not terms.is_over()
    file.write_text('{"term": 4, "onChiefRestart": "Restart"}')
    assert terms.is_over()


def test_a_map_without_terms_asks_for_nothing(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text('{"cluster": {}}')
    terms = Terms(str(file), str(tmp_path / "owned"))
    terms.started()
    assert (terms.term, terms.is_over()) == (0, False)
