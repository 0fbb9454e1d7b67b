"""Shows that every field of a job's spec has a test that fails when the field is ignored.

    python -m hack.field_mutation                      all fields
    python -m hack.field_mutation spec.network ...     fields with these prefixes

The field's test (fields.toml) runs twice. It must pass unchanged. It must fail if the field is removed from every job
before the operator's code reads it (plugin.py).
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hack.field_mutation import fields

ROOT = Path(__file__).resolve().parents[2]

PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
FAILED = 1
"""pytest's exit code when tests ran and some failed."""


def run(tests: Sequence[str], switched_off: fields.Entry | None = None) -> int:
    """Run tests, and return pytest's exit code."""
    command, environment = [*PYTEST], dict(os.environ)
    if switched_off is not None:
        command += ["-p", "hack.field_mutation.plugin"]
        environment["PSTRAINING_SWITCHED_OFF"] = switched_off.path
        environment["PSTRAINING_INSTEAD"] = json.dumps(switched_off.instead)
    paths = [os.path.relpath(fields.TESTS / test, ROOT) for test in tests]
    path = os.pathsep.join([str(ROOT / "operator"), str(ROOT), environment.get("PYTHONPATH", "")])
    environment["PYTHONPATH"] = path
    return subprocess.run([*command, *paths], check=False, cwd=ROOT, env=environment, capture_output=True).returncode


def chosen(table: dict[str, fields.Entry], begins: Sequence[str]) -> list[fields.Entry]:
    """Return the entries of the fields with these prefixes."""
    return [e for e in table.values() if not begins or any(e.path.startswith(b) for b in begins)]


def main(begins: Sequence[str]) -> int:
    """Remove fields, and return the number of those whose tests do not fail."""
    found = chosen(fields.entries(fields.TABLE.read_text(encoding="utf-8")), begins)
    tried = [e for e in found if e.can_be_switched_off]
    if not found or (tried and run(sorted({e.test for e in tried})) != 0):
        print("no such field" if not found else "the tests fail as they are")
        return 1
    missed = 0
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for entry, code in zip(tried, pool.map(lambda e: run([e.test], e), tried), strict=True):
            missed += code != FAILED
            word = "red" if code == FAILED else f"NOT MISSED (pytest ended with {code})"
            print(f"{word:4} {entry.path}  {entry.test}", flush=True)
    for entry in found:
        if entry not in tried:
            print(f"{'todo' if entry.todo else 'one '} {entry.path}")
    print(f"{len(tried) - missed} of {len(tried)} fields are missed by their tests when they are switched off")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
