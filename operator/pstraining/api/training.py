"""Settings of training for programs that use pstraining.runtime: `spec.training`.

None has a default here: what the job leaves out is the program's choice. `pstraining.runtime.config.settings` has a
field for each, held to the same bounds by a test.
"""

from enum import StrEnum

from pydantic import Field

from pstraining.api.base import Model


class Mode(StrEnum):
    """How updates reach the parameters."""

    ASYNC = "Async"
    SYNC = "Sync"
    HYBRID = "Hybrid"


class Codec(StrEnum):
    """How numbers are written for the network."""

    NONE = "None"
    BF16 = "Bf16"
    INT8 = "Int8"
    ONE_BIT = "OneBit"
    TOP_K = "TopK"
    AUTO = "Auto"


class CompressionSpec(Model):
    """How gradients and parameters travel."""

    push: Codec | None = Field(
        default=None,
        description="Gradients on their way to the parameter servers. None (the runtime's default): as they are. Bf16, "
        "Int8 and OneBit: 2, 1 and 1/8 bytes a value. TopK: 4 bytes for each of the largest values, none for the rest. "
        "Auto: Int8 while steps are faster with it, by what workers measure, else None.",
    )
    pull: Codec | None = Field(
        default=None,
        description="Parameters on their way to the workers. Async: None or Bf16. Sync: any; how far they have moved "
        "is sent, and the parameter servers hold one copy more of the parameters. Auto: None, or Bf16 in Async and "
        "Int8 in Sync, whichever is faster; push and pull are then switched together.",
    )
    error_feedback: bool | None = Field(
        default=None,
        description="Whether what a codec loses of a gradient is sent with the next one. Without, TopK loses accuracy. "
        "The runtime's default: true.",
    )
    top_k_permille: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="TopK: how many of a thousand values are sent, about. The runtime's default: 10.",
    )


class NonFinite(StrEnum):
    """What becomes of a gradient with NaN or infinity in it."""

    FAIL = "Fail"
    SKIP = "Skip"


class TrainingSpec(Model):
    """Settings for programs that use pstraining.runtime, in place of the program's own; others ignore them."""

    mode: Mode | None = Field(
        default=None,
        description="Async (the runtime's default): every worker applies its updates on its own. Sync: an update is "
        "the mean of the gradients of all workers that live, computed on the same parameters. Hybrid: as Sync, but "
        "dense gradients travel around a ring of the workers, and only embedding tables through the parameter servers.",
    )
    steps: int | None = Field(default=None, ge=1, le=2**53, description="Global steps to train.")
    epochs: int | None = Field(
        default=None,
        ge=1,
        le=2**31,
        description="How often all data is trained, of a program whose data is handed out (Ranges or Files), or how "
        "many times the program's steps_per_epoch steps are made; with steps, whichever comes first.",
    )
    accumulation_steps: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Batches whose gradients a worker adds up before it sends them: traffic falls by this factor, and "
        "the batch of an update grows by it.",
    )
    local_steps: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Batches that a worker trains by an optimizer of its own before it sends how far the parameters "
        "have moved (local SGD); Sync takes the workers' mean, Async adds each one's share.",
    )
    min_shard_bytes: int | None = Field(
        default=None,
        ge=0,
        le=2**40,
        description="Bytes of parameters that a parameter server is worth using for: a smaller model lies on fewer of "
        "them, because every one that is used costs a call a step. 0: on all. The runtime's default: 262144.",
    )
    compression: CompressionSpec | None = Field(default=None, description="How gradients and parameters travel.")
    max_staleness: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Async: how many updates a worker may be ahead of the slowest one that lives; further ahead it "
        "waits (stale-synchronous parallel). The runtime's default: any number.",
    )
    backup_workers: int | None = Field(
        default=None,
        ge=0,
        le=4095,
        description="Sync: how many workers an update does not wait for. The gradients of the slowest ones are "
        "dropped, and their batches are trained again.",
    )
    ordered_sums: bool | None = Field(
        default=None,
        description="Sync: add gradients in the order of the workers, so that a run can be repeated bit for bit. "
        "Every worker is always waited for, and the parameter servers hold one copy of the parameters a worker.",
    )
    non_finite: NonFinite | None = Field(
        default=None,
        description="What happens when a gradient has NaN or infinity in it; it never reaches the parameters. Fail "
        "(the runtime's default): the worker ends with an error. Skip: its batches are left out, and counted.",
    )
