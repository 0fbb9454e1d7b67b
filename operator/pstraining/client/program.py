"""The program of a job: the caller's function or script, as files and a command. It only reads files.

A function is sent as its source, so it may not use names from outside itself. An error lists such names.
"""

import __future__

import ast
import builtins
import inspect
import math
import symtable
import sys
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Any, Final

from pstraining.api.values import path_of
from pstraining.client.errors import ClientError

SIZE_MAX: Final = 900 * 1024
"""Maximum total bytes of the files. Kubernetes limits a ConfigMap to 1 MiB."""
_NO_ANNOTATIONS: Final = "from __future__ import annotations\n\n"
"""Unevaluated annotations may contain names from outside the function. Programs that read them get texts."""
_MODULE_NAMES: Final = {"__name__", "__file__", "__doc__"}
_INTERACTIVE: Final = {"display", "get_ipython", "_"}
"""Builtins that only notebooks and interactive sessions have. Magics such as %time use get_ipython."""


@dataclass(frozen=True)
class JobProgram:
    """The files of a job, and the name of the file that it runs."""

    name: str
    """Name of the function or the script, part of the job's default name."""
    main: str
    """Name of the file that runs."""
    files: Mapping[str, str]
    """Contents by name. All files are in one folder."""
    arguments: tuple[str, ...] = ()


def program_of(
    program: Callable[..., object] | str | Path,
    arguments: Mapping[str, Any] | Sequence[str],
    files: Iterable[str | Path],
) -> JobProgram:
    """Return the program of a job.

    Args:
        program: a function, or the path of a script.
        arguments: keyword arguments of the function, or the command line of the script.
        files: paths of modules that the program imports, and of other text files beside it.

    Raises:
        ClientError: the program cannot be sent; the message names the reason.
    """
    if callable(program):
        if not isinstance(arguments, Mapping):
            raise ClientError("arguments: a function takes its keyword arguments, as a dict.")
        found = _of_function(program, arguments)
    else:
        if isinstance(arguments, (Mapping, str)):
            raise ClientError("arguments: a script takes the words of its command line, as a list.")
        if wrong := [word for word in arguments if not is_word(word)]:
            raise ClientError(f"arguments: a script takes texts and numbers, but one is {wrong[0]!r}.")
        path = Path(program)
        found = JobProgram(path.stem, path.name, {path.name: _read(path)}, tuple(map(str, arguments)))
    if isinstance(files, (str, Path)):
        raise ClientError(f"files: it must be a list of paths, such as [{str(files)!r}].")
    others: dict[str, str] = {}
    for path in map(Path, files):
        if path.name in others or path.name in found.files:
            raise ClientError(f"files: two files have the name {path.name}; all files of a job are in one folder.")
        others[path.name] = _read(path)
    every = {**found.files, **others}
    if (size := sum(len(text.encode()) for text in every.values())) > SIZE_MAX:
        raise ClientError(
            f"The program's files have {size} bytes, more than the limit of {SIZE_MAX}: put large files into the image "
            "or onto a volume."
        )
    return JobProgram(found.name, found.main, every, found.arguments)


def is_word(value: object) -> bool:
    """Return whether the text of a value is what a program expects in its command line or its environment."""
    return value is not None and not isinstance(value, (bytes, bytearray, Mapping, list, tuple, set, frozenset))


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()  # not as text, which would change line breaks
    except UnicodeDecodeError:
        raise ClientError(f"{path} is not a text file: put it into the image or onto a volume.") from None
    except OSError as error:
        raise ClientError(f"{path} cannot be read: {error.strerror}.") from None


