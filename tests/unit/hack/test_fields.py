"""The table of fields agrees with the CRD, the code and the tests, and its tests fail without their fields."""

import re

import pytest

from hack.docs import failure_table
from hack.field_mutation import __main__ as switch_off
from hack.field_mutation import fields
from hack.field_mutation.fields import FieldError
from pstraining.api.crd import custom_resource_definition
from pstraining.api.run_policy import FailureReason
from tests.support.soak_marks import in_all, some

SPEC = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
CODE, TEST = "core/planner.py::plan", "core/test_job_lifecycle.py::test_time_to_live"


def entry(path: str, by: str = CODE, test: str = TEST) -> dict[str, fields.Entry]:
    return {path: fields.Entry(path, by, test)}


def test_the_table_is_complete() -> None:
    fields.check(fields.entries(fields.TABLE.read_text()), fields.leaves(SPEC))


def test_one_path_may_stand_for_several() -> None:
    assert list(fields.expanded("spec.{ps,chief}.{a,b.c}")) == [
        "spec.ps.a",
        "spec.ps.b.c",
        "spec.chief.a",
        "spec.chief.b.c",
    ]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "spec.x has no entry"),
        (entry("spec.x") | entry("spec.y"), "spec.y is no field"),
        (entry("spec.x", by="core/planner.py::plans"), "there is no core/planner.py::plans"),
        (entry("spec.x", by="core/plan.py::plan"), "there is no core/plan.py::plan"),
        (entry("spec.x", test="core/test_gang.py::test_of_nothing"), "there is no core/test_gang.py::test_of_nothing"),
        (entry("spec.x", test=""), "there is no"),
    ],
)
def test_disagreements_are_reported(table: dict[str, fields.Entry], words: str) -> None:
    with pytest.raises(FieldError, match=re.escape(words)):
        fields.check(table, {"spec.x": None})
    fields.check(entry("spec.x"), {"spec.x": None})


def test_no_field_is_listed_twice() -> None:
    with pytest.raises(FieldError, match="twice"):
        fields.entries('[[field]]\npath = "spec.{a,a}"\ntodo = true')


def test_fields_that_hold_values() -> None:
    found = fields.leaves(SPEC)
    assert {"spec.ps.replicas", "spec.ps.template", "spec.failurePolicy.rules[].exitCodes.values"} <= found.keys()
    assert not {"spec.ps", "spec.failurePolicy.rules", "spec.ps.template.metadata"} & found.keys()


@pytest.mark.parametrize(
    "path",
    some(
        ["spec.network.topologyKey", "spec.ps.replicas", "spec.runPolicy.ttlSecondsAfterFinished"],
        lambda path: path == "spec.network.topologyKey",
        in_all("tests/unit/hack/test_fields.py::test_a_disabled_field_fails_its_tests"),  # one field
    ),
)
def test_a_disabled_field_fails_its_tests(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert switch_off.main([path]) == 0
    assert f"red  {path}" in capsys.readouterr().out


def test_a_field_without_a_failing_test_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {"spec.network.topologyKey": fields.Entry("spec.network.topologyKey", CODE, TEST)}
    monkeypatch.setattr(fields, "entries", lambda text: table)
    assert switch_off.main([]) == 1
    assert "NOT MISSED (pytest ended with 0) spec.network.topologyKey" in capsys.readouterr().out
    assert switch_off.main(["spec.other"]) == 1


@in_all(
    "tests/unit/hack/test_fields.py::test_a_field_without_a_failing_test_is_reported"
)  # because nothing could be read
def test_a_job_that_is_unreadable_without_the_field_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fields, "entries", lambda text: entry("spec.ps.replicas"))
    assert switch_off.main([]) == 1
    assert "NOT MISSED (pytest ended with 70)" in capsys.readouterr().out


def test_every_cause_of_failure_names_a_test_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "test_failure_causes.py::test_causes" in failure_table.failure_table()
    monkeypatch.setitem(failure_table._TESTS, FailureReason.OOM_KILLED, "test_failure_causes.py::test_gone")
    with pytest.raises(failure_table.FailureTableError, match="test_gone"):
        failure_table.failure_table()
