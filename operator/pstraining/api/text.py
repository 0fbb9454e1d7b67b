"""Escapes text from pods and other clients, which may contain terminal escape codes (CVE-2021-25743)."""

import re

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


def printable_but_coloured(text: str) -> str:
    """Return the text for a terminal: printable, with its line breaks, tabs and colours, but no concealed text."""
    text = text.replace("\r\n", "\n")
    pieces: list[str] = []
    end = 0
    for match in _PARAMETERS.finditer(text):
        shown = match.group() if _CONCEAL not in match.group(1).split(";") else printable(match.group())
        pieces += [printable(text[end : match.start()], "\n\t"), shown]
        end = match.end()
    return "".join((*pieces, printable(text[end:], "\n\t")))


def _escaped(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
