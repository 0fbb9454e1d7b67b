"""Rules of view changes, switched off."""

from dataclasses import replace

from pstraining.runtime.replication import acceptor
from pstraining.runtime.replication.view import Ballot, ProcessStatus, Voters


def forgetful(own: ProcessStatus, ballot: Ballot) -> ProcessStatus:
    """Take a promise back."""
    return replace(own, promised=ballot, active=False)


def lenient(own: ProcessStatus, ballot: Ballot) -> ProcessStatus:
    """Keep applying steps under the accepted view, whatever is promised."""
    return replace(own, promised=max(own.promised, ballot))


def careless(own: ProcessStatus, ballot: Ballot, number: int, *, step: int, generation: Ballot) -> ProcessStatus:
    """Take a chunk of any step."""
    del step
    return acceptor.on_chunk(own, ballot, number, step=own.step or 0, generation=generation)


def credulous(
    own: ProcessStatus, ballot: Ballot, former: Ballot, chunk_count: int, *, step: int, generation: Ballot
) -> ProcessStatus:
    """Take chunks of an earlier view for those of the former one."""
    del former
    known = own.view.ballot if own.view else ballot
    return acceptor.on_transfer_finish(own, ballot, known, chunk_count, step=step, generation=generation)


def repeatable(own: ProcessStatus, ballot: Ballot, *, step: int, generation: Ballot) -> ProcessStatus:
    """Take a whole state whenever its ballot is promised, again and while steps are applied."""
    return replace(own, step=step, generation=generation, transferred_in=ballot) if own.promised == ballot else own


class AnyNumber(Voters):
    """Counts no votes: any number is a quorum."""

    def is_quorum(self, number: int) -> bool:
        return True
