"""The values of YAML scalars, by the rules of kubectl's library.

The algorithm is `resolve` of go-yaml 2 (go.yaml.in/yaml/v2/resolve.go, which sigs.k8s.io/yaml wraps), followed by a
conversion to JSON, whose numbers are 64-bit integers or doubles. It has YAML 1.1's truth values and Go's prefixes
(0o17, 017, 0x1F, 0b11). Sexagesimal numbers (12:30) and dates are texts.
"""

import base64
import binascii
import math
import re
from decimal import Decimal

Scalar = str | int | float | bool | None

PLAIN = "plain"
"""The tag of a scalar without quotes and without a tag."""
_TAGS = "tag:yaml.org,2002:"
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_INTEGER = re.compile(
    r"(?P<sign>[-+]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<bin>[01]+)|0[oO]?(?P<oct>[0-7]+)|(?P<dec>0|[1-9][0-9]*))"
)
_BASES = {"hex": 16, "bin": 2, "oct": 8, "dec": 10}
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LONG = range(-(2**63), 2**63)
_INTEGERS = range(-(2**63), 2**64)


def scalar(tag: str, text: str) -> Scalar:
    """Return the value of a scalar.

    Args:
        tag: the scalar's tag; PLAIN without a tag and quotes. Like kubectl, this ignores custom tags such as !vault.
        text: the scalar's text, without quotes.

    Raises:
        ValueError: the text does not have the tag's type, or is not a JSON number.
    """
    kind = tag.removeprefix(_TAGS)
    if kind == "binary":
        return _decoded(text)
    if kind not in (PLAIN, "bool", "int", "float", "null"):
        return text
    value = _plain(text)
    fits = {
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, (int, float)) and not isinstance(value, bool),
        "null": value is None,
    }
    if not fits.get(kind, True):
        raise ValueError(f"{text} is not a value of type {kind}")
    return value


def number(value: float) -> int | float:
    """Return a number after Go's conversion through JSON: an integer if it fits 64 bits, else a double.

    Raises:
        ValueError: the value is not a JSON number.
    """
    if isinstance(value, int):
        return value if value in _LONG else float(value)
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a JSON number")
    whole = int(Decimal(repr(value)))  # the digits that Go writes, not the double's exact ones
    return whole if value.is_integer() and whole in _LONG else value


def key(tag: str, text: str) -> str:
    """Return the field's name for a key: the key yes becomes true, and 010 becomes 8.

    Args:
        tag: as in `scalar`.
        text: as in `scalar`.

    Raises:
        ValueError: the key is null, or a fraction, which kubectl's library would round to a 32-bit number.
    """
    value = scalar(tag, text)
    whole = isinstance(value, (str, bool)) or _INTEGER.fullmatch(text.replace("_", ""))
    if value is None or isinstance(value, float) or not whole:
        raise ValueError(f"{text or 'nothing'} is not the name of a field: put it in quotes")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(text: str) -> Scalar:
    if text in _WORDS:
        word = _WORDS[text]
        return number(word) if isinstance(word, float) else word
    if text[0] not in "+-.0123456789":
        return text
    digits = text.replace("_", "")
    if found := _INTEGER.fullmatch(digits):
        base = next(name for name in _BASES if found[name])
        value = int(found["sign"] + found[base], _BASES[base])
        if value in _INTEGERS:
            return number(value)
    if _FLOAT.fullmatch(digits) and math.isfinite(float(digits)):
        return number(float(digits))
    return text


def _decoded(text: str) -> str:
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"!!binary is not the base64 of a text: {error}") from None
