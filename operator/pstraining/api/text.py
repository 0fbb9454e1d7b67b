"""Escapes text from pods and other clients, which may contain terminal escape codes (CVE-2021-25743)."""

import re
from collections.abc import Mapping
from typing import Any

WHITESPACE = "\n\t"
"""The control characters of a text of several lines."""
_PARAMETERS = re.compile(r"\x1b\[([0-9;]*)m")
_CONCEAL = "8"


def printable(text: str, keep: str = "") -> str:
    r"""Return the text with every unprintable character, such as a control character, as \\xNN or \\uNNNN.

    Args:
        text: a text of unknown origin.
        keep: characters that are not escaped.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def with_printable_texts(value: Any) -> Any:
    """Return a JSON value with every text in it, except for keys, as `printable` returns it."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {key: with_printable_texts(item) for key, item in value.items()}
    return [with_printable_texts(item) for item in value] if isinstance(value, list) else value


def printable_but_coloured(text: str) -> str:
    """Return the text for a terminal: printable, with its line breaks, tabs and colours, but no concealed text."""
    text = text.replace("\r\n", "\n")
    pieces: list[str] = []
    end = 0
    for match in _PARAMETERS.finditer(text):
        shown = match.group() if _CONCEAL not in match.group(1).split(";") else printable(match.group())
        pieces += [printable(text[end : match.start()], WHITESPACE), shown]
        end = match.end()
    return "".join((*pieces, printable(text[end:], WHITESPACE)))


def _escaped(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
