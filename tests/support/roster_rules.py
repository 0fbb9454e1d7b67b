"""Rules of rosters, switched off."""

from dataclasses import replace

from pstraining.runtime.replication import acceptor
from pstraining.runtime.replication.view import Answer, Ballot, Seats


def forgetful(own: Answer, ballot: Ballot) -> Answer:
    """Takes a promise back."""
    return replace(own, promised=ballot, opened=False)


def lenient(own: Answer, ballot: Ballot) -> Answer:
    """Goes on making steps under the roster that it has, whatever it promises."""
    return replace(own, promised=max(own.promised, ballot))


def careless(own: Answer, ballot: Ballot, number: int, *, step: int, generation: Ballot) -> Answer:
    """Takes a piece of whatever step."""
    del step
    return acceptor.learn(own, ballot, number, step=own.step or 0, generation=generation)


def credulous(own: Answer, ballot: Ballot, former: Ballot, pieces: int, *, step: int, generation: Ballot) -> Answer:
    """Takes pieces of an earlier roster for those of the former one."""
    del former
    known = own.roster.ballot if own.roster else ballot
    return acceptor.join(own, ballot, known, pieces, step=step, generation=generation)


class AnyNumber(Seats):
    """As if nobody counted."""

    def is_majority(self, number: int) -> bool:
        return True
