"""The documented commands exist, with the options that they are given. No command is run."""

import ast
import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from hack.docs.pages import ROOT, pages
from pstraining.api.conditions import Condition
from pstraining.cli.main import program
from tests.support.documented import LEFT_OUT, PROMPT, lines, shell_lines, where

EXCEPTIONS: dict[str, str] = {}
"""Commands that are correct although this check does not know them, with the reason."""
HELM = {"get", "history", "install", "lint", "list", "rollback", "show", "status", "template", "test", "uninstall"}
HELM |= {"push", "upgrade"}
KUBECTL = {"annotate", "api-resources", "apply", "auth", "cordon", "create", "delete", "describe", "drain", "edit"}
KUBECTL |= {
    "events",
    "exec",
    "explain",
    "get",
    "kustomize",
    "label",
    "logs",
    "patch",
    "port-forward",
    "rollout",
    "scale",
    "taint",
}
KUBECTL |= {"cp", "krew", "top", "uncordon", "version", "wait"}
_INNER = re.compile(r"\$\(([^()]+)\)")
_TARGET = re.compile(r"^([a-z][a-z0-9 -]*):(?!=)", re.MULTILINE)
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""typer's own, or click's in its older versions."""


def found_commands() -> Iterator[tuple[str, str]]:
    """Return place and text of every documented command that one of our checks covers."""
    for page in pages().values():
        yield from ((place, text) for place, line in shell_lines(page) for text in commands_of(line))
        for span in page.spans:
            if " " in span.text:
                yield from ((where(page, span.line), text) for text in commands_of(span.text))


def commands_of(line: str) -> Iterator[str]:
    """Return the commands of a line, without its prompt and environment; none if no check covers them."""
    yield from (text for inner in _INNER.findall(line) for text in commands_of(inner))
    text = line[PROMPT.match(line).end() :]  # type: ignore[union-attr]
    for part in re.split(r" && | \|\|? |; ", text):
        command = re.split(r" \d?>>? ?", part)[0]
        if _checker(command):
            yield command


def problem(command: str) -> str:
    """Return the problem of a command; empty if there is none."""
    check = _checker(command)
    assert check is not None
    try:
        return check(split(command)[1:])
    except ValueError as error:
        return str(error)


def split(command: str) -> list[str]:
    """Return the words of a command without its comment and ellipses, with 1 for a placeholder such as <job> or JOB."""
    given = re.sub(r"(?<!\S)(<[^>]*>|[A-Z]+)(?!\S)", "1", command)
    return [w for w in shlex.split(given, comments=True) if w != LEFT_OUT and "<" not in w]


def _checker(command: str) -> Callable[[Sequence[str]], str] | None:
    first = Path(command.split(maxsplit=1)[0]).name if command.strip() else ""
    return _CHECKS.get(first)


def _make(words: Sequence[str]) -> str:
    targets = {target for group in _TARGET.findall((ROOT / "Makefile").read_text()) for target in group.split()}
    unknown = [w for w in words if w not in targets and not re.fullmatch(r"[A-Z_]+=.*", w)]
    return f"make has no target {unknown[0]}" if unknown else ""


def _python(words: Sequence[str]) -> str:
    if "-m" not in words:
        return ""  # hack/docs/links.py checks paths of files
    at = words.index("-m") + 1
    if words[at : at + 1] == ["venv"]:
        return ""  # Python's own
    source = module_file(words[at]) if at < len(words) else None
    if source is None:
        return f"there is no module {words[at] if at < len(words) else ''}"
    options, subcommands, takes_program = interface(source)
    rest = list(words[at + 1 :])
    if subcommands and rest and not rest[0].startswith("-") and rest[0] not in subcommands:
        return f"{words[at]} has no command {rest[0]}"
    for index, word in enumerate(rest):
        if takes_program and (word == "-m" or word.endswith(".py")):
            return _python(rest[index:]) if word == "-m" else ""
        if word.startswith("-") and word.partition("=")[0] not in options:
            return f"{words[at]} has no option {word}"
    return ""


def module_file(module: str) -> Path | None:
    """Return the path of the module that `python -m` would run; None if this repository has none of that name."""
    path = Path(*module.split("."))
    places = (ROOT / folder / f for folder in ("", "operator") for f in (path / "__main__.py", path.with_suffix(".py")))
    return next((place for place in places if place.is_file()), None)


@cache
def interface(source: Path) -> tuple[frozenset[str], frozenset[str], bool]:
    """Return options and commands of the module's argparse parsers, and whether it takes a program with its own
    arguments.

    Modules are read, not imported: some need TensorFlow, or root, to be imported.
    """
    options, subcommands, text = {"--help", "-h"}, set(), source.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function == "add_argument":
                options |= {name for name in names if name.startswith("-")}
            elif function == "add_parser" or (function == "add" and isinstance(node.func, ast.Name)):
                subcommands |= set(names[:1])
    return frozenset(options), frozenset(subcommands), "REMAINDER" in text


def _helm(words: Sequence[str]) -> str:
    if words and words[0] not in HELM:
        return f"helm {words[0]} is not known"
    values = yaml.safe_load((ROOT / "charts" / "pstraining" / "values.yaml").read_text(encoding="utf-8"))
    for option, given in pairwise(words):
        if re.fullmatch(r"--set(-string|-json)?", option):
            for pair in re.split(r",(?![^{]*\})", given):
                if wrong := unknown_value(values, pair.partition("=")[0]):
                    return f"the chart has no value {wrong}"
    return ""


def unknown_value(values: Any, path: str) -> str:
    """Return the path if the chart has no such value; a value that is empty by default accepts anything."""
    for step in re.split(r"(?<!\\)\.|\[\d+\]", path):
        if not values and isinstance(values, dict | list):
            return ""
        if step and (not isinstance(values, dict) or step not in values):
            return path
        values = values[step] if step else values
    return ""


def _kubectl(words: Sequence[str]) -> str:
    verb = next((w for i, w in enumerate(words) if not w.startswith("-") and words[i - 1 : i] != ["-n"]), "")
    if verb == "pstraining":
        return plugin(words[words.index(verb) + 1 :])
    if verb not in KUBECTL:
        return f"kubectl {verb} is not known"
    for word in words:
        condition = re.fullmatch(r"--for=condition=(\w+)(=\w+)?", word)
        if condition and any("pst" in w for w in words) and condition[1] not in set(Condition):
            return f"jobs have no condition {condition[1]}"
    return ""


def plugin(words: Sequence[str]) -> str:
    """Return the problem of a call of the plugin; running text may leave out arguments."""
    commands = program().commands
    if not words or words[0] == "--help":
        return ""
    if words[0] not in commands:
        return f"kubectl pstraining has no command {words[0]}"
    try:
        commands[words[0]].make_context(words[0], [w for w in words[1:] if w != "--help"])
    except _USAGE_ERROR as error:
        return "" if type(error).__name__ == "MissingParameter" else f"kubectl pstraining {words[0]}: {error}"
    return ""


_CHECKS = {
    "make": _make,
    "python": _python,
    "python3": _python,
    "helm": _helm,
    "kubectl": _kubectl,
    "kubectl-pstraining": plugin,
}
COMMANDS = list(found_commands())


@pytest.mark.parametrize(("place", "command"), COMMANDS, ids=[f"{p}-{i}" for i, (p, _) in enumerate(COMMANDS)])
def test_documented_commands_exist(place: str, command: str) -> None:
    assert command in EXCEPTIONS or not problem(command), f"{place}: {command}"


def test_exceptions_are_needed() -> None:
    assert not [c for c in EXCEPTIONS if c not in {text for _, text in COMMANDS} or not problem(c)]


def test_what_installs_the_chart_names_its_image() -> None:
    """A command that installs the chart names its image, which has no default, so that Helm would fail."""
    installs = [(place, text) for place, text in COMMANDS if text.startswith("helm install pstraining ")]
    assert len(installs) >= 3
    assert not [place for place, text in installs if "image.repository=" not in text]


def test_commands_of_every_kind_are_found() -> None:
    found = [text for _, text in COMMANDS]
    for begin in ("make demo", "helm install", "kubectl pstraining logs", "python -m tests.campaign", "kubectl wait"):
        assert any(text.startswith(begin) for text in found), begin
    assert "python3 -m localcluster kubeconfig" in found


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("$ make test", ["make test"]),
        ("    A=1 B=.. make test-e2e", ["make test-e2e"]),
        ("export X=$(python3 -m localcluster bin):$PATH", ["python3 -m localcluster bin"]),
        ("make a && helm list; kubectl get x", ["make a", "helm list", "kubectl get x"]),
        ("kubectl get x 2>/dev/null | python -m y > z", ["kubectl get x", "python -m y"]),
        ("digits  Running  1/1", []),
        ("", []),
    ],
)
def test_commands_of_a_line(line: str, commands: list[str]) -> None:
    assert list(commands_of(line)) == commands


def test_continued_lines_are_one() -> None:
    assert list(lines("a \\\n  b\nc\n")) == [(0, "a   b"), (2, "c")]


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("make test-unit PYTHON=python3.12  # why", ""),
        ("make test-<layer>", ""),
        ("make tests", "make has no target tests"),
        ("make .venv", "make has no target .venv"),
        ("python -m localcluster up --nodes 3", ""),
        ("python3 -m venv ~/pstraining", ""),
        ("python -m localclusters up", "there is no module localclusters"),
        ("python -m localcluster start", "localcluster has no command start"),
        ("python -m tests.campaign --thinner 4", "tests.campaign has no option --thinner"),
        ("python -m pstraining.runtime.local --ps 1 -m examples.digits --own", "examples.digits has no option --own"),
        ("python -m pstraining.runtime.local --pss=1 train.py", "pstraining.runtime.local has no option --pss=1"),
        ("python -m pstraining.runtime.local train.py --own", ""),
        ("helm install x y --set image.tag=1,watch.namespaces={a,b} --set podLabels.a=b", ""),
        ("helm install x y --set 'watch.namespaces[0]=a'", ""),
        ("helm install x y --set image.tags=1", "the chart has no value image.tags"),
        ("helm install x y --set-string image.tag.x=1", "the chart has no value image.tag.x"),
        ("helm instal x", "helm instal is not known"),
        ("kubectl -n team get pstj", ""),
        ("kubectl gets pstj", "kubectl gets is not known"),
        ("kubectl wait --for=condition=Done pstj/x", "jobs have no condition Done"),
        ("kubectl pstraining takeover digits --shard 0", ""),
        ("kubectl pstraining takeover", ""),
        (
            "kubectl pstraining takeover <job> --shard",
            "kubectl pstraining takeover: Option '--shard' requires an argument.",
        ),
        ("kubectl pstraining takeover <job> --shard <n>", ""),
        ("kubectl pstraining takeover JOB --shard N", ""),
        ("kubectl pstraining take", "kubectl pstraining has no command take"),
        ("kubectl pstraining logs x --rolls worker", "kubectl pstraining logs: No such option: --rolls"),
        ("kubectl-pstraining status --help", ""),
        ("make 'test", "No closing quotation"),
    ],
)
def test_problems_are_reported(command: str, wrong: str) -> None:
    assert problem(command).partition(" (")[0].partition(" Did you")[0] == wrong


def test_json_in_commands_can_be_read() -> None:
    """JSON in commands, as settings and patches have it, can be read."""
    for place, command in COMMANDS:
        for word in split(command):
            if word.startswith("{") and '"' in word:
                assert json.loads(word), place
