"""Rules of view changes that are switched off, to show that each of them is needed."""

from dataclasses import replace
from typing import Any

from pstraining.runtime.replication import acceptor
from pstraining.runtime.replication.view import Action, Ballot, Observation, ProcessStatus, Voters
from pstraining.runtime.replication.view_decisions import next_action


def forgetful(own: ProcessStatus, ballot: Ballot) -> ProcessStatus:
    """Take a promise back."""
    return replace(own, promised=ballot, active=False)


def lenient(own: ProcessStatus, ballot: Ballot) -> ProcessStatus:
    """Keep applying steps under the accepted view, although a higher ballot was promised."""
    return replace(own, promised=max(own.promised, ballot))


def careless(own: ProcessStatus, ballot: Ballot, number: int, *, step: int, generation: Ballot) -> ProcessStatus:
    """Accept a chunk of any step."""
    del step
    return acceptor.on_chunk(own, ballot, number, step=own.step or 0, generation=generation)


def credulous(
    own: ProcessStatus, ballot: Ballot, former: Ballot, chunk_count: int, *, step: int, generation: Ballot
) -> ProcessStatus:
    """Mix chunks of an earlier view with those of the current one."""
    del former
    known = own.view.ballot if own.view else ballot
    return acceptor.on_transfer_finish(own, ballot, known, chunk_count, step=step, generation=generation)


def repeatable(own: ProcessStatus, ballot: Ballot, *, step: int, generation: Ballot) -> ProcessStatus:
    """Accept a whole state whenever its ballot is promised, repeatedly and while steps are applied."""
    return replace(own, step=step, generation=generation, transferred_in=ballot) if own.promised == ballot else own


class AnyNumber(Voters):
    """Counts any number of votes as a quorum."""

    def is_quorum(self, number: int) -> bool:
        return True


class HalfIsEnough(Voters):
    """Counts half of the voters as a quorum, which differs only for even numbers of voters."""

    def is_quorum(self, number: int) -> bool:
        return 2 * number >= len(self.tasks)


def two_views_of_a_ballot(own: Ballot, voters: Voters, observation: Observation, **others: Any) -> Action:
    """Send a view under any ballot of the chief's term, even if another view was sent under it before."""
    promised = [status.promised for status in observation.values() if isinstance(status, ProcessStatus)]
    newest = max((ballot for ballot in promised if ballot.term == own.term), default=own)
    return next_action(max(own, newest), voters, observation, **others | {"proposed": None})