def _of_function(function: Callable[..., object], arguments: Mapping[str, Any]) -> JobProgram:
    name = getattr(function, "__name__", "")
    if not inspect.isfunction(function) or name == "<lambda>":
        raise ClientError("Only a function that is defined with `def` can be sent: no lambda, method, class or object.")
    try:
        source = inspect.getsource(function)
    except OSError:
        raise ClientError(f"The source of {name} is not available: define it in a file or a notebook cell.") from None
    except (tokenize.TokenError, SyntaxError):
        source = ""  # the file has changed
    if source[:1].isspace():
        # The function keeps its indentation, because without it texts of several lines would change.
        source = f"if True:\n{source}"
    node = _definition(source)
    if not hasattr(function, "__wrapped__") and getattr(node, "name", "") != function.__code__.co_name:
        raise ClientError(f"The file of {name} has changed since it was loaded: load it again.")
    if not isinstance(node, ast.FunctionDef):
        raise ClientError(f"{name} is not a plain function: write it with `def`.")
    if inspect.isgeneratorfunction(function):
        raise ClientError(f"{name} has `yield`, so a call would run nothing of it: leave it out.")
    if node.decorator_list or hasattr(function, "__wrapped__"):  # the source is that of the wrapped function
        raise ClientError(f"{name} has decorators, which are not sent with it: remove them.")
    name = node.name  # the source has no assignment to __name__
    # Only for a function without free variables: one with `nonlocal` does not compile on its own.
    free = {*function.__code__.co_freevars} - {name}
    known = {*_MODULE_NAMES, name, *_builtins(function.__globals__)}
    if captured := sorted(free or {*_captured(_NO_ANNOTATIONS + source, known)}):
        raise ClientError(
            f"{name} uses {', '.join(captured)} from outside itself, which is not sent with it. Import or define "
            "it inside the function, or pass it by `arguments`."
        )
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ClientError(f"arguments do not fit {name}: {error}.") from None
    call = ", ".join(_argument(key, _literal(key, value)) for key, value in arguments.items())
    is_unevaluated = bool(function.__code__.co_flags & __future__.annotations.compiler_flag)
    head = _NO_ANNOTATIONS if is_unevaluated or any(_captured(source, known)) else ""
    text = f'{head}{source}\n\nif __name__ == "__main__":\n    {name}({call})\n'
    main = f"{name}_program.py" if _is_module(name) else f"{name}.py"
    return JobProgram(name, main, {main: text})


def _definition(source: str) -> ast.stmt | None:
    """Return the first statement of a function's source, which a changed file may have replaced by other lines."""
    try:
        node = ast.parse(source).body[0]
    except (SyntaxError, IndexError):
        return None
    return node.body[0] if isinstance(node, ast.If) else node


def _is_module(name: str) -> bool:
    """Return whether programs may import a module of this name, which a file beside them would hide."""
    return name in sys.stdlib_module_names or find_spec(name) is not None


def _builtins(module: Mapping[str, object]) -> set[str]:
    """Return the builtins that a module has not replaced, as `from numpy import *` does with sum."""
    return {
        name
        for name, value in vars(builtins).items()
        if name not in _INTERACTIVE and (name.startswith("__") or _is_same(module.get(name, value), value))
    }


def _is_same(found: object, builtin: object) -> bool:
    """Return whether a name still has its builtin's meaning. IPython wraps `open`, and has an `exit` of its own."""
    is_ipython = type(found).__module__.startswith("IPython.")
    return found is builtin or is_ipython or getattr(found, "__wrapped__", None) is builtin


def _captured(source: str, known: Collection[str]) -> Iterator[str]:
    """Yield the names that a function's source uses, and neither defines nor knows."""
    pending = [symtable.symtable(source, "program", "exec")]
    while pending:
        table = pending.pop()
        pending += table.get_children()
        for symbol in table.get_symbols():
            is_outer = symbol.is_global() or table.get_type() == "module"
            if is_outer and symbol.is_referenced() and symbol.get_name() not in known:
                yield symbol.get_name()


def _argument(name: str, literal: str) -> str:
    """Return an argument of a call; the names in a function's `**` need not be identifiers, such as `lambda`."""
    is_plain = name.isidentifier() and not iskeyword(name)
    return f"{name}={literal}" if is_plain else f"**{{{name!r}: {literal}}}"


def _literal(name: str, value: Any) -> str:
    text = repr(value)
    try:
        if ast.literal_eval(text) == value:
            return text
    except (ValueError, SyntaxError):
        pass
    path, wrong = next(_without_literal(value, name), (name, value))
    if isinstance(wrong, float) and not math.isfinite(wrong):
        raise ClientError(f"arguments: {path} is {wrong}, which cannot be sent: pass a text, and call float() on it.")
    raise ClientError(
        f"arguments: {path} is of the type {type(wrong).__name__}; only Python's own numbers, texts, None, booleans, "
        "and lists, tuples, dicts and sets of them can be sent: convert it."
    )


def _without_literal(value: Any, *steps: str | int) -> Iterator[tuple[str, Any]]:
    """Yield the innermost values that have no literal, each with its path."""
    items: Iterable[tuple[str | int, Any]] = ()
    if type(value) is dict:
        items = [(str(name), part) for name, item in value.items() for part in (name, item)]
    elif type(value) in (list, tuple, set):
        items = enumerate(value)
    elif type(value) not in (bool, int, str, bytes, complex, type(None)) and not (
        type(value) is float and math.isfinite(value)
    ):
        yield path_of(steps), value
    for step, item in items:
        yield from _without_literal(item, *steps, step)
