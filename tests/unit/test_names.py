"""A class name has one meaning: no two modules of the package define the same one."""

import ast
from collections import defaultdict
from pathlib import Path

import pstraining

PACKAGE = Path(pstraining.__file__).parent


def definitions() -> dict[str, set[str]]:
    """The modules that define each class name, nested classes included."""
    modules = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                modules[node.name].add(str(path.relative_to(PACKAGE)))
    return modules


def test_no_two_modules_define_one_class_name() -> None:
    twice = {name: sorted(modules) for name, modules in definitions().items() if len(modules) > 1}
    assert twice == {}
