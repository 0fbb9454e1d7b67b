"""Functions and scripts as they are sent, and rejections with a name."""

import builtins
import functools
import linecache
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pstraining.client.errors import ClientError
from pstraining.client.program import SIZE_MAX, program_of

OUTSIDE = 3


def whole(steps: int, name: str = "x") -> dict[str, Any]:
    import json

    def inner(values: list[int]) -> int:
        return sum(value for value in values if value) + steps

    class Local:
        field = 1

    return json.loads(json.dumps({"sum": inner([1, 2]), "name": name, "field": Local.field}))  # type: ignore[no-any-return]


def uses_a_global() -> int:
    return OUTSIDE + len(str(Path()))


def has_a_default(value: int = OUTSIDE) -> int:
    return value


def capturing() -> Callable[[], int]:
    captured = 1

    def inner() -> int:
        return captured

    return inner


def counting() -> Callable[[], None]:
    count = 0

    def inner() -> None:
        nonlocal count
        count += 1

    return inner


def generator() -> Iterator[int]:
    yield 1


def run(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "imported"}
    exec(compile(text, "program", "exec"), found)
    return found


def test_a_function_travels_as_its_source_with_its_arguments() -> None:
    program = program_of(whole, {"steps": 4, "name": "it's"}, ())
    assert (program.name, program.main, list(program.files)) == ("whole", "whole.py", ["whole.py"])
    text = program.files["whole.py"]
    assert text.endswith('if __name__ == "__main__":\n    whole(steps=4, name="it\'s")\n')
    assert run(text)["whole"](4, "y") == {"sum": 7, "name": "y", "field": 1}


def tuned(**rates: float) -> None:
    raise ValueError(rates)


def test_arguments_need_not_have_names_of_variables() -> None:
    rates = {"lambda": 0.5, "learning-rate": 1.0, "decay": 2.0}
    text = program_of(tuned, rates, ()).files["tuned.py"]
    with pytest.raises(ValueError, match="lambda") as raised:
        exec(compile(text, "program", "exec"), {"__name__": "__main__"})
    assert raised.value.args == (rates,)


def profile() -> None:
    """TensorFlow imports the standard library's module of this name."""


def numpy() -> None:
    """A package's name."""


@pytest.mark.parametrize("function", [profile, numpy])
def test_a_function_with_a_modules_name_does_not_hide_the_module(function: Any) -> None:
    program = program_of(function, {}, ())
    assert (program.name, program.main) == (function.__name__, f"{function.__name__}_program.py")
    assert list(program.files) == [program.main]


def test_texts_of_several_lines_travel_unchanged() -> None:
    """The function is nested, and its texts have lines with more and with less indentation."""

    def nested() -> str:
        return """
        more
    less
none"""

    text = program_of(nested, {}, ()).files["nested.py"]
    assert run(text)["nested"]() == nested()
    source = 'def blank() -> str:\n    return """a\n  \nb"""\n'  # here, a formatter would remove the two spaces
    linecache.cache["<blank>"] = (len(source), None, source.splitlines(keepends=True), "<blank>")
    found: dict[str, Any] = {}
    exec(compile(source, "<blank>", "exec"), found)
    assert run(program_of(found["blank"], {}, ()).files["blank.py"])["blank"]() == "a\n  \nb"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (uses_a_global, "uses_a_global uses OUTSIDE, Path from outside itself"),
        (has_a_default, "has_a_default uses OUTSIDE from outside itself"),
        (capturing(), "inner uses captured from outside itself"),
        (counting(), "inner uses count from outside itself"),
        (generator, "generator has `yield`, so a call would run nothing of it"),
        (functools.wraps(whole)(lambda: 1), "whole has decorators"),
        (lambda: 1, "Only a function that is defined with `def` can be sent"),
        (Path.exists, "exists uses .* from outside itself"),
        (Path("x").exists, "Only a function"),
        (Path, "Only a function"),
        (print, "Only a function"),
    ],
)
def test_captured_variables_are_rejected_by_name(function: Any, words: str) -> None:
    with pytest.raises(ClientError, match=words):
        program_of(function, {}, ())


