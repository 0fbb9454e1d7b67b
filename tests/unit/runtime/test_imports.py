"""Imports that a parameter server must avoid."""

import ast
import subprocess
import sys
from pathlib import Path

from pstraining.runtime.config.server import launcher_file


def test_importing_the_runtime_imports_no_tensorflow() -> None:
    source = "import sys, pstraining.runtime, pstraining.runtime.local; print(*sorted(sys.modules))"
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3] / 'operator')!r}); {source}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"tensorflow", "keras", "numpy"} & set(found)


def test_the_launcher_is_found_as_a_file() -> None:
    assert launcher_file().name == "launch.py"


def test_autograph_converts_no_traced_function() -> None:
    """A function that AutoGraph converts costs up to half a second, in each process."""
    runtime = Path(launcher_file()).parents[1] / "runtime"
    calls = [
        (file.name, node.lineno, {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords})
        for file in runtime.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tf.function"
    ]
    assert len(calls) > 40
    assert not [call for call in calls if call[2].get("autograph") != "False"]
