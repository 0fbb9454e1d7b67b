"""Whether a function that a table names is there."""

import ast
from functools import cache
from pathlib import Path


def exists(folder: Path, place: str) -> bool:
    """Whether `file::function` below a folder exists."""
    file, _, function = place.partition("::")
    return bool(function) and function in _functions(folder / file)


@cache
def _functions(file: Path) -> frozenset[str]:
    if not file.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return frozenset(n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
