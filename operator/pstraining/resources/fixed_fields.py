"""A hash of the fields that are fixed while a job runs, which every child with pods carries since its creation.

The API server lets these fields change while a job is suspended. An operator that was away may see neither the
suspension nor the resumption, and then finds pods that were created from other values than the job's. The hash covers
the stored values except defaults, so a new field with a default does not change it. See
docs/project/decisions/0002-render-pods-only-when-they-start.md.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pstraining.api.cel_rules import CHECKPOINT_FIXED, FIXED_WHILE_RUNNING, FREE_WITH_HOT_STANDBYS
from pstraining.api.models import PSTrainingJob
from pstraining.resources import standbys

FORMAT: Final = "3-"
"""The format of the hash. A version that computes another hash uses another format, and does not restart jobs."""


@dataclass
class _Last:
    """The last job with its hash, because a pass compares every child with pods. The job is immutable.

    Both are replaced together, because several threads may plan.
    """

    of: tuple[PSTrainingJob, str] | None = None


_last = _Last()


def digest(job: PSTrainingJob) -> str:
    """Return the hash; it is equal for jobs whose pods may run at the same time."""
    last = _last.of
    if last is None or last[0] is not job:
        last = _last.of = (job, _digest(job))
    return last[1]


def _digest(job: PSTrainingJob) -> str:
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    # Hot standbys are replaced one at a time when these change (policies/rolling_update.py).
    paths = FIXED_WHILE_RUNNING if standbys.is_hot(job) else (*FIXED_WHILE_RUNNING, *FREE_WITH_HOT_STANDBYS)
    if "checkpoint" in spec:
        # Its other fields are not rendered into pods, and may change while the job runs.
        fixed = {field.rstrip("?") for field in CHECKPOINT_FIXED}
        spec["checkpoint"] = {k: v for k, v in spec["checkpoint"].items() if k in fixed}
    values = {path.rstrip("?"): _at(spec, path.rstrip("?")) for path in paths}
    found = {path: value for path, value in values.items() if value is not None}
    if job.spec.training.ordered_sums:  # each worker counts on the same number of gradients
        found["worker.replicas"] = job.spec.worker.replicas
    text = json.dumps({**found, "witnesses": standbys.witnesses(job)}, sort_keys=True)
    return FORMAT + hashlib.sha256(text.encode()).hexdigest()[:10]


def differ(job: PSTrainingJob, carried: str | None) -> bool:
    """Return whether pods were created from other values; False for objects of versions with another format.

    Args:
        job: the job.
        carried: the hash on the child with the pods; None without one.
    """
    return carried is not None and carried.startswith(FORMAT) and carried != digest(job)


def _at(spec: Mapping[str, Any], path: str) -> Any:
    found: Any = spec
    for step in path.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
