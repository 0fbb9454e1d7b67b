"""Hot standbys: views of the members, their changes and the transfer of state; imports no chief and no worker.

Glossary, which docs/reference/glossary.md repeats:

- *shard*: the part of the parameters that one parameter-server index holds
- *member*: one process that holds a copy of a shard: the primary or a standby
- *primary*: the first member in sync of a shard
- *standby*: another member; `Warm` standbys hold no state before a failover, `Hot` standbys apply every update
- *in sync*: has applied every acknowledged step (Sync, Hybrid) or update (Async)
- *acknowledged*: applied, and the worker has the reply
- *ballot*: (term, epoch), totally ordered; the chief raises the epoch for each view change
- *promise*: a process's commitment to reject lower ballots
- *view*: for each shard the members in sync and the learners, accepted under one ballot
- *view change*: prepare, state transfer where needed, accept, activate
- *voter*: every member and every witness
- *witness*: a worker that votes and holds no state
- *quorum*: a strict majority of the voters
- *learner*: a member that applies every step while it receives older state (Raft's sense, not Paxos')
- *state transfer*: the copy of a shard's state to a member, whole or in chunks
- *fence*: the fencing token, a ballot or a term as one integer in a server's record; lower tokens are rejected
- *lease*: the time for which a member applies steps without a poll by the chief; the operator has a Kubernetes Lease
- *heartbeat*: the message that shows that a worker is alive
- *crashed*: the process's port refuses connections
- *suspected*: the process does not respond
- *failover*: the change to another member after a loss
- *switchover*: the planned change to another member, such as before a drained node stops
- *renewal*: a process runs its program again in place, to free TensorFlow's memory
"""
