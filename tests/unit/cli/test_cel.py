"""The part of CEL that rules are written in: its values, its errors, and that every rule of the CRD is of this part."""

from typing import Any

import pytest

from pstraining.api.crd import custom_resource_definition
from pstraining.cli.validation import cel

SELF = {"n": 3, "on": True, "name": "digits-1", "list": [{"v": 1}, {"v": 2}], "none": None, "empty": [], "in": {"a": 1}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("self.n == 3 && self.n != 4 && self.n <= 3 && self.n >= 3 && self.n < 4 && !(self.n > 3)", True),
        ("has(self.n) && !has(self.missing)", True),
        ("has(self.in.a) && !has(self.in.b)", True),
        ("self.name.size() == 8 && self.list.size() == 2", True),
        ("self.name.matches('^[a-z]') && !self.name.matches(\"^[0-9]\") && self.name.startsWith('dig')", True),
        ("self.name in ['a', 'digits-1'] && !(self.name in [])", True),
        ("self.n + 1 + (self.on ? 2 : 0) == 6 && self.n + self.n > 5", True),
        ("self.n == 4 ? 'a' : self.on ? 'b' : 'c'", "b"),
        ("true || false && false", True),
        ("(true || false) && false", False),
        ("self.list.all(i, i.v > 0) && !self.list.all(i, i.v > 1) && self.empty.all(i, i.v > 1)", True),
        ("self.list.exists(i, i.v == 2) && !self.empty.exists(i, true)", True),
        ("self.list.exists_one(i, i.v == 2) && !self.list.exists_one(i, i.v > 0)", True),
        ("self.list.filter(i, i.v == 2)", [{"v": 2}]),
        ("self.list.all(i, self.list.exists_one(j, j.v == i.v))", True),
        (r"'it\'s' == \"it's\"".replace('\\"', '"'), True),
        ("self.none == null", True),
        # What decides does so beside an error, on either side.
        ("self.missing == 1 || true", True),
        ("self.missing == 1 && false", False),
        ("self.list.exists(i, i.w == 1 || i.v == 2)", True),
        ("[1, 2].all(i, self.missing == i || i == 3 && false) || true", True),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert cel.read(text)({"self": SELF}) == value


@pytest.mark.parametrize(
    "text",
    [
        "self.missing",
        "self.missing.size() > 1",
        "other",
        "self.n && true",
        "!self.n",
        "self.n + self.on",
        "self.missing == 1 || false",
    ],
)
def test_what_is_not_there_is_an_error(text: str) -> None:
    with pytest.raises(cel.CelError):
        cel.read(text)({"self": SELF})


@pytest.mark.parametrize(
    "text",
    [
        "1 - 2",
        "self.list[0]",
        "size(self.n)",
        "self.name.endsWith('x')",
        "self.",
        "(1",
        "[1 2]",
        "1 == 1 1",
        "",
        "§",
        "has(n)",
    ],
)
def test_what_is_not_known_is_an_error_before_anything_is_asked(text: str) -> None:
    with pytest.raises(cel.CelError):
        cel.read(text)


def rules(node: Any) -> list[str]:
    if isinstance(node, list):
        return [rule for item in node for rule in rules(item)]
    if not isinstance(node, dict):
        return []
    own = [v["rule"] for v in node.get("x-kubernetes-validations", ())]
    return own + [rule for item in node.values() for rule in rules(item)]


def test_every_rule_of_the_crd_can_be_read() -> None:
    found = rules(custom_resource_definition())
    assert len(found) > 50
    for rule in found:
        cel.read(rule)
