"""The files of a release: all files that git tracks, with fixed modes and times, in a separate folder.

A checkout's modes depend on its user's umask, and its times on the time of the checkout. Images would contain both.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from localcluster.images import project_version

TOPS = (".dockerignore", "CHANGELOG.md", "Dockerfile", "LICENSE", "README.md", "pyproject.toml")
FOLDERS = ("charts", "crds", "examples", "hack/locks", "hack/release", "operator")


class ReleaseError(Exception):
    """A release cannot be built; the message gives the reason and a remedy."""


@dataclass(frozen=True)
class Source:
    """The commit of a release."""

    root: Path
    version: str
    commit: str
    """The commit's hash, followed by `-dirty` if files differ from the commit."""
    epoch: int
    """The commit's time in seconds, the time of every file in the release."""


def stage(repo: Path, folder: Path, *, uncommitted: bool) -> Source:
    """Copy the files of a release into an empty folder.

    Args:
        repo: the checkout.
        folder: the folder for the copies, outside the checkout,
            whose .gitignore would hide them from the build of the wheel.
        uncommitted: whether files that differ from the commit, including new ones, are accepted.

    Raises:
        ReleaseError: files differ from the commit, or versions from each other.
    """
    changes = _git(repo, "status", "--porcelain").splitlines()
    if changes and not uncommitted:
        raise ReleaseError(
            f"{len(changes)} files differ from the commit, such as {changes[0][3:]}: commit or stash them first"
        )
    folder.mkdir()
    kinds = ("--cached", "--others", "--exclude-standard") if uncommitted else ("--cached",)
    for name in filter(None, _git(repo, "ls-files", "-z", *kinds, *TOPS, *FOLDERS).split("\0")):
        if (repo / name).is_file():
            _copy(repo / name, folder / name)
    given = os.environ.get("SOURCE_DATE_EPOCH")
    epoch = int(given or _git(repo, "log", "-1", "--format=%ct"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (epoch, epoch))
    commit = _git(repo, "rev-parse", "HEAD").strip() + ("-dirty" if changes else "")
    version = project_version((folder / "pyproject.toml").read_text(encoding="utf-8"))
    return Source(folder, version, commit, epoch)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def _git(repo: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=repo, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"a release is made of a git checkout: git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout
