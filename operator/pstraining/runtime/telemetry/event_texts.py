"""The meaning of each event in a task's log, from which docs/reference/events.md is generated.

The advice on events that `doctor` reports is in pstraining/cli/doctor/advice.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class EventText:
    """One event."""

    by: str
    """The tasks that log it."""
    meaning: str
    todo: str = ""
    """The user's action; empty if none is necessary, or `doctor` advises it."""


_CHIEF: Final = "chief"
_WORKER: Final = "worker"
_ANY: Final = "chief, worker"

EVENTS: Final[Mapping[str, EventText]] = {
    # The course of training
    "devices": EventText(_ANY, "The task has started; `compute` counts the devices that it uses, by type."),
    "initialized": EventText(_CHIEF, "The parameter servers have the initial parameters; training starts at step 0."),
    "restored": EventText(_CHIEF, "The parameter servers have the parameters of the checkpoint of step `step`."),
    "steps_may_be_lost": EventText(
        _CHIEF,
        "Too few members and workers were left to know all acknowledged steps. Training continues from step `step`, "
        "the newest that was left.",
        "If the workers' logs show later steps, these are lost. Place members and workers on more nodes.",
    ),
    "worker": EventText(
        _WORKER, "Every few seconds: the worker's steps, its loss, the longest step and the staleness."
    ),
    "epoch": EventText(_CHIEF, "An epoch has ended; the fields are its logs, such as `loss` and `val_loss`."),
    "logs_incomplete": EventText(
        _CHIEF,
        "A restore returned to step `step` of the epoch `epoch`, and the chief does not know the losses and metrics of "
        "the steps before, for example after its restart. The epoch's logs have only what is trained from there on.",
    ),
    "learning_rate": EventText(_CHIEF, "A callback has set the learning rate on the parameter servers."),
    "ended_early": EventText(_CHIEF, "A callback has ended training (`stop_training`)."),
    "best_restored": EventText(
        _CHIEF, "A callback has restored the best weights, or has set others, which are now the result."
    ),
    "worker_done": EventText(_WORKER, "Training is over for this worker; the fields are those of `worker`."),
    "result": EventText(_CHIEF, "Training is over; the fields are the last step and the evaluation."),
    "stopped": EventText(_CHIEF, "The chief was asked to stop, has saved the state of step `step`, and ends."),
    "stopped_unsaved": EventText(
        _CHIEF,
        "The chief was asked to stop, and could not save the newest state: see `reason`. If the job continues, it "
        "resumes from the newest checkpoint.",
    ),
    # Checkpoints and the trained model
    "no_checkpoints": EventText(
        _CHIEF, "There is no folder for checkpoints, and the model is not saved.", "Set `spec.checkpoint`."
    ),
    "checkpoint": EventText(
        _CHIEF, "A checkpoint was written to `path`, in `seconds`; with `fullEvery`, `full` shows whether it is full."
    ),
    "checkpoint_way": EventText(
        _CHIEF,
        "Large tensors are saved or restored `by` the servers, or by the chief because of `reason`.",
        "To let the servers write to a volume, mount it in their pods as well.",
    ),
    "checkpoint_interval": EventText(
        _CHIEF, "The interval was derived from the duration of a checkpoint and the losses of parameter servers."
    ),
    "checkpoint_failed": EventText(
        _CHIEF, "A checkpoint could not be written. Training continues, and the chief tries again."
    ),
    "checkpoint_unreadable": EventText(_CHIEF, "A checkpoint is damaged; the chief uses the previous one."),
    "not_deleted": EventText(
        _CHIEF,
        "A checkpoint was written, but earlier ones could not be deleted. The next save tries again.",
        "See `reason`; credentials for a bucket must be able to delete.",
    ),
    "not_saved": EventText(
        _CHIEF,
        "The last state or the result could not be written, and the chief fails. If the save was for another number of "
        "parameter servers, training continues.",
    ),
    "not_exported": EventText(
        _CHIEF,
        "Keras could not save the model as `final.keras`; the weights are saved.",
        "Load the weights instead.",
    ),
    "history": EventText(_CHIEF, "The history of the job was written to `path`, with the logs of `logs` containers."),
    "history_failed": EventText(
        _CHIEF, "The history of the job could not be written. Training is not affected.", "See `reason`."
    ),
    "no_tracker": EventText(
        _CHIEF, "`MLFLOW_TRACKING_URI` is set, but MLflow is not in the image.", "Install `mlflow-skinny` in the image."
    ),
    "tracker_failed": EventText(
        _CHIEF, "MLflow did not store logged values. Training continues, and the values are resent."
    ),
    "metric_refused": EventText(
        _CHIEF,
        "MLflow's store refuses the metric `metric`, and takes others: see `reason`. The run lacks this metric.",
        "Give the metric another name. MLflow's file store cannot have `loss/cls` beside `loss`.",
    ),
    "tracker_incomplete": EventText(
        _CHIEF, "`dropped` points or artifacts did not reach MLflow. Training is not affected.", "See `tracker_failed`."
    ),
    "data_begins_anew": EventText(
        _CHIEF,
        "The checkpoint has no record of the trained data, or a record of other `Ranges` or `Files`. The first epoch, "
        "or the incomplete one, starts again.",
    ),
    # Data and metrics
    "workers_changed": EventText(
        _WORKER, "The job was scaled; the worker created its dataset for the new number of workers."
    ),
    "no_gradient": EventText(
        _WORKER,
        "The loss does not depend on `variables`, which therefore do not change.",
        "Set `trainable = False` on their layers.",
    ),
    "not_shared": EventText(
        _WORKER,
        "At `lines` of the program, the training step uses variables that belong to no layer. Each process has its "
        "own. What a step or a callback assigns to them reaches no other process and no checkpoint.",
        "Create a weight of a layer with `add_weight`, or ignore the event if the variables never change.",
    ),
    "metrics_left_out": EventText(
        _ANY,
        "From a worker: the logs of training lack the metrics, because of `reason`; the validation has them. From the "
        "chief: the validation and the result lack them as well.",
        "If a metric's result is not a single number, use one whose result is, such as the mean over classes.",
    ),
    "evaluation_continues": EventText(
        _CHIEF,
        "The evaluation for `argument` has taken `seconds` so far, and continues.",
        "If its dataset never ends, end it with `take(n)`, or give `validation_steps`.",
    ),
    "batch_hooks_not_called": EventText(
        _CHIEF,
        "A callback has methods for batches; they are not called, because the workers train the batches.",
        "None, if its other methods suffice.",
    ),
    "metrics": EventText(_ANY, "Prometheus can scrape the task on `port`."),
    "no_metrics": EventText(_ANY, "The task serves no metrics; training continues.", "See `reason`."),
    "no_summaries": EventText(_CHIEF, "TensorBoard's files cannot be written; training continues.", "See `reason`."),
    "summaries_not_uploaded": EventText(
        _CHIEF,
        "TensorBoard's files could not be uploaded to the object store; training continues.",
        "None, if a later attempt succeeds; otherwise see `reason`.",
    ),
    # Numbers that are wrong
    "non_finite": EventText(_WORKER, "A gradient contains NaN or infinity, and was not applied."),
    "diverged": EventText(
        _WORKER,
        "Mode Hybrid: the parameters differ from a neighbor's; the ring continues with those of the lowest worker.",
        "None for a single event. If there are many, the processors of the nodes give different results.",
    ),
    # The parameter servers and their load
    "unused_servers": EventText(
        _CHIEF,
        "The model is so small that these servers hold nothing (`training.minShardBytes`).",
        "Use fewer parameter servers.",
    ),
    "uneven_layout": EventText(
        _CHIEF,
        "One server holds 1.5 times the mean or more, because the optimizer or a constraint needs whole tensors.",
        "Use fewer servers, or another optimizer.",
    ),
    "uneven_load": EventText(
        _CHIEF,
        "Workers exchange 1.5 times the mean or more with one shard.",
        "Spread the indices of the most frequently used rows of embedding tables.",
    ),
    "table_full": EventText(
        _CHIEF,
        "A table with rows by key has `max_rows` rows. New keys replace rows whose last updates are the oldest.",
        "Raise `max_rows`, if `pstraining_table_keys_total` shows that rows are evicted soon after they are inserted.",
    ),
    "compression": EventText(_WORKER, "Codec Auto has changed its choice; `on` shows whether gradients are encoded."),
    # Connections
    "waiting": EventText(_ANY, "The task waits; the field `what` names the cause."),
    "silent": EventText(
        _ANY, "A server has not responded for seconds; its connections were cut, and are opened again."
    ),
    "cut": EventText(_ANY, "A call has taken too long, and its connections were cut."),
    "stuck": EventText(_ANY, "A call did not return although its connections were cut; the process ends and restarts."),
    "reconnected": EventText(_ANY, "The connections were restored, after `seconds`."),
    "resumed": EventText(_WORKER, "The first step after an interruption; `after` names the cause."),
    "refused": EventText(
        _WORKER, "The servers have rejected an update of a former session, and the worker joins again."
    ),
    "superseded": EventText(_WORKER, "A newer process has this worker's index, so this process idles."),
    "good_bye_failed": EventText(
        _WORKER, "The worker ends, but could not deregister; the chief waits until the worker's heartbeats expire."
    ),
    "workers_left_behind": EventText(_CHIEF, "Training is over, but workers have not deregistered in time."),
    "not_owned": EventText(
        _CHIEF,
        "The launchers could not be informed that the next chief may use the state; it would restore a checkpoint.",
    ),
    "state_lost": EventText(_ANY, "Mode Hybrid: no remaining worker has the newest dense parameters."),
    "renews": EventText(_ANY, "The process runs its program again, to free memory that TensorFlow leaks."),
    "renewed": EventText(_ANY, "The renewed process is connected, after `seconds`."),
    "not_renewed": EventText(_ANY, "The process cannot run its program again; it keeps its memory.", "See `reason`."),
    # Hybrid
    "ring": EventText(_WORKER, "The worker is in a ring, with these members."),
    "ring_left": EventText(_WORKER, "The worker has left its ring; `suspects` do not respond to it."),
    # Hot standbys
    "view": EventText(_CHIEF, "A view is active, with these members in sync and these learners."),
    "state_transfer": EventText(
        _CHIEF, "A member receives the state: `whole`, in `chunks`, `complete`; or the transfer was `given_up`."
    ),
    "failover_ready": EventText(
        _WORKER,
        "The worker is prepared for the loss of any member: it can continue without first tracing functions. "
        "It is reported after the start and after each interruption.",
    ),
    "failover_unprepared": EventText(
        _WORKER,
        "The worker could not prepare its functions for the loss of a member, and tries again; after a loss, it "
        "prepares them before it continues.",
    ),
    "switchover": EventText(_CHIEF, "Training continues without a member whose pod is being drained or deleted."),
    "layout_prepared": EventText(
        _CHIEF, "The servers of the next layout are connected and have all variables, after `seconds`."
    ),
    "layout": EventText(
        _CHIEF,
        "Training continues with `shards` shards; no step was applied for `seconds`. Tables of `moved` bytes moved "
        "between servers.",
    ),
    "layout_followed": EventText(_WORKER, "The worker trains with the servers of another layout."),
    "layout_waits": EventText(_CHIEF, "Training cannot move to the next layout yet, or only with a restart."),
    "layout_unprepared": EventText(
        _WORKER, "The worker could not prepare its functions for the next layout; it prepares them at the change."
    ),
    "not_marked": EventText(
        _CHIEF, "A member could not be marked as in sync. A drain of its node will not wait for it."
    ),
}
"""The text of each event by its name, in groups."""
