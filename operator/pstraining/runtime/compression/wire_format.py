"""Forms in which an update may travel, and who chooses between them while training runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pstraining.api.training import Codec as Name
from pstraining.runtime.compression import auto_select, codecs
from pstraining.runtime.compression.codecs import Codec
from pstraining.runtime.config.settings import CompressionSettings
from pstraining.runtime.telemetry.events import event


@dataclass(frozen=True)
class Form:
    """How gradients and parameters are written for the network; None: as they are."""

    push: Codec | None = None
    pull: Codec | None = None

    @property
    def fetched_as(self) -> str | None:
        """The dtype in which parameters travel where no shadow of them is kept."""
        return "bfloat16" if isinstance(self.pull, codecs.Bf16) else None


def plan(compression: CompressionSettings, *, with_shadow: bool) -> tuple[Form, ...]:
    """One form, or where something is Auto two: without (`compression.auto_select.PLAIN`) and with a codec in its place
    (`compression.auto_select.CODED`).

    The codec is Int8, which loses the least accuracy for its bytes; parameters without a shadow travel as Bf16.
    """
    cheap = (Name.INT8, Name.INT8 if with_shadow else Name.BF16)
    wanted = (compression.push, compression.pull)

    def form(names: Sequence[Name]) -> Form:
        return Form(*(codecs.find(name, permille=compression.top_k_permille) for name in names))

    if Name.AUTO not in wanted:
        return (form(wanted),)
    plain = [Name.NONE if name is Name.AUTO else name for name in wanted]
    coded = [codec if name is Name.AUTO else name for name, codec in zip(wanted, cheap, strict=True)]
    return form(plain), form(coded)


class Chooser:
    """One worker's choice between forms. With one form there is none."""

    def __init__(self, forms: Sequence[Form], worker: int) -> None:
        self._forms, self._worker = forms, worker
        self._known = auto_select.Auto()

    @property
    def proposed(self) -> int:
        """Number of the form that the next step had better have."""
        return auto_select.proposal(self._known) if len(self._forms) > 1 else 0

    def propose_next(self, under_way: int) -> int:
        """The same for the step after one of this form that is under way."""
        return auto_select.proposal(self._known, under_way) if len(self._forms) > 1 else 0

    def note(self, form: int, seconds: float, *, step: int) -> None:
        """A step was made in this form, and took so long; tells when that changes the choice."""
        if len(self._forms) == 1:
            return
        former = self._known.chosen
        self._known = auto_select.observed(self._known, form, seconds)
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
