"""Does the number of parameter servers change, and which step is the job in?

The parameters are partitioned over the servers when a chief starts. Such a partition is a layout. With hot standbys,
the chief leads training to another layout between two steps. Otherwise another number of servers requires a restart of
the programs from a checkpoint. The pods of workers and of servers stay:

    START_SERVERS  more servers are wanted, and not all of them run: they start during training, without any state
    SAVE           with hot standbys: the chief leads training to the next layout; if it cannot, it shuts out updates,
                   saves the state, and ends once all of it is saved
    ADOPT          the chief has reported the next layout: one write to the StatefulSet records it
    STOP_LEADER    the leader stops and may save, while the servers of the current layout serve
    SWITCH         the leader has ended: one write to the StatefulSet records the next layout
    STEADY         the layout is the spec's: the cluster map has it, and the chief, or its next attempt, trains
    REPLACE_ALL    the job stops in order, and all of its pods are created again

Two layouts are never trained at once. Either one chief leads training from one to the other, or the layout is switched
while no leader runs, and the next leader has another term. Every launcher follows the number of the layout in the
cluster map. It restarts its program or server in its container, unless the chief has led it to this layout, and starts
no program before every server has the same number. Level-based: the StatefulSet is annotated with the layout. If a new
server is lost or the spec changes again, the next pass computes another step, and training continues with the current
layout.

The layout is recorded by one write to the StatefulSet of the primaries. The StatefulSets of warm standbys have copies
of the record: the highest number counts, and the copies are written before the cluster map. The loss of one StatefulSet
therefore does not lose the layout.

Once the chief may lead training to the next layout, a withdrawn or further change of `ps.replicas` waits until it has:
the state may be on the servers of the next layout alone. The StatefulSet is annotated with the number of its shards
before the cluster map lists them.

Hot standbys have every acknowledged update, so their state is only discarded once the next layout's servers have it, or
it is saved. The chief reports the former, and proves the latter by another exit code. A chief that has succeeded has
saved it, too: the next one leads the next layout. If the chief ends otherwise, or cannot save the state, the layout
does not change and training continues. Without a chief, or a checkpoint that outlives its pod, all pods are replaced.

Jobs that run with the launcher of a former version have no number; their pods are replaced. If a user has only changed
the replicas of a StatefulSet, they are corrected.
"""

from dataclasses import dataclass
from enum import Enum

from pstraining.api import contract, names
from pstraining.api.condition_reasons import OVER
from pstraining.api.conditions import Condition, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.numbers import number
from pstraining.api.status import PSTrainingJobStatus, StatusCondition
from pstraining.core.actions import Kind
from pstraining.core.policies import durability, teardown
from pstraining.core.snapshot import Child, Pod, Snapshot
from pstraining.resources import standbys
from pstraining.resources.layout import ServerLayout, with_shards


class ReshardingStep(Enum):
    """The next step of a job towards the number of servers in its spec."""

    START_SERVERS = "more servers are wanted, and not all of them run"
    SAVE = "the chief leads training to the next layout, or saves the state and ends, while hot standbys keep it"
    ADOPT = "training uses the next layout, which is recorded"
    STOP_LEADER = "the leader stops and may save"
    SWITCH = "the next layout is recorded"
    STEADY = "the layout is the spec's"
    REPLACE_ALL = "the job stops, and all pods are created again"


