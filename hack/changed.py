"""The layers, and their test files, that a change may have broken.

`make test-changed` runs them. Cheap layers run completely. Of the other layers only test files run that a changed
module reaches. It reaches them by imports (read with grimp) or by `conftest.py`, or they name the module as the program
of a process, such as `"pstraining.controller.main"`. Tests that use a module only inside a pod are not found, because
images contain the whole package; a note of the plan reports this. Except for `Repository.read` and `changed_files`, all
functions are pure.
"""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from hack.layers import LAYERS, ROOT, Layer

PACKAGES = ("pstraining", "hack", "localcluster", "bench", "examples", "tests")
ALWAYS = ("lint", "drift")
WHOLE = (*ALWAYS, "unit")
"""Layers that run completely or not at all."""
DOCS_TESTS = "tests/unit/docs"
EVERYTHING = ("pyproject.toml", "hack/install.py", "hack/locks/")
"""Files that every layer depends on."""
FOLDERS: Mapping[str, tuple[str, ...]] = {
    "charts/": ("unit", "chart", "controlplane"),
    "crds/": ("unit", "property", "chart", "controlplane"),
    "localcluster/": ("unit", "e2e"),
    "Dockerfile": ("e2e",),
    ".dockerignore": ("e2e",),
    "Makefile": ("unit",),
    ".ci/": (),
    ".gitignore": (),
    "LICENSE": (),
}
"""Layers that run completely after a change below a folder, besides the test files that its modules reach."""
DATA: Mapping[str, str] = {
    "examples/": "tests.support.examples",
    "operator/pstraining/launcher/": "pstraining.launcher",
}
"""Modules that read the files of a folder, including files that are modules themselves."""
SOURCES = tuple("operator/pstraining/" if package == "pstraining" else f"{package}/" for package in PACKAGES)


class ChangeError(Exception):
    """git could not list the changed files."""


@dataclass(frozen=True)
class Repository:
    """The repository's modules and their uses, from which a plan is computed."""

    files: frozenset[str]
    """All Python files of PACKAGES."""
    users: Mapping[str, frozenset[str]]
    """The modules that use each module directly."""

    @classmethod
    def read(cls, root: Path = ROOT) -> "Repository":
        """Read the modules and their uses."""
        import grimp

        for folder in (str(root / "operator"), str(root)):
            if folder not in sys.path:
                sys.path.insert(0, folder)
        graph = grimp.build_graph(*PACKAGES, cache_dir=None)
        users = {module: set(graph.find_modules_that_directly_import(module)) for module in graph.modules}
        files = python_files(root)
        for file in files:
            if file.startswith("tests/"):
                for named in named_modules((root / file).read_text("utf-8"), users):
                    users[named].add(module_of(file))
        return cls(frozenset(files), {module: frozenset(by) for module, by in users.items()})


@dataclass
class Plan:
    """The layers and test files to run, with the reasons."""

    reasons: dict[str, dict[str, None]] = field(default_factory=dict)
    """The changes that require each layer."""
    whole: set[str] = field(default_factory=set)
    files: dict[str, set[str]] = field(default_factory=dict)
    """The test files to run of each layer that does not run completely."""
    notes: list[str] = field(default_factory=list)

    def add(self, layer: str, why: str, files: Collection[str] | None = None) -> None:
        """Add a layer, or some of its test files."""
        self.reasons.setdefault(layer, {})[why] = None
        if files is None:
            self.whole.add(layer)
        else:
            self.files.setdefault(layer, set()).update(files)

    def layers(self) -> list[Layer]:
        """Return the layers to run, in their order."""
        chosen = (layer for layer in LAYERS if layer.name in self.reasons)
        return [x if x.name in self.whole else x.only(self.files[x.name]) for x in chosen]

    def text(self) -> str:
        """Return the plan as text."""
        if not self.reasons:
            return "nothing was changed: nothing to run"
        lines = ["== what the change asks for"]
        for layer in self.layers():
            lines.append(f"  {layer.name:<13} {_few(list(self.reasons[layer.name]))}")
            if layer.narrowed:
                lines += [f"  {'':<13}   {path}" for path in layer.folders]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def changed_files(base: str, root: Path = ROOT) -> list[str]:
    """Return the files that differ from the merge base with a revision, committed or not, and untracked files.

    Raises:
        ChangeError: the revision does not exist.
    """
    common = _git(root, "merge-base", base, "HEAD").strip()
    differ = _git(root, "diff", "--name-only", "--no-renames", "-z", common, "--")
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return sorted({file for file in f"{differ}{new}".split("\0") if file})


