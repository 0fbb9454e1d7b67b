"""CEL as the rules use it: values, errors, and functions of the CRD's rules, all of which the library has."""

from typing import Any

import pytest
from cel import compile as compiled

from pstraining.api.crd import custom_resource_definition
from pstraining.cli.validation import cel

SELF = {
    **{"n": 3, "on": True, "name": "digits-1", "none": None, "empty": [], "inner": {"a": 1}},
    "list": [{"v": 1}, {"v": 2}],
}
FUNCTIONS = {"matches", "size", "startsWith"}
"""CEL's own functions; the library lacks those that Kubernetes adds, such as quantity and lowerAscii."""


def value(text: str) -> Any:
    return cel.evaluate(text, cel.context({"self": SELF}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("self.n == 3 && self.n != 4 && self.n <= 3 && self.n >= 3 && self.n < 4 && !(self.n > 3)", True),
        ("has(self.n) && !has(self.missing)", True),
        ("has(self.inner.a) && !has(self.inner.b)", True),
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
        ("self.none == null", True),
        # Numbers of different types can be equal; a Boolean equals no number.
        ("self.n == 3.0 && self.on != 1", True),
        # An operand that decides the result hides an error of the other operand.
        ("self.missing == 1 || true", True),
        ("self.missing == 1 && false", False),
        ("self.list.all(i, i.w == 1 && i.v == 2)", False),
    ],
)
def test_values(text: str, expected: Any) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("self.missing", "no such key: missing"),
        ("self.missing.size() > 1", "no such key: missing"),
        ("self.missing == 1 || false", "no such key: missing"),
        ("other", "Undefined variable or function: 'other'"),
        ("quantity('1Gi') == quantity('1024Mi')", "Undefined variable or function: 'quantity'"),
        ("self.n && true", "No such overload"),
        ("!self.n", "No such overload"),
        ("self.n + self.on", "No such overload"),
    ],
)
def test_a_failed_evaluation_is_an_error(text: str, message: str) -> None:
    with pytest.raises(cel.CelError, match=message):
        value(text)


@pytest.mark.parametrize("text", ["self.", "(1", "[1 2]", "1 == 1 1", "", "§", "has(n)", "self.?n.orValue(1) == 1"])
def test_wrong_syntax_is_an_error_in_one_line(text: str) -> None:
    with pytest.raises(cel.CelError, match=r"^Failed to parse expression .*$") as error:
        cel.program(text)
    assert "\n" not in str(error.value)


def rules(node: Any) -> list[str]:
    if isinstance(node, list):
        return [rule for item in node for rule in rules(item)]
    if not isinstance(node, dict):
        return []
    own = [v["rule"] for v in node.get("x-kubernetes-validations", ())]
    return own + [rule for item in node.values() for rule in rules(item)]


def calls(rule: str) -> set[str]:
    return {name for name in compiled(rule).functions() if name.isidentifier() and not name.startswith("_")}


def test_every_rule_of_the_crd_can_be_read() -> None:
    found = rules(custom_resource_definition())
    assert len(found) > 50
    for rule in found:
        cel.program(rule)
        assert calls(rule) <= FUNCTIONS, rule
    assert calls("quantity('1Gi').isGreaterThan(quantity('1Mi'))") == {"quantity", "isGreaterThan"}