def test_names_that_only_notebooks_have_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython adds them to the builtins. Magics become calls of get_ipython."""
    for name in ("display", "get_ipython", "_"):
        monkeypatch.setattr(builtins, name, print, raising=False)
        source = f"def shows():\n    {name}('x')\n"
        linecache.cache["<cell>"] = (len(source), None, source.splitlines(keepends=True), "<cell>")
        found: dict[str, Any] = {}
        exec(compile(source, "<cell>", "exec"), found)
        with pytest.raises(ClientError, match=f"shows uses {name} from outside itself"):
            program_of(found["shows"], {}, ())


def defined(source: str, module: dict[str, Any]) -> Any:
    """Return the function `mine` of a module."""
    name = f"<{source}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec", dont_inherit=True), module)
    return module["mine"]


def test_a_builtin_that_the_module_has_replaced_is_rejected() -> None:
    """`from numpy import *` replaces sum, for example. The function would get the builtin on the cluster."""
    mine = defined("def mine():\n    return len(str(sum([1])))\n", {"sum": max, "len": len, "max": min})
    with pytest.raises(ClientError, match="mine uses sum from outside itself"):
        program_of(mine, {}, ())


def test_the_builtins_that_ipython_wraps_are_known() -> None:
    opener = functools.wraps(open)(lambda *_: None)
    leave = type("ExitAutocall", (), {"__module__": "IPython.core.autocall"})()
    mine = defined("def mine():\n    open('x')\n    exit()\n", {"open": opener, "exit": leave})
    assert program_of(mine, {}, ()).main == "mine.py"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def mine(a: int = 1):\n    def inner(x: float): pass\n    return inner.__annotations__\n", {"x": float}),
        ("def mine(a: Outside = 1):\n    return mine.__annotations__\n", {"a": "Outside"}),
        (
            "from __future__ import annotations\ndef mine():\n    def inner(x: float): pass\n"
            "    return inner.__annotations__\n",
            {"x": "float"},
        ),
    ],
)
def test_annotations_are_those_of_the_module(source: str, found: dict[str, Any]) -> None:
    """Programs read them, as those of a dataclass. Only annotations with names from outside are left as texts."""
    mine = defined(source, {"Outside": int})
    assert run(program_of(mine, {}, ()).files["mine.py"])["mine"]() == found


@pytest.mark.parametrize("above", ["def other():\n    pass\n\n\n" * 2, '"""\n' * 5])
def test_a_function_whose_file_has_changed_is_rejected(above: str, tmp_path: Path) -> None:
    file, found = tmp_path / "mine.py", dict[str, Any]()
    source = "x = 1\n\n\ndef mine():\n    pass\n"
    file.write_text(source)
    exec(compile(source, str(file), "exec"), found)
    assert program_of(found["mine"], {}, ()).main == "mine.py"
    file.write_text(above + source)
    with pytest.raises(ClientError, match="The file of mine has changed since it was loaded: load it again"):
        program_of(found["mine"], {}, ())


def test_a_renamed_function_is_called_by_the_name_in_its_source() -> None:
    def first() -> str:
        return first.__module__

    first.__name__ = "second"
    program = program_of(first, {}, ())
    assert (program.name, program.main) == ("first", "first.py")
    assert program.files["first.py"].endswith("    first()\n")


def test_decorators_are_rejected() -> None:
    @functools.wraps(whole)
    def decorated() -> None:
        pass

    del decorated.__wrapped__
    decorated.__name__ = "decorated"
    with pytest.raises(ClientError, match="decorated has decorators"):
        program_of(decorated, {}, ())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps": object()}, "arguments: steps is of the type object; only Python's own numbers"),
        ({"steps": float("nan")}, r"arguments: steps is nan, .* pass a text, and call float\(\) on it"),
        ({"steps": [1, {"most": float("-inf")}]}, r"arguments: steps\[1\]\.most is -inf"),
        ({"steps": [{"a": Path()}]}, r"arguments: steps\[0\]\.a is of the type PosixPath"),
        ({"steps": {Path("a"): 1}}, r"arguments: steps\.a is of the type PosixPath"),
        ({}, "arguments do not fit whole: missing a required argument: 'steps'"),
        ({"steps": 1, "x": 2}, "arguments do not fit whole: got an unexpected keyword argument 'x'"),
        (["1"], "a function takes its keyword arguments"),
    ],
)
def test_arguments_that_cannot_be_serialized_are_rejected(arguments: Any, words: str) -> None:
    with pytest.raises(ClientError, match=words):
        program_of(whole, arguments, ())


def test_a_script_travels_with_its_files_and_its_command_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("x = 1\n")
    program = program_of(tmp_path / "train.py", ["--steps", "3"], [tmp_path / "helper.py"])
    assert (program.main, program.arguments) == ("train.py", ("--steps", "3"))
    assert program.files == {"train.py": "import helper\n", "helper.py": "x = 1\n"}


def test_line_breaks_travel_unchanged(tmp_path: Path) -> None:
    files = {"train.py": "import csv\r\n", "data.csv": "\ufeff1\r\n2\r3\n"}
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode())
    assert program_of(tmp_path / "train.py", (), [tmp_path / "data.csv"]).files == files


def test_files_that_cannot_be_sent_are_rejected(tmp_path: Path) -> None:
    script, binary, large = tmp_path / "train.py", tmp_path / "weights.h5", tmp_path / "large.csv"
    script.write_text("")
    binary.write_bytes(b"\xff\xfe\x00")
    large.write_text("x" * (SIZE_MAX + 1))
    with pytest.raises(ClientError, match=r"weights.h5 is not a text file"):
        program_of(script, (), [binary])
    with pytest.raises(ClientError, match=r"large files into the image"):
        program_of(script, (), [large])
    with pytest.raises(ClientError, match=r"absent.py cannot be read: No such file"):
        program_of(tmp_path / "absent.py", (), ())
    with pytest.raises(ClientError, match=r"two files have the name train.py"):
        program_of(script, (), [script])
    with pytest.raises(ClientError, match=r"a script takes the words"):
        program_of(script, {"steps": 1}, ())
