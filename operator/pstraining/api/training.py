"""Settings of training for programs that use pstraining.runtime: `spec.training`.

No field has a default here, because the program sets those that the job does not set.
`pstraining.runtime.config.settings` has the same fields, and a test compares their bounds.
"""

from enum import StrEnum

from pydantic import Field

from pstraining.api.base import ApiModel


class Mode(StrEnum):
    """Way in which updates reach the parameters."""

    ASYNC = "Async"
    SYNC = "Sync"
    HYBRID = "Hybrid"


class Codec(StrEnum):
    """Encoding of numbers on the network."""

    NONE = "None"
    BF16 = "Bf16"
    INT8 = "Int8"
    ONE_BIT = "OneBit"
    TOP_K = "TopK"
    AUTO = "Auto"


class CompressionSpec(ApiModel):
    """Encoding of gradients and parameters on the network."""

    push: Codec | None = Field(
        default=None,
        description="Encoding of gradients sent to the parameter servers. None (default of the runtime): "
        "unchanged 32-bit floats. Bf16, Int8 and OneBit: 2, 1 and 1/8 bytes per value. TopK: 4 bytes for each of "
        "the largest values; the others are not sent. Auto: Int8 while workers measure faster steps with it, "
        "otherwise None.",
    )
    pull: Codec | None = Field(
        default=None,
        description="Encoding of parameters sent to the workers. Default of the runtime: None. In Async: None, "
        "Bf16 or Auto (Bf16 while it is faster). In Sync: any codec, or Auto (Int8 while it is faster). Servers "
        "then send the change since the last pull and hold one more copy of the parameters. With Auto, push and "
        "pull switch together.",
    )
    error_feedback: bool | None = Field(
        default=None,
        description="Adds the part of a gradient that a codec loses to the next gradient. Default of the runtime: "
        "true. Without it, TopK loses accuracy.",
    )
    top_k_permille: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Approximate number of values, of every thousand, that TopK sends. Default of the runtime: 10.",
    )


class NonFinite(StrEnum):
    """Reaction to a gradient with NaN or infinity."""

    FAIL = "Fail"
    SKIP = "Skip"


class TrainingSpec(ApiModel):
    """Settings that override those of a program that uses pstraining.runtime. Other programs ignore them."""

    mode: Mode | None = Field(
        default=None,
        description="Way in which updates reach the parameters. Async (default of the runtime): each worker's "
        "update is applied on its own. Sync: an update is the mean of all live workers' gradients, computed on the "
        "same parameters. Hybrid: as Sync, but dense gradients travel around a ring of workers, and only embedding "
        "tables use the parameter servers.",
    )
    steps: int | None = Field(
        default=None,
        ge=1,
        le=2**53,
        description="Number of parameter updates in the whole job, counted over all workers. In Sync and Hybrid, "
        "one update uses the batches of all workers.",
    )
    epochs: int | None = Field(
        default=None,
        ge=1,
        le=2**31,
        description="Number of passes over the data if it is assigned to workers (Ranges or Files), otherwise of the "
        "program's steps_per_epoch steps. With steps also set, training ends at the first limit.",
    )
    accumulation_steps: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Batches whose gradients a worker adds up before it sends them. Divides traffic, and "
        "multiplies the batch size of an update, by this number. Default of the runtime: 1.",
    )
    local_steps: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Batches that a worker trains with its own optimizer before it sends the change of the "
        "parameters (local SGD). Divides traffic by this number. Sync averages the changes; Async adds each one "
        "divided by the number of workers. Not with Hybrid, embedding tables or accumulationSteps. Default of the "
        "runtime: 1 (off).",
    )
    min_shard_bytes: int | None = Field(
        default=None,
        ge=0,
        le=2**40,
        description="Minimum bytes of parameters per server. A small model uses fewer servers, because each "
        "server adds one call per step. 0 uses all servers. Default of the runtime: 262144.",
    )
    compression: CompressionSpec | None = Field(
        default=None, description="Encoding of gradients and parameters on the network. Not with mode Hybrid."
    )
    max_staleness: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Async: updates that a worker may be ahead of the slowest live worker before it waits "
        "(stale-synchronous parallel). Default of the runtime: no limit.",
    )
    overlap_communication: bool | None = Field(
        default=None,
        description="Async: a worker computes its next gradient while its last update travels to the servers and new "
        "parameters come back (pipelined SGD). Each gradient misses the worker's own last update. Meant for "
        "accelerators that would wait for the network. Not with localSteps. Default of the runtime: false.",
    )
    backup_workers: int | None = Field(
        default=None,
        ge=0,
        le=4095,
        description="Sync: number of workers that an update does not wait for. The gradients of the slowest "
        "workers are dropped, and their batches are trained again. Default of the runtime: 0.",
    )
    ordered_sums: bool | None = Field(
        default=None,
        description="Sync: adds gradients in the order of the workers, so that a run can be repeated bit for bit. "
        "Every update waits for every worker. Servers hold one copy of the parameters per worker. Not with "
        "backupWorkers or Auto compression. Default of the runtime: false.",
    )
    non_finite: NonFinite | None = Field(
        default=None,
        description="Reaction to a gradient with NaN or infinity, which is never applied. Fail (default of the "
        "runtime): the worker ends with an error. Skip: the batches of that gradient are left out and counted.",
    )
