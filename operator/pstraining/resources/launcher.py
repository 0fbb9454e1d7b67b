"""The launcher's ConfigMap: immutable and named by version, so that a running job keeps its launcher."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.resources.metadata import metadata


@dataclass(frozen=True)
class LauncherFiles:
    """The launcher's files in this version of the operator."""

    version: str
    files: Mapping[str, str]
    """The text of each file by name."""


@dataclass(frozen=True)
class LauncherMap:
    """The launcher's ConfigMap that a pod mounts."""

    name: str
    is_current: bool = True
    """Whether its launcher is that of this version. A running job keeps the launcher with which it started. A launcher
    of a former version may only serve the status of parameter servers, and may not follow layouts."""


def config_map_name(job: PSTrainingJob, launcher: LauncherFiles) -> str:
    """Return the name of the launcher's ConfigMap for a job."""
    return names.launcher_config_map(job.metadata.name, launcher.version)


def build(job: PSTrainingJob, launcher: LauncherFiles) -> dict[str, Any]:
    """Return the launcher's ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, config_map_name(job, launcher), "launcher"),
        "immutable": True,
        "data": dict(launcher.files),
    }
