"""What a process makes of what chiefs ask it: its promise, its roster, its state. Each is one compare-and-set.

`replication.view` says what chiefs ask for; servers do the same in their critical sections (`replication.acceptor_ops`,
`learning`). Pure.
"""

from dataclasses import replace

from pstraining.runtime.replication.view import Answer, Ballot, Roster


def promise(own: Answer, ballot: Ballot) -> Answer:
    """Follow no lower ballot from now on; steps under an earlier roster are refused."""
    if ballot <= own.promised:
        return own
    return replace(own, promised=ballot, opened=False)


def adopt(own: Answer, roster: Roster, *, founding: bool = False) -> Answer:
    """Take a roster whose ballot was promised."""
    if own.promised != roster.ballot or (own.roster == roster and own.votes >= founding):
        return own
    return replace(_under(own, roster), votes=own.votes or founding)


def seat(own: Answer, roster: Roster) -> Answer:
    """Take a seat, with the roster that counts."""
    if own.votes or own.promised > roster.ballot:
        return own
    return replace(_under(own, roster), votes=True, promised=roster.ballot)


def open_(own: Answer, roster: Roster) -> Answer:
    """Make steps under this roster."""
    if own.roster != roster or own.promised != roster.ballot:
        return own
    return replace(own, opened=True)


def fill(own: Answer, ballot: Ballot, *, step: int, generation: Ballot) -> Answer:
    """Take the whole state of a member, or of a checkpoint."""
    return replace(own, step=step, generation=generation, copied=ballot) if own.promised == ballot else own


def begin(own: Answer, roster: Roster, *, step: int, generation: Ballot) -> Answer:
    """Learn under this roster, from the step at which another member stands: nothing of the state is there yet."""
    if own.roster != roster or own.promised != roster.ballot or own.opened:
        return own
    return replace(own, step=step, generation=generation, learned=0)


def learn(own: Answer, ballot: Ballot, number: int, *, step: int, generation: Ballot) -> Answer:
    """Take a piece of the state, as it was at a step: the own one, or what was made since is not made on it."""
    if own.promised != ballot or not own.opened or own.learned != number:
        return own
    return replace(own, learned=number + 1) if (own.step, own.generation) == (step, generation) else own


def join(own: Answer, ballot: Ballot, former: Ballot, pieces: int, *, step: int, generation: Ballot) -> Answer:
    """Take what is left of the state, with so many pieces that were given under the former roster."""
    if own.promised != ballot or own.roster is None or own.roster.ballot != former or own.learned != pieces:
        return own
    return replace(own, copied=ballot) if (own.step, own.generation) == (step, generation) else own


def _under(own: Answer, roster: Roster) -> Answer:
    same = own.roster == roster
    return replace(own, roster=roster, opened=own.opened and same, learned=own.learned if same else 0)
