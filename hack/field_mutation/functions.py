"""A check that a function in a table exists."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


def exists(folder: Path, place: str) -> bool:
    """Return whether `file::function` exists below a folder."""
    file, _, function = place.partition("::")
    return bool(function) and function in _functions(folder / file)


@cache
def _functions(file: Path) -> frozenset[str]:
    if not file.is_file():
        return frozenset()
    return frozenset(found.name for found in functions_of(ast.parse(file.read_text(encoding="utf-8"))))


def functions_of(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return all functions, including methods and nested ones; expressions are skipped because there are many."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from functions_of(node)