def plan(changes: Sequence[str], repository: Repository) -> Plan:
    """Return the plan for changed files, given as paths from the root."""
    made = Plan()
    inside = False
    for change in changes:
        for layer in ALWAYS:
            made.add(layer, change)
        if any(change.startswith(path) for path in EVERYTHING):
            _run_all(made, f"{change}, on which every layer depends")
            continue
        seeds = seeds_of(change, repository)
        whole = next((layers for path, layers in FOLDERS.items() if change.startswith(path)), None)
        if whole is not None:
            for layer in whole:
                made.add(layer, change)
        elif is_page(change):
            made.add("unit", change, [DOCS_TESTS])
        elif not seeds and not is_gone(change, repository):
            _run_all(made, f"{change}, of which it is not known what uses it")
            continue
        if seeds or is_gone(change, repository):
            made.add("unit", change)
        inside |= change.startswith("operator/")
        for layer, files in by_layer(test_files(seeds, repository)).items():
            made.add(layer, change, files)
    if inside and "e2e" not in made.whole:
        made.notes.append("tests of e2e that meet the package only inside a pod are not run here; make test runs them")
    return made


def seeds_of(change: str, repository: Repository) -> frozenset[str]:
    """Return the module of a changed file, and the modules that read the file."""
    if is_page(change) or not change.startswith(SOURCES):
        return frozenset()
    readers = {module for path, module in DATA.items() if change.startswith(path)}
    if change in repository.files:
        module = module_of(change)
        package = change.endswith("/__init__.py")
        below = (m for m in repository.users if m.startswith(f"{module}.")) if package else ()
        readers |= {module, *below}
    elif not change.endswith(".py"):
        readers |= readers_of(change, repository)
    return frozenset(readers & repository.users.keys())


def readers_of(change: str, repository: Repository) -> set[str]:
    """Return the modules that may read a file: the one of its name, or all in the nearest folder with modules."""
    twin = PurePosixPath(change).with_suffix(".py").as_posix()
    if twin in repository.files:
        return {module_of(twin)}
    folders = (parent.as_posix() for parent in PurePosixPath(change).parents)
    near = ({module_of(f) for f in repository.files if f.startswith(f"{folder}/")} for folder in folders)
    return next((found for found in near if found), set())


def test_files(seeds: Iterable[str], repository: Repository) -> list[str]:
    """Return the test files that modules reach."""
    paths = {module_of(file): file for file in repository.files}
    reached: set[str] = set()
    waiting = list(seeds)
    while waiting:
        module = waiting.pop()
        if module in reached:
            continue
        reached.add(module)
        waiting += repository.users.get(module, ())
        if module.endswith(".conftest"):
            folder = module.removesuffix("conftest")
            waiting += (m for m in paths if m.startswith(folder) and _is_test(paths[m]))
    found = (paths[module] for module in reached if module in paths)
    return sorted(file for file in found if _is_test(file))


test_files.__test__ = False  # type: ignore[attr-defined]


def by_layer(files: Iterable[str]) -> dict[str, list[str]]:
    """Return test files by layer, without files of no layer, such as the campaign's."""
    found: dict[str, list[str]] = {}
    for file in files:
        for layer in LAYERS:
            if layer.name not in WHOLE and any(file.startswith(f"{folder}/") for folder in layer.folders):
                found.setdefault(layer.name, []).append(file)
    return found


def is_page(change: str) -> bool:
    """Return whether a file is documentation."""
    return change.startswith("docs/") or change.endswith(".md")


def is_gone(change: str, repository: Repository) -> bool:
    """Return whether a file is a deleted module, whose users were changed as well or fail in lint."""
    return change.endswith(".py") and change.startswith(SOURCES) and change not in repository.files


def module_of(file: str) -> str:
    """Return the dotted name of a Python file's module."""
    return file.removeprefix("operator/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def named_modules(source: str, known: Collection[str]) -> Iterator[str]:
    """Yield the modules that a source names in strings, as arguments of `python -m`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            yield from (name for name in (node.value, f"{node.value}.__main__") if name in known)


def python_files(root: Path) -> list[str]:
    """Return all Python files of PACKAGES, as paths from the root."""
    folders = (root / "operator" if package == "pstraining" else root / package for package in PACKAGES)
    return sorted(path.relative_to(root).as_posix() for folder in folders for path in folder.rglob("*.py"))


def _run_all(made: Plan, why: str) -> None:
    made.notes.append(f"every layer is run because of {why}")
    for layer in LAYERS:
        made.add(layer.name, why.partition(",")[0])


def _is_test(file: str) -> bool:
    return file.startswith("tests/") and PurePosixPath(file).name.startswith("test_")


def _few(changes: Sequence[str]) -> str:
    more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
    return ", ".join(changes[:3]) + more


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChangeError(f"git {words[0]}: {done.stderr.strip() or f'ended with {done.returncode}'}")
    return done.stdout