@dataclass(frozen=True)
class Resharding:
    """The layout of a job, and the next step towards the layout of its spec."""

    step: ReshardingStep
    current: int
    """The number of shards that training has."""
    wanted: int
    """The number of shards in the spec."""
    running: int = 0
    """Number of running shards among those that only the next layout has."""
    number: int = 1
    """The number of the current layout."""
    term: int = 1
    """The first term of the chief that trains the current layout."""
    next_term: int = 1
    """The term of the next chief; meaningless without hot standbys."""
    is_hot: bool = False
    """Whether the job has hot standbys."""
    leader_may_run: bool = False
    """Whether the leader exists or may still write a checkpoint."""
    servers: Child | None = None
    """The StatefulSet of the primaries, which records the layout; None if all pods are replaced for another one."""
    is_announced: bool = False
    """Whether the StatefulSet has the number of shards of the next layout, so that the chief may read it."""
    can_report: bool = False
    """Whether the chief can report the layout in which training continues; otherwise it saves the state and ends."""

    @property
    def layout(self) -> ServerLayout:
        """The layout to render now."""
        keeps = self.servers is not None
        ending = self.step is ReshardingStep.SAVE and (self.is_announced or not self.can_report)
        starting = max(0, self.wanted - self.current) if keeps else 0
        following = self.wanted if ending and self.is_announced else 0
        return ServerLayout(self.number, self.term, starting, ending=ending, following=following, recorded=keeps)

    @property
    def servers_wanted(self) -> int:
        """The number of servers that run for training, or start during it."""
        return self.current + self.layout.starting

    @property
    def stops(self) -> bool:
        """Whether pods are deleted for another number of shards."""
        return self.step in (ReshardingStep.STOP_LEADER, ReshardingStep.SWITCH, ReshardingStep.REPLACE_ALL)

    @property
    def trains(self) -> bool:
        """Whether training continues although it will soon have another number of shards."""
        return self.step is ReshardingStep.SAVE and self.leader_may_run

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations of a StatefulSet that record the current layout."""
        announces = self.is_announced or (self.step is ReshardingStep.SAVE and self.can_report)
        following = {names.ANNOTATION_NEXT_SHARDS: str(self.wanted)} if self.is_hot and announces else {}
        return annotations(self.current, self.number, self.term if self.is_hot else None) | following

    @property
    def next_annotations(self) -> dict[str, str]:
        """The annotations of the StatefulSet that record the next layout."""
        return annotations(self.wanted, self.number + 1, self.next_term if self.is_hot else None)


def annotations(shards: int, layout: int, term: int | None = None) -> dict[str, str]:
    """Return the annotations that record a layout.

    Args:
        shards: the layout's number of shards.
        layout: the layout's number.
        term: the first term of the chief that trains the layout; None without hot standbys.
    """
    found = {names.ANNOTATION_SHARDS: str(shards), names.ANNOTATION_LAYOUT: str(layout)}
    return found if term is None else found | {names.ANNOTATION_LAYOUT_TERM: str(term)}


def observed(job: PSTrainingJob, snapshot: Snapshot) -> Resharding:
    """Return the layout of a job, and the next step towards the layout of its spec.

    Args:
        job: the job, with the number of servers in its spec.
        snapshot: the observed state, with silent and lost pods marked.
    """
    wanted, leader = job.spec.ps.replicas, teardown.next_step(job, snapshot).leader_may_run
    sets = snapshot.of_kind(Kind.STATEFUL_SET)
    recorded = {c.name: found for c in sets if (found := _recorded(c)) is not None}
    if not recorded or any(c.name not in recorded and not c.deleting for c in sets):
        differs = any(shards(c) != wanted for c in sets)
        return Resharding(
            ReshardingStep.REPLACE_ALL if differs else ReshardingStep.STEADY, wanted, wanted, leader_may_run=leader
        )
    layout, current, term = max(recorded.values())
    is_hot = standbys.is_hot(job)
    newest = _newest(snapshot) if is_hot else 0  # other jobs do not need it
    if is_hot and current != wanted and not _can_save(job):
        return Resharding(ReshardingStep.REPLACE_ALL, wanted, wanted, leader_may_run=leader)
    primaries = snapshot.child(Kind.STATEFUL_SET, names.ps_stateful_set(job.metadata.name))
    announced = number(primaries.annotations.get(names.ANNOTATION_NEXT_SHARDS)) if primaries and is_hot else None
    announced = None if announced == current else announced
    wanted = announced or wanted  # the state may be on its servers alone
    running = sum(_is_up(job, snapshot.pods_of(names.PS, index)) for index in range(current, wanted))
    saved = None
    if is_hot:
        saved = any(has_saved(job, p) and p.term == newest for p in snapshot.pods_of(names.CHIEF))
        saved |= _has_succeeded(snapshot, newest)
        saved &= all(p.over for p in snapshot.pods_of(names.CHIEF))
    is_led = announced is not None and snapshot.reported_layout == (layout + 1, newest)
    step = next_step(current, wanted, running, leader_may_run=leader, saved=saved, led=is_led)
    if step is not ReshardingStep.STEADY and (primaries is None or primaries.name not in recorded):
        step = ReshardingStep.START_SERVERS  # only this StatefulSet can record the next layout, so it is created first
    next_term = newest if step is ReshardingStep.ADOPT else newest + 1
    known = (current, wanted, running, layout, term, next_term, is_hot)
    leads = leader and step is not ReshardingStep.SWITCH
    servers, can_report = primaries or sets[0], snapshot.installation.progress is not None
    return Resharding(step, *known, leads, servers, is_announced=announced is not None, can_report=can_report)


def next_step(
    current: int, wanted: int, running: int, *, leader_may_run: bool, saved: bool | None, led: bool
) -> ReshardingStep:
    """Return the next step of a job whose pods stay.

    Args:
        current: the number of servers of the current layout.
        wanted: the number of servers in the spec.
        running: number of running shards among those that only the next layout has.
        leader_may_run: whether the leader exists or may still write a checkpoint.
        saved: whether the newest chief has ended with the whole state saved; None without hot standbys.
        led: whether the newest chief has reported that training uses the next layout.
    """
    if led:
        return ReshardingStep.ADOPT
    if current == wanted:
        return ReshardingStep.STEADY
    if running < wanted - current:
        return ReshardingStep.START_SERVERS
    if saved is not None:
        return ReshardingStep.SWITCH if saved else ReshardingStep.SAVE
    return ReshardingStep.STOP_LEADER if leader_may_run else ReshardingStep.SWITCH


def has_saved(job: PSTrainingJob, pod: Pod) -> bool:
    """Whether a chief with hot standbys has ended because the whole state is saved for another layout."""
    end = pod.container.terminated
    is_chief = pod.role == names.CHIEF and standbys.is_hot(job)
    return is_chief and end is not None and end.exit_code == contract.EXIT_SAVED


def effective(job: PSTrainingJob, resharding: Resharding) -> PSTrainingJob:
    """Return the job as it runs: with the number of servers that training has.

    Args:
        job: the job, with the number of servers in its spec.
        resharding: the job's layout.
    """
    if resharding.current == job.spec.ps.replicas:
        return job
    return with_shards(job, resharding.current)


def progress(
    job: PSTrainingJob,
    resharding: Resharding,
    stored: StatusCondition | None,
    *,
    runs: bool,
    field: str = "ps.replicas",
    trouble: str = "",
) -> tuple[bool, Reason, str] | None:
    """Return the condition Rescaling of a job that does not end or stop; None if it does not change.

    Args:
        job: the job.
        resharding: the job's layout, and the next step.
        stored: the condition as stored.
        runs: whether training runs.
        field: the field with the number of servers.
        trouble: why a server of the next layout does not run; empty if that is not known.
    """
    count, step = resharding.wanted, resharding.step
    if step is ReshardingStep.START_SERVERS:
        waits = f"{resharding.running} of {count - resharding.current} new parameter servers run; until all do,"
        if count < resharding.current:  # the StatefulSet of the primaries is missing
            waits = "The StatefulSet of the parameter servers is created again first; until then,"
        message = f"{waits} training continues with {resharding.current}."
        message += f" Set {field} to {resharding.current} to withdraw the change."
        return True, Reason.STARTING_SERVERS, f"{message} {trouble}".rstrip()
    if step is ReshardingStep.SAVE:
        message = f"The chief leads training to {count} parameter servers. If it cannot, it saves the state and ends."
        return True, Reason.CHECKPOINTING, message
    if step is ReshardingStep.ADOPT:
        return True, Reason.RESUMING, f"Training continues with {count} parameter servers."
    if step is not ReshardingStep.STEADY and resharding.leader_may_run:
        leader = "the chief" if job.spec.chief.enabled else "worker 0"
        message = f"For ps.replicas {count}, {leader} stops first and may save its state; {_base(job)}"
        return True, Reason.CHECKPOINTING, message
    if step is ReshardingStep.REPLACE_ALL:
        return True, Reason.RESHARDING, f"All pods are replaced for ps.replicas {count}; {_base(job)}"
    is_open = stored is not None and stored.status == "True"
    if step is ReshardingStep.STEADY and runs and stored is not None and (is_open or stored.reason in OVER):
        return False, Reason.RESCALED, f"Training continues with ps.replicas {count}."
    if step is ReshardingStep.STEADY and not is_open:
        return None
    return True, Reason.RESUMING, f"Waiting for the pods with ps.replicas {count}; {_base(job)}"


def began(status: PSTrainingJobStatus) -> StatusCondition | None:
    """Return the condition Rescaling while training stops for it: the ends of older pods are not failures."""
    true = (c for c in status.conditions if c.type == Condition.RESCALING and c.status == "True")
    return next((c for c in true if c.reason != Reason.STARTING_SERVERS), None)


def _base(job: PSTrainingJob) -> str:
    lost = durability.why_lost(job.spec.checkpoint)
    return f"{lost}: training restarts from the beginning." if lost else "training resumes from the newest checkpoint."


def _is_up(job: PSTrainingJob, pods: tuple[Pod, ...]) -> bool:
    """Whether a shard's servers run; a standby without a node is not waited for, as at the start of a job."""
    up = {p.member for p in pods if _runs(p)}
    placeless = {p.member for p in pods if p.unschedulable and not p.deleting}
    return bool(up) and up | placeless >= set(range(standbys.members(job)))


