"""The part of CEL, the Common Expression Language, that rules.py is written in: to ask its rules without an API server.

What is not known here (arithmetic but sums, indexing, most functions) is an error when a rule is read, never a wrong
answer.
As in CEL, `||`, `&&`, all() and exists() take no notice of an error where the rest decides.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

Scope = Mapping[str, Any]
Expression = Callable[[Scope], Any]
"""Takes the variables, gives the value."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<word>[A-Za-z_]\w*)|(?P<number>\d+)|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"""|(?P<sign>\|\||&&|[=!<>]=|[-+*/%<>!?:.,()\[\]]))"""
)
_CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None}
_RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: bool(a == b),
    "!=": lambda a, b: bool(a != b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
    "in": lambda a, b: a in b,
}
_METHODS: Mapping[str, Callable[..., Any]] = {
    "size": len,
    "startsWith": str.startswith,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
}


class CelError(Exception):
    """A rule that cannot be read, or that asks for what is not there."""


@cache
def read(text: str) -> Expression:
    """Make an expression ready.

    Raises:
        CelError: it is wrong, or not of the part that is known here.
    """
    parser = _Parser(text)
    expression = parser.expression()
    parser.end()
    return expression


class _Parser:
    """Recursive descent: one method for each level of precedence, the loosest first."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0

    def expression(self) -> Expression:
        condition = self._any()
        if not self._took("?"):
            return condition
        then = self._any()
        self._need(":")
        otherwise = self.expression()
        return lambda scope: then(scope) if _truth(condition(scope)) else otherwise(scope)

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self._wrong()

    def _any(self) -> Expression:
        parts = [self._every()]
        while self._took("||"):
            parts.append(self._every())
        return parts[0] if len(parts) == 1 else lambda scope: _decided(True, (_later(p, scope) for p in parts))

    def _every(self) -> Expression:
        parts = [self._relation()]
        while self._took("&&"):
            parts.append(self._relation())
        return parts[0] if len(parts) == 1 else lambda scope: _decided(False, (_later(p, scope) for p in parts))

    def _relation(self) -> Expression:
        left = self._sum()
        sign = self._peek()
        if sign not in _RELATIONS:
            return left
        self._at += 1
        right, compare = self._sum(), _RELATIONS[sign]
        return lambda scope: compare(left(scope), right(scope))

    def _sum(self) -> Expression:
        parts = [self._unary()]
        while self._took("+"):
            parts.append(self._unary())
        return parts[0] if len(parts) == 1 else lambda scope: sum(_number(p(scope)) for p in parts)

    def _unary(self) -> Expression:
        if self._took("!"):
            inner = self._unary()
            return lambda scope: not _truth(inner(scope))
        return self._member()

    def _member(self) -> Expression:
        found = self._primary()
        while self._took("."):
            name = self._word()
            found = self._call(found, name) if self._took("(") else _field(found, name)
        return found

    def _primary(self) -> Expression:
        sign = self._next()
        if sign == "(":
            inner = self.expression()
            self._need(")")
            return inner
        if sign == "[":
            items = self._until("]")
            return lambda scope: [item(scope) for item in items]
        if sign in _CONSTANTS:
            constant = _CONSTANTS[sign]
            return lambda scope: constant
        if sign.isdecimal():
            return lambda scope: int(sign)
        if sign[0] in "'\"":
            text = re.sub(r"\\(.)", r"\1", sign[1:-1])
            return lambda scope: text
        if sign == "has" and self._took("("):
            return self._has()
        if sign.isidentifier() and self._peek() != "(":
            return lambda scope: _found(scope, sign)
        self._at -= 1
        raise self._wrong()

    def _has(self) -> Expression:
        parent = self._primary()
        self._need(".")
        name = self._word()
        while self._took("."):
            parent, name = _field(parent, name), self._word()
        self._need(")")
        return lambda scope: name in parent(scope)

    def _call(self, owner: Expression, name: str) -> Expression:
        """What comes after `owner.name(`."""
        if name in _MACROS:
            variable = self._word()
            self._need(",")
            body = self.expression()
            self._need(")")
            macro = _MACROS[name]
            return lambda scope: macro(owner(scope), lambda item: body({**scope, variable: item}))
        if name not in _METHODS:
            raise self._wrong()
        method, arguments = _METHODS[name], self._until(")")
        return lambda scope: method(owner(scope), *(a(scope) for a in arguments))

    def _until(self, close: str) -> list[Expression]:
        found: list[Expression] = []
        while not self._took(close):
            if found:
                self._need(",")
            found.append(self.expression())
        return found

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise self._wrong()
        self._at += 1
        return token

    def _took(self, token: str) -> bool:
        took = self._peek() == token
        self._at += took
        return took

    def _need(self, token: str) -> None:
        if not self._took(token):
            raise self._wrong()

    def _word(self) -> str:
        word = self._next()
        if not word.isidentifier():
            self._at -= 1
            raise self._wrong()
        return word

    def _wrong(self) -> CelError:
        return CelError(f"{self._peek() or 'the end'!r} is not known in {self._text}")


def _tokens(text: str) -> Iterator[str]:
    at, text = 0, text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise CelError(f"{text[at:]!r} cannot be read in {text}")
        yield found[0].strip()
        at = found.end()


def _field(parent: Expression, name: str) -> Expression:
    return lambda scope: _found(parent(scope), name)


def _found(parent: Any, name: str) -> Any:
    if not isinstance(parent, Mapping) or name not in parent:
        raise CelError(f"there is no {name}")
    return parent[name]


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise CelError(f"only numbers are added, not {value!r}")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"{value!r} is neither true nor false")
    return value


def _later(expression: Expression, scope: Scope) -> Callable[[], bool]:
    return lambda: _truth(expression(scope))


def _decided(deciding: bool, parts: Iterable[Callable[[], bool]]) -> bool:
    """Whether any part is true, where true decides, or every one, where false does."""
    error: CelError | None = None
    for part in parts:
        try:
            if part() is deciding:
                return deciding
        except CelError as found:
            error = found
    if error is not None:
        raise error
    return not deciding


def _each(items: Iterable[Any], body: Callable[[Any], Any]) -> Iterator[Callable[[], bool]]:
    # The item is bound here: a closure over a loop's variable would see its last value.
    def later(item: Any) -> Callable[[], bool]:
        return lambda: _truth(body(item))

    return (later(item) for item in items)


_MACROS: Mapping[str, Callable[[Iterable[Any], Callable[[Any], Any]], Any]] = {
    "all": lambda items, body: _decided(False, _each(items, body)),
    "exists": lambda items, body: _decided(True, _each(items, body)),
    "exists_one": lambda items, body: sum(part() for part in _each(items, body)) == 1,
    "filter": lambda items, body: [item for item in items if _truth(body(item))],
}
