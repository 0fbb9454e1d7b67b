"""A class name has one meaning, and the runtime names its types: few of them are `Any`.

Tests of these folders need no TensorFlow.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

import pstraining

PACKAGE = Path(pstraining.__file__).parent
ANY_MAX = 80
"""Occurrences of `Any` in the runtime, imports included: TensorFlow and Keras have no types."""
CLASS = re.compile(r"^ *class (\w+)[(:]", re.MULTILINE)


def definitions() -> dict[str, set[str]]:
    """The modules that define each class name, nested classes included."""
    modules = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for name in CLASS.findall(path.read_text(encoding="utf-8")):
            modules[name].add(str(path.relative_to(PACKAGE)))
    return modules


def test_no_two_modules_define_one_class_name() -> None:
    twice = {name: sorted(modules) for name, modules in definitions().items() if len(modules) > 1}
    assert twice == {}


def test_few_types_of_the_runtime_are_any() -> None:
    found = {
        str(path.relative_to(PACKAGE)): len(re.findall(r"\bAny\b", path.read_text(encoding="utf-8")))
        for path in (PACKAGE / "runtime").rglob("*.py")
    }
    assert sum(found.values()) <= ANY_MAX, sorted(found.items(), key=lambda entry: -entry[1])[:10]


def test_no_test_of_this_layer_imports_tensorflow() -> None:
    """Each process of the layer collects all tests: an import would cost four seconds and half a gigabyte in each.

    While a test runs, conftest.py prevents the import.
    """
    assert sys.modules.get("tensorflow") is None
