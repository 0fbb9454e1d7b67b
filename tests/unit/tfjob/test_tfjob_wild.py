"""TFJob files from users are converted, or all obstacles are listed in one run; no value changes."""

import pytest

from pstraining.cli.errors import CommandError
from pstraining.cli.manifests import Document, parsed
from pstraining.cli.tfjob.notes import lines
from pstraining.cli.tfjob.results import Converted, as_yaml, convert_document
from pstraining.cli.validation.documents import wrong_with
from pstraining.cli.validation.schema import Severity
from tests.tfjob.accounting import unaccounted
from tests.tfjob.wild import FILES, UNREADABLE, Wild, job
from tests.tfjob.wild_pods import PODS

QUIET = {
    line
    for document in parsed("f", job())
    if isinstance(document, Document)
    for line in lines(convert_document(document).notes)
}
"""The note on every such job."""


def found(file: Wild) -> list[Converted | CommandError]:
    return [one if isinstance(one, CommandError) else convert_document(one) for one in parsed(file.name, file.text)]


def said(one: Converted | CommandError) -> list[str]:
    words = [str(one)] if isinstance(one, CommandError) else lines(one.notes)
    return [line for line in words if line not in QUIET]


@pytest.mark.parametrize("file", [*FILES, *PODS], ids=lambda file: file.name)
def test_a_wild_tfjob_converts_or_its_obstacles_are_named(file: Wild) -> None:
    made = found(file)
    words = "\n".join(line for one in made for line in said(one))
    assert [part for part in file.says if part not in words] == [], words
    assert file.says or not words
    results = [UNREADABLE if isinstance(one, CommandError) else one.result for one in made]
    assert [result for result in results if result != "passed on"] == [file.result], words
    no_error_is_hidden([one for one in made if isinstance(one, Converted)])
    no_value_is_lost([one for one in made if isinstance(one, Converted) and one.body is not None])


def no_error_is_hidden(made: list[Converted]) -> None:
    """Demand that a job without a field that lacks a counterpart is valid."""
    for one in made:
        if one.conversion is not None and one.body is not None and not any(note.missing for note in one.notes):
            assert [str(wrong) for wrong in wrong_with(one.body) if wrong.severity is Severity.ERROR] == []


def no_value_is_lost(made: list[Converted]) -> None:
    """Demand that each value is in the converted job or named, and that parsing the output gives the same value."""
    for one in made:
        if one.conversion is not None:
            assert unaccounted(one.document.body, one.conversion) == []
    again = [one.body for one in parsed("f", as_yaml(made)) if isinstance(one, Document)]
    assert repr(again) == repr([one.body for one in made])


def test_there_are_fifty_examples_with_distinct_names() -> None:
    files = [*FILES, *PODS]
    assert len({file.name for file in files}) == len(files) >= 50
