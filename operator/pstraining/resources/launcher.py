"""The launcher's ConfigMap: immutable and named by version, so that a running job keeps what it started with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.resources.metadata import metadata


@dataclass(frozen=True)
class LauncherFiles:
    """The launcher that this operator carries."""

    version: str
    files: Mapping[str, str]
    """Name and text of each file."""


def config_map_name(job: PSTrainingJob, launcher: LauncherFiles) -> str:
    """The name of the launcher's ConfigMap in that job."""
    return names.launcher_config_map(job.metadata.name, launcher.version)


def build(job: PSTrainingJob, launcher: LauncherFiles) -> dict[str, Any]:
    """The ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, config_map_name(job, launcher), "launcher"),
        "immutable": True,
        "data": dict(launcher.files),
    }
