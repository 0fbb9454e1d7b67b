"""Reads and merges the kubeconfigs that kubectl would read, by its rules.

Source of the rules: k8s.io/client-go tools/clientcmd, loader.go and merge.go. The first file with a cluster, user or
context of a name provides the whole entry. The first current-context that is not empty is used. Relative paths are
relative to their file.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from pstraining.api.values import path_of
from pstraining.cli.connection.models import Context, File, KubeconfigCluster, User
from pstraining.cli.connection.overrides import Overrides
from pstraining.cli.errors import CommandError
from pstraining.cli.reading.sources import text_of
from pstraining.cli.reading.texts import first_document

KUBECONFIG: Final = "KUBECONFIG"
KIND, VERSION = "Config", "v1"

_Part = TypeVar("_Part", bound=BaseModel)


@dataclass(frozen=True)
class Kubeconfig:
    """The merged content of all files."""

    current_context: str = ""
    clusters: Mapping[str, KubeconfigCluster] = field(default_factory=dict)
    users: Mapping[str, User] = field(default_factory=dict)
    contexts: Mapping[str, Context] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    """The path of each user's file."""
    missing: tuple[str, ...] = ()
    """Paths of files that do not exist."""


def load(overrides: Overrides, environ: Mapping[str, str]) -> Kubeconfig:
    """Read and merge the files.

    Raises:
        CommandError: the file of --kubeconfig does not exist, or a file cannot be read or is not a kubeconfig.
    """
    found: list[tuple[str, str]] = []
    missing: list[str] = []
    for name in _names(overrides, environ):
        try:
            found.append((name, text_of(Path(name).read_bytes())))
        except FileNotFoundError as error:
            if overrides.kubeconfig:
                raise CommandError(f"--kubeconfig {name}: there is no such file.") from error
            missing.append(name)
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise CommandError(f"The kubeconfig {name} cannot be read: {why}. {_way_out(overrides)}") from error
    return merged(found, missing)


def merged(files: Iterable[tuple[str, str]], missing: Iterable[str] = ()) -> Kubeconfig:
    """Merge kubeconfigs.

    Args:
        files: paths and texts, in order of precedence.
        missing: paths of files that do not exist.

    Raises:
        CommandError: a text is not a kubeconfig.
    """
    current = ""
    clusters: dict[str, KubeconfigCluster] = {}
    users: dict[str, User] = {}
    contexts: dict[str, Context] = {}
    origins: dict[str, str] = {}
    for path, text in files:
        file, base = _file(path, text), Path(os.path.abspath(path)).parent
        current = current or file.current_context
        own = {u.name: _user_from(base, u.user) for u in file.users}
        origins |= {name: path for name in own if name not in users}
        users = own | users
        clusters = {c.name: _resolved(base, c.cluster, "certificate_authority") for c in file.clusters} | clusters
        contexts = {c.name: c.context for c in file.contexts} | contexts
    return Kubeconfig(current, clusters, users, contexts, origins, tuple(missing))


def _names(overrides: Overrides, environ: Mapping[str, str]) -> list[str]:
    if overrides.kubeconfig:
        return [overrides.kubeconfig]
    if listed := environ.get(KUBECONFIG):
        return [name for name in dict.fromkeys(listed.split(os.pathsep)) if name]
    # Not Path.home(), which raises an error for a user whom the system does not know, as in a pod.
    return [str(Path(environ.get("HOME") or os.path.expanduser("~")) / ".kube" / "config")]


def _way_out(overrides: Overrides) -> str:
    return "Select another --kubeconfig." if overrides.kubeconfig else "Set KUBECONFIG to use another file."


def _file(path: str, text: str) -> File:
    body = first_document(path, text) or {}
    if not isinstance(body, dict):
        raise CommandError(f"{path} is not a kubeconfig, a mapping with clusters, users and contexts.")
    kind, version = body.get("kind") or KIND, body.get("apiVersion") or VERSION
    if (kind, version) != (KIND, VERSION):
        raise CommandError(f"{path} is not a kubeconfig: its kind is {kind} of {version}, not {KIND} of {VERSION}.")
    try:
        found = File.model_validate(body)
    except ValidationError as error:
        fault = error.errors()[0]
        where = path_of(fault["loc"])
        raise CommandError(f"The kubeconfig {path} cannot be used: {where}: {fault['msg']}.") from error
    for kind, names in (
        ("clusters", [c.name for c in found.clusters]),
        ("users", [u.name for u in found.users]),
        ("contexts", [c.name for c in found.contexts]),
    ):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise CommandError(f"The kubeconfig {path} cannot be used: {kind} has two entries with the name {twice}.")
    return found


def _user_from(base: Path, user: User) -> User:
    user = _resolved(base, user, "client_certificate", "client_key", "token_file")
    # A command without a slash is searched in PATH.
    if user.exec is not None and os.sep in user.exec.command:
        return user.model_copy(update={"exec": _resolved(base, user.exec, "command")})
    return user


def _resolved(base: Path, part: _Part, *fields: str) -> _Part:
    """Return the entry with its relative paths joined to a folder."""
    paths = {f: os.path.normpath(base / value) for f in fields if (value := getattr(part, f))}
    return part.model_copy(update=paths)
