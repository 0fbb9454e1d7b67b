"""The possible reasons of each condition, and of actions.

docs/reference/conditions.md and docs/reference/events.md are generated from this module. The simulation in
tests/support checks every status and every action of the unit tests against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pstraining.api.conditions import Condition, Reason


@dataclass(frozen=True)
class Reasons:
    """The reasons of one condition, by its status."""

    true: tuple[Reason, ...]
    false: tuple[Reason, ...] = ()


PODS_WAIT: Final = (
    Reason.UNSCHEDULABLE,
    Reason.SCHEDULING_GATED,
    Reason.WAITING_FOR_GANG,
    Reason.IMAGE_PULL_FAILED,
    Reason.CONTAINER_CONFIG_INVALID,
    Reason.CRASH_LOOP,
    Reason.INIT_CONTAINER_FAILED,
    Reason.QUOTA_EXCEEDED,
    Reason.PODS_REFUSED,
    Reason.NODE_LOST,
    Reason.VOLUME_NOT_MOUNTED,
    Reason.STILL_WAITING,
)
"""Reasons why a pod does not run. Training may continue without that pod."""
OVER: Final = (Reason.SUSPENDED, Reason.AWAITS_ADMISSION, Reason.KUEUE_NOT_INSTALLED, Reason.JOB_FINISHED)
"""Reasons why a condition is false that only a running job can have."""
_ENDS: Final = (Reason.NOT_FINISHED, Reason.JOB_FINISHED)

OF_CONDITIONS: Final[Mapping[Condition, Reasons]] = {
    Condition.CREATED: Reasons(
        (Reason.CHILDREN_CREATED,),
        (Reason.CHILDREN_MISSING, Reason.WAITING_FOR_GANG, Reason.WRITE_REFUSED, Reason.GANG_NOT_INSTALLED),
    ),
    Condition.RUNNING: Reasons(
        (Reason.TRAINING, *PODS_WAIT), (Reason.WAITING_FOR_PODS, *PODS_WAIT, Reason.WRITE_REFUSED, *OVER)
    ),
    Condition.RESTARTING: Reasons(
        (Reason.PS_LOST, Reason.CHIEF_REPLACED, Reason.WORKERS_LOST, Reason.JOB_RESTARTED, Reason.SPEC_CHANGED),
        (Reason.NOT_RESTARTING,),
    ),
    Condition.SUSPENDED: Reasons((Reason.SUSPENDED,), (Reason.NOT_SUSPENDED, Reason.STOPPING, Reason.RESUMED)),
    Condition.QUEUED: Reasons(
        (Reason.AWAITS_ADMISSION, Reason.KUEUE_NOT_INSTALLED),
        (
            *(Reason.ADMITTED, Reason.STOPPING, Reason.QUEUE_IGNORED, Reason.NOT_QUEUED, Reason.KUEUE_NOT_INSTALLED),
            *(Reason.SUSPENDED, Reason.JOB_FINISHED),
        ),
    ),
    Condition.SUCCEEDED: Reasons(
        (Reason.CHIEF_SUCCEEDED, Reason.WORKER_ZERO_SUCCEEDED, Reason.ALL_WORKERS_SUCCEEDED), _ENDS
    ),
    Condition.FAILED: Reasons(
        (
            Reason.BACKOFF_LIMIT_EXCEEDED,
            Reason.REPLICA_FAILED,
            Reason.BAD_SETTINGS,
            Reason.FAILURE_RULE,
            Reason.RESTARTS_EXCEEDED,
            Reason.TOO_FEW_WORKERS,
            Reason.DEADLINE_EXCEEDED,
        ),
        _ENDS,
    ),
    Condition.DEGRADED: Reasons((Reason.STANDBY_MISSING,), (Reason.STANDBYS_READY, *OVER)),
    Condition.RESCALING: Reasons(
        (Reason.STARTING_SERVERS, Reason.CHECKPOINTING, Reason.RESHARDING, Reason.RESUMING),
        (Reason.RESCALED, *OVER),
    ),
    Condition.UPDATING: Reasons((Reason.REPLACING_SERVERS,), (Reason.SERVERS_UPDATED, Reason.UPDATE_REFUSED, *OVER)),
    Condition.RESIZING: Reasons(
        (Reason.RESIZE_IN_PROGRESS, Reason.RESIZE_DEFERRED, Reason.REPLACING_PODS),
        (Reason.RESIZED, Reason.RESIZE_INFEASIBLE, Reason.RESIZE_REFUSED, Reason.UPDATE_REFUSED, *OVER),
    ),
    Condition.AUTOSCALING: Reasons(
        (Reason.SIZES_RECOMMENDED, Reason.MEMORY_MAY_GROW),
        (
            *(Reason.NOT_MEASURED, Reason.QUEUE_FIXES_SIZES, Reason.RESIZE_NOT_SERVED, Reason.NO_MEMORY_LIMIT),
            *(Reason.MAXIMUM_REACHED, Reason.AUTOSCALING_OFF, *OVER),
        ),
    ),
    Condition.CHECKPOINT_NOT_DURABLE: Reasons(
        (Reason.NO_CHECKPOINT_VOLUME, Reason.CHECKPOINT_VOLUME_NOT_DURABLE), (Reason.CHECKPOINT_DURABLE,)
    ),
    Condition.GPU_SETTINGS_INHERITED: Reasons((Reason.WORKER_TEMPLATE_COPIED,), (Reason.OWN_SETTINGS,)),
    Condition.FIELDS_WITHOUT_EFFECT: Reasons((Reason.OTHER_FIELDS_PREVAIL,), (Reason.FIELDS_CORRECTED,)),
    Condition.NAME_CONFLICT: Reasons((Reason.NAME_TAKEN,), (Reason.NAMES_FREE, Reason.JOB_FINISHED)),
    Condition.INVALID_TEMPLATE: Reasons((Reason.TEMPLATE_REFUSED,), (Reason.TEMPLATE_ACCEPTED, Reason.JOB_FINISHED)),
    Condition.STATUS_INCOMPLETE: Reasons((Reason.STATUS_TOO_LARGE, Reason.STATUS_REFUSED), (Reason.STATUS_ACCEPTED,)),
    Condition.STALLED: Reasons((Reason.NO_STEP,), (Reason.STEPPING, Reason.NO_REPORTS, *OVER)),
}
"""Reasons by condition, in the order of the page."""
OF_EVENTS_ALONE: Final = (
    Reason.TOOK_OVER,
    Reason.MEMORY_GROWN,
    Reason.MEMORY_DOUBLED,
    Reason.GROWTH_REFUSED,
    Reason.SERVERS_ADDED,
)
"""The reasons that only events have."""

OF_ACTIONS: Final = (
    Reason.AWAITS_ADMISSION,
    Reason.QUOTA_RETURNED,
    Reason.PODS_REPORTED,
    Reason.DESIRED,
    Reason.NOT_DESIRED,
    Reason.DRIFTED,
    Reason.CLUSTER_MAP_CHANGED,
    Reason.NEXT_TERM,
    Reason.NEXT_ATTEMPT,
    Reason.OLD_TERM,
    Reason.PROGRAM_ENDED,
    Reason.TAKE_OVER,
    Reason.NODE_LOST,
    Reason.STUCK_IN_BACK_OFF,
    Reason.FAILURE_RULE,
    Reason.WORKER_SUCCEEDED,
    Reason.GIVEN_UP,
    Reason.SPEC_CHANGED,
    Reason.JOB_RESTARTED,
    Reason.RESHARDING,
    Reason.SWITCH_LAYOUT,
    Reason.SUSPENDED,
    Reason.JOB_FINISHED,
    Reason.TTL_EXPIRED,
)
"""Reasons for writes of objects, as in the operator's log."""
