"""Lets a test act in a phase of a change of the layout, while the chief waits there.

The test writes the phase's name to the file PAUSE in a folder. The chief reaches the phase, prints the event
`layout_phase`, and waits until the file is gone. With GIVE_UP instead, the chief gives the attempt up there.
"""

import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

PAUSE: Final = "pause"
GIVE_UP: Final = "give-up"


class Phase(StrEnum):
    """The phases, in their order."""

    PREPARING = "preparing"
    """The servers of the next layout have promised, and have no state."""
    PREPARED = "prepared"
    """All variables have values there, and workers may prepare their functions."""
    FROZEN = "frozen"
    """No step is applied."""
    COPIED = "copied"
    """The chief has the state, and the next layout has not."""
    FOUNDED = "founded"
    """A quorum of the next layout has accepted its first view; the current layout is not over."""
    CLOSED = "closed"
    """A quorum of the current layout has accepted that it is over."""
    ENTERED = "entered"
    """The chief leads the next layout, where no step has been applied."""
    ACTIVE = "active"
    """Steps are applied in the next layout, and the state of the former one is still there."""


def install(folder: str) -> None:
    """Let the chief of this process wait in the phases that a test asks for."""
    from pstraining.runtime.chief import live_layout
    from pstraining.runtime.chief.layout_transfer import LayoutTransfer
    from pstraining.runtime.chief.live_layout import LayoutChanger
    from pstraining.runtime.replication.view_change import ViewChanger

    vars(live_layout).update(RETRY_SECONDS=1.0)
    place = Path(folder)
    before = [
        (LayoutTransfer, "prepare", Phase.PREPARING),
        (LayoutChanger, "lead", Phase.PREPARED),
        (LayoutTransfer, "copy", Phase.FROZEN),
        (ViewChanger, "found", Phase.COPIED),
        (ViewChanger, "close", Phase.FOUNDED),
        (LayoutChanger, "enter", Phase.CLOSED),
        (LayoutChanger, "delete_former", Phase.ACTIVE),
    ]
    for owner, name, phase in before:
        setattr(owner, name, _after(place, phase, getattr(owner, name)))
    enter = LayoutChanger.enter

    def entered(changer: LayoutChanger, *given: Any) -> Any:
        found = enter(changer, *given)
        _reached(place, Phase.ENTERED)
        return found

    LayoutChanger.enter = entered  # type: ignore[method-assign, assignment]


def _after(folder: Path, phase: Phase, method: Callable[..., Any]) -> Callable[..., Any]:
    def waiting(*given: Any, **named: Any) -> Any:
        _reached(folder, phase)
        return method(*given, **named)

    return waiting


def _reached(folder: Path, phase: Phase) -> None:
    from pstraining.runtime.replication.view import LayoutPostponedError
    from pstraining.runtime.telemetry.events import event

    if _asked(folder / GIVE_UP, phase):
        (folder / GIVE_UP).unlink()
        raise LayoutPostponedError("this attempt is given up")
    if not _asked(folder / PAUSE, phase):
        return
    event("layout_phase", phase=phase)
    while _asked(folder / PAUSE, phase):
        time.sleep(0.02)


def _asked(file: Path, phase: Phase) -> bool:
    try:
        return file.read_text() == phase
    except FileNotFoundError:
        return False
