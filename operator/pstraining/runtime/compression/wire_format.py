"""Wire formats of an update, and their selection during training."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pstraining.api.training import Codec
from pstraining.runtime.compression import auto_select, codecs
from pstraining.runtime.compression.codecs import VectorCodec
from pstraining.runtime.config.settings import CompressionSettings
from pstraining.runtime.telemetry.events import event


@dataclass(frozen=True)
class WireFormat:
    """The codecs of gradients and of parameters on the network; None for no codec."""

    push: VectorCodec | None = None
    pull: VectorCodec | None = None

    @property
    def fetched_as(self) -> str | None:
        """The dtype in which parameters without a shadow are sent."""
        return "bfloat16" if isinstance(self.pull, codecs.Bf16) else None


def plan(compression: CompressionSettings, *, with_shadow: bool) -> tuple[WireFormat, ...]:
    """Return one format, or two where a codec is Auto: `auto_select.PLAIN` without it, `auto_select.CODED` with one.

    The codec is Int8, which loses the least accuracy for its bytes; parameters without a shadow are sent as Bf16.
    """
    cheap = (Codec.INT8, Codec.INT8 if with_shadow else Codec.BF16)
    wanted = (compression.push, compression.pull)

    def fmt(names: Sequence[Codec]) -> WireFormat:
        return WireFormat(*(codecs.find(name, permille=compression.top_k_permille) for name in names))

    if Codec.AUTO not in wanted:
        return (fmt(wanted),)
    plain = [Codec.NONE if name is Codec.AUTO else name for name in wanted]
    coded = [codec if name is Codec.AUTO else name for name, codec in zip(wanted, cheap, strict=True)]
    return fmt(plain), fmt(coded)


class FormatSelector:
    """Selects a worker's wire format by measured step times; with a single format there is nothing to select."""

    def __init__(self, formats: Sequence[WireFormat], worker: int) -> None:
        self._formats, self._worker = formats, worker
        self._known = auto_select.Auto()

    @property
    def current(self) -> int:
        """Return the number of the format for the next step."""
        return auto_select.propose(self._known) if len(self._formats) > 1 else 0

    def propose_next(self, under_way: int) -> int:
        """Return the number of the format for the step after the current one, which has format `under_way`."""
        return auto_select.propose(self._known, under_way) if len(self._formats) > 1 else 0

    def note(self, fmt: int, seconds: float, *, step: int) -> None:
        """Record the duration of a step in a format, and emit an event if it changes the choice."""
        if len(self._formats) == 1:
            return
        former = self._known.chosen
        self._known = auto_select.update(self._known, fmt, seconds)
        if self._known.chosen != former and self._known.chosen is not None:
            plain, coded = (round(median(times), 6) for times in self._known.times)
            event(
                "compression",
                worker=self._worker,
                step=step,
                on=self._known.chosen == auto_select.CODED,
                plain_seconds=plain,
                coded_seconds=coded,
                samples=[len(times) for times in self._known.times],
            )
