"""The acceptor's side of a view change: each function is one compare-and-set on a process's status.

Every function returns the new status, or the unchanged object if the request does not apply.
`replication.view_decisions` decides what chiefs request. Servers do the same in critical sections, see
`replication.acceptor_ops` and `replication.transfer.chunks`.

Pure: no clock, no TensorFlow.
"""

from dataclasses import replace

from pstraining.runtime.replication.view import Ballot, ProcessStatus, View


def on_prepare(own: ProcessStatus, ballot: Ballot) -> ProcessStatus:
    """Promise to follow no lower ballot. Steps under an earlier view are rejected from then on."""
    if ballot <= own.promised:
        return own
    return replace(own, promised=ballot, active=False)


def on_accept(own: ProcessStatus, view: View, *, founding: bool = False) -> ProcessStatus:
    """Accept a view whose ballot was promised; with `founding`, vote from then on."""
    if own.promised != view.ballot or (own.view == view and own.is_voter >= founding):
        return own
    return replace(_under(own, view), is_voter=own.is_voter or founding)


def on_admit(own: ProcessStatus, view: View) -> ProcessStatus:
    """Vote from then on, and accept the view that counts."""
    if own.is_voter or own.promised > view.ballot:
        return own
    return replace(_under(own, view), is_voter=True, promised=view.ballot)


def on_activate(own: ProcessStatus, view: View) -> ProcessStatus:
    """Apply steps under this view."""
    if own.view != view or own.promised != view.ballot:
        return own
    return replace(own, active=True)


def on_transfer(own: ProcessStatus, ballot: Ballot, *, step: int, generation: Ballot) -> ProcessStatus:
    """Take the whole state of another member, or of a checkpoint: once under a ballot, and before steps are applied.

    A transfer is read on one member and written on another. A write that arrives late, after the chief has transferred
    the state once more, would put an old state over acknowledged steps.
    """
    if own.promised != ballot or own.active or own.transferred_in == ballot:
        return own
    return replace(own, step=step, generation=generation, transferred_in=ballot)


def on_transfer_begin(own: ProcessStatus, view: View, *, step: int, generation: Ballot) -> ProcessStatus:
    """Become a learner under this view, at the step of another member, without any of its older state."""
    if own.view != view or own.promised != view.ballot or own.active:
        return own
    return replace(own, step=step, generation=generation, chunks=0)


def on_chunk(own: ProcessStatus, ballot: Ballot, number: int, *, step: int, generation: Ballot) -> ProcessStatus:
    """Take a chunk of the state as of a step. It is refused unless the learner is at that step."""
    if own.promised != ballot or not own.active or own.chunks != number:
        return own
    return replace(own, chunks=number + 1) if (own.step, own.generation) == (step, generation) else own


def on_transfer_finish(
    own: ProcessStatus, ballot: Ballot, former: Ballot, chunk_count: int, *, step: int, generation: Ballot
) -> ProcessStatus:
    """Take the small state, if all chunks were received under the former view."""
    if own.promised != ballot or own.view is None or own.view.ballot != former or own.chunks != chunk_count:
        return own
    return replace(own, transferred_in=ballot) if (own.step, own.generation) == (step, generation) else own


def _under(own: ProcessStatus, view: View) -> ProcessStatus:
    same = own.view == view
    return replace(own, view=view, active=own.active and same, chunks=own.chunks if same else 0)
