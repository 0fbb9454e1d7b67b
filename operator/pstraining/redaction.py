"""Removes secrets from reports and histories: values of variables with secret-like names, and secret-like texts.

The value of such a variable is removed everywhere, including logs. A program may print secrets of other forms: read a
report before sending it. The module only needs the standard library.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

LEFT_OUT: Final = "<left out: secret-like>"
_NAME: Final = re.compile(
    r"pass(word|wd|phrase)?(_|$)|secret|token(?!i[sz])|credential|(api|access|private|account|encryption|signing)_?key"
    r"|(^|_)(auth|dsn|cookie|session|sas|pat|pwd|conn(ection)?_?str(ing)?)(_|$)",
    re.IGNORECASE,
)
"""Secret-like names of environment variables."""
_SAFE_NAME: Final = re.compile(r"_(file|path|dir|folder|url|endpoint|name|id|ttl|seconds|audience)$", re.IGNORECASE)
"""Endings of names of variables that locate or describe a secret, but do not contain it."""
_WORDS: Final = r"(?:password|passwd|secret|token|api[-_]?key|access[-_]?key|account[-_]?key)"
_VALUE: Final = r"[^\s\"',;&]{6,}"
_FLAG: Final = re.compile(rf"--?[\w-]*{_WORDS}", re.IGNORECASE)
"""An argument whose value is the next argument."""
_TEXTS: Final = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), LEFT_OUT),
    (re.compile(r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"), LEFT_OUT),  # a JSON web token
    (re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b"), LEFT_OUT),  # AWS
    (re.compile(r"\b(gh[opusr]_|github_pat_|glpat-|hf_|xox[baprs]-|sk-)[\w-]{16,}"), LEFT_OUT),
    (re.compile(r"(?<=://)([^/\s:@]*):[^/\s\"'<>]+(?=@)"), rf"\1:{LEFT_OUT}"),  # a password in a URL, also one with @
    (re.compile(rf"(?i)([?&](?:[\w-]+-)?sig(?:nature)?=){_VALUE}"), rf"\1{LEFT_OUT}"),  # a signed URL
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{12,}"), rf"\1 {LEFT_OUT}"),
    (
        re.compile(rf"(?i)((?:--?[\w-]*{_WORDS}[= ]|\b[\w-]*{_WORDS}[\"']?[ \t]*[:=][ \t]*)[\"']?)(?!<left){_VALUE}"),
        rf"\1{LEFT_OUT}",
    ),
)
"""Patterns of secrets in any text, each with its replacement."""
_DROPPED: Final = ("kubectl.kubernetes.io/last-applied-configuration",)
"""Annotations with a second copy of the whole object."""
SHORT: Final = 6
"""Minimum characters of a value that is removed from other texts: a shorter one would also occur in other words."""


class Redactor:
    """Removes secrets from objects and texts. Values that `learn` has found in objects are removed from all texts."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def redacted(self, found: Any) -> Any:
        """Return an object of the API without secrets, and without fields that no reader needs."""
        if isinstance(found, Mapping):
            return self._mapping(found)
        if isinstance(found, list):
            return [LEFT_OUT if _is_flag(before) else self.redacted(item) for before, item in pairwise((None, *found))]
        return self.text(found) if isinstance(found, str) else found

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, LEFT_OUT)
        for pattern, instead in _TEXTS:
            text = pattern.sub(instead, text)
        return text

    def learn(self, found: Any) -> None:
        """Remember the secret-like values of an object, to remove them from all later objects and texts."""
        if isinstance(found, Mapping):
            if _is_secret(found):
                self._remember(str(found["value"]))
            for value in found.values():
                self.learn(value)
        elif isinstance(found, list):
            for before, item in pairwise((None, *found)):
                if _is_flag(before) and isinstance(item, str) and not item.startswith("-"):
                    self._remember(item)
                self.learn(item)

    def _mapping(self, found: Mapping[str, Any]) -> dict[str, Any]:
        if _is_secret(found):
            return {**found, "value": LEFT_OUT}
        kept = {k: v for k, v in found.items() if k != "managedFields" and k not in _DROPPED}
        return {key: self.redacted(value) for key, value in kept.items()}

    def _remember(self, value: str) -> None:
        if len(value) >= SHORT and not value.isdecimal():
            self._values.add(value)


def _is_secret(found: Mapping[str, Any]) -> bool:
    """Return whether an object is an environment variable with a secret-like name and a value."""
    name, value = found.get("name"), found.get("value")
    if not (isinstance(name, str) and isinstance(value, str) and value):
        return False
    return bool(_NAME.search(name)) and not _SAFE_NAME.search(name)


def _is_flag(argument: Any) -> bool:
    return isinstance(argument, str) and _FLAG.fullmatch(argument) is not None