def _runs(pod: Pod) -> bool:
    """Whether the launcher of a server runs, which then waits for its layout."""
    return pod.container.running and not (pod.deleting or pod.over or pod.silent)


def _can_save(job: PSTrainingJob) -> bool:
    """Whether the state that hot standbys hold can be saved for the next chief."""
    return job.spec.chief.enabled and not durability.why_lost(job.spec.checkpoint)


def _has_succeeded(snapshot: Snapshot, term: int) -> bool:
    """Whether the chief of a term has ended with exit code 0, after which no other save follows."""
    jobs = teardown.chief_jobs(snapshot)
    if any(j.number(names.LABEL_TERM) == term and j.true_condition("Complete") for j in jobs):
        return True
    ends = (p.container.terminated for p in snapshot.pods_of(names.CHIEF) if p.term == term)
    return any(end is not None and end.exit_code == 0 for end in ends)


def _newest(snapshot: Snapshot) -> int:
    """Return the newest term of a chief; 0 before the first."""
    seen = (
        *(j.number(names.LABEL_TERM) for j in teardown.chief_jobs(snapshot)),
        *(p.term for p in snapshot.pods_of(names.CHIEF)),
    )
    return max((*seen, snapshot.typed_status.term))


def _recorded(child: Child) -> tuple[int, int, int] | None:
    """Return number, shards and first term of the layout that a StatefulSet records; None without a record."""
    keys = (names.ANNOTATION_LAYOUT, names.ANNOTATION_SHARDS, names.ANNOTATION_LAYOUT_TERM)
    layout, shards, term = (number(child.annotations.get(key)) for key in keys)
    return None if shards is None or layout is None or child.deleting else (layout, shards, term or 1)


def shards(child: Child) -> int:
    """Return the number of shards for which a StatefulSet was created or that it records since."""
    count = number(child.annotations.get(names.ANNOTATION_SHARDS))
    return child.replicas if count is None else count
