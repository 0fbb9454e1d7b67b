"""Leader election: one operator holds the Lease and acts, the others wait.

kubernetes.aio's own leader election is not used: a timeout or a broken connection ends it with an exception, it cannot
release the Lease, and it writes local time without a zone. The rules are client-go's: a holder has expired when its
record has not changed for its lease duration on OUR clock, so clocks need not agree. The holder's identity is the pod's
name: a container that crashed holds the Lease again at once when its pod restarts it.

While renewals fail because the API server is unreachable, `held` becomes false well before another operator may take
the Lease. It becomes true again once a renewal succeeds. During such an outage no write would succeed, and a process
that exits would have to wait for the kubelet's back-off. Another holder in the record is final: LeaseLostError. So is
one that has released the Lease since.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pstraining.kube.errors import ApiError, Conflict, NotFound
from pstraining.kube.port import LeasePort, Object

logger = logging.getLogger(__name__)

SAFE_PART = 0.8
"""The part of the lease duration for which we may act after a renewal; the rest covers requests in flight."""
RENEWALS = 3
"""Renewals per lease duration."""
POLL_SECONDS_MAX = 1.0
"""Upper bound of the seconds between two polls of a waiting operator, and therefore of a clean handover."""


class LeaseLostError(Exception):
    """Another operator holds the Lease."""


@dataclass(frozen=True)
class Observed:
    """The record of a Lease, and the time of its last change on our clock."""

    record: tuple[Any, ...]
    since: float


class Lease:
    """One candidate for a Lease."""

    def __init__(
        self,
        port: LeasePort,
        *,
        namespace: str,
        name: str,
        identity: str,
        duration: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a candidate without sending a request.

        Args:
            port: the API server.
            namespace: the Lease's namespace.
            name: the Lease's name.
            identity: our identity as holder; unchanged by a restart of the container.
            duration: seconds without a renewal after which a holder has expired.
            clock: monotonic seconds.
        """
        self._port = port
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration = duration
        self._clock = clock
        self._observed: Observed | None = None
        self._renewed: float | None = None
        self._version = 0

    @property
    def version(self) -> int:
        """The resourceVersion of our first write to the Lease; 0 without one, or if versions are not numbers."""
        return self._version

    @property
    def held(self) -> bool:
        """Whether this operator may act now."""
        return self._renewed is not None and self._clock() < self._renewed + SAFE_PART * self._duration

    async def acquire(self) -> None:
        """Wait until this operator holds the Lease."""
        logged_holder: str | None = None
        while True:
            holder = await self._quietly_try()
            if holder == self._identity:
                logger.info("Lease %s/%s is held by %s", self._namespace, self._name, self._identity)
                return
            if holder and holder != logged_holder:
                logger.info("Waiting for Lease %s/%s, held by %s", self._namespace, self._name, holder)
                logged_holder = holder
            await asyncio.sleep(min(POLL_SECONDS_MAX, self._duration / RENEWALS))

    async def keep(self) -> None:
        """Renew the Lease until cancelled.

        Raises:
            LeaseLostError: another operator holds the Lease.
        """
        pause = self._duration / RENEWALS
        while True:
            await asyncio.sleep(pause)
            was_held = self.held
            holder = await self._quietly_try()
            pause = self._duration / RENEWALS if holder else min(POLL_SECONDS_MAX, self._duration / RENEWALS)
            if holder not in (None, self._identity):
                self._renewed = None
                now = f"held by {holder}" if holder else "released by another operator"
                raise LeaseLostError(f"Lease {self._namespace}/{self._name} is {now}")
            if was_held and not self.held:
                logger.error("Lease %s/%s could not be renewed in time; pausing", self._namespace, self._name)
            if not was_held and self.held:
                logger.info("Lease %s/%s is renewed again; resuming", self._namespace, self._name)

    async def release(self) -> None:
        """Release the Lease, so that a successor need not wait for its expiry. Errors are only logged."""
        held, self._renewed = self._renewed is not None, None
        if not held:
            return
        try:
            lease = await self._port.get_lease(self._namespace, self._name)
            if (lease.get("spec") or {}).get("holderIdentity") != self._identity:
                return
            lease["spec"] = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
            await self._port.replace_lease(self._namespace, self._name, lease)
        except ApiError as error:
            logger.warning("Lease %s/%s was not released: %s", self._namespace, self._name, error.message)
        else:
            logger.info("Lease %s/%s is released", self._namespace, self._name)

    async def _quietly_try(self) -> str | None:
        """Acquire or renew the Lease if allowed; return its holder, empty without one, None if it is unknown."""
        try:
            # A hung request must not outlast the Lease: the next attempt may succeed.
            async with asyncio.timeout(self._duration / RENEWALS):
                return await self._try()
        except ApiError as error:
            logger.warning("Lease %s/%s: %s", self._namespace, self._name, error.message)
        except TimeoutError:
            logger.warning("Lease %s/%s: no answer in time", self._namespace, self._name)
        return None

    async def _try(self) -> str | None:
        sent = self._clock()
        try:
            lease = await self._port.get_lease(self._namespace, self._name)
        except NotFound:
            return await self._write(sent, None)
        spec = lease.get("spec") or {}
        self._note(spec)
        holder = str(spec.get("holderIdentity") or "")
        if not holder and self._renewed is not None:
            return holder  # it was held meanwhile, by an operator whose writes our cache may lack
        if holder in ("", self._identity) or self._expired(spec):
            return await self._write(sent, lease)
        return holder

    def _note(self, spec: dict[str, Any]) -> None:
        record = tuple(spec.get(f) for f in ("holderIdentity", "acquireTime", "renewTime", "leaseTransitions"))
        if self._observed is None or self._observed.record != record:
            self._observed = Observed(record, self._clock())

    def _expired(self, spec: dict[str, Any]) -> bool:
        duration = spec.get("leaseDurationSeconds") or self._duration
        return self._observed is not None and self._clock() >= self._observed.since + duration

    async def _write(self, sent: float, lease: Object | None) -> str | None:
        """Write the Lease with our identity; return the holder, or None if another write came first."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict((lease or {}).get("spec") or {})
        if spec.get("holderIdentity") != self._identity:
            spec |= {"acquireTime": now, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + bool(lease)}
        spec |= {
            "holderIdentity": self._identity,
            "renewTime": now,
            "leaseDurationSeconds": max(1, round(self._duration)),
        }
        try:
            if lease is None:
                body = {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self._name, "namespace": self._namespace},
                    "spec": spec,
                }
                written = await self._port.create_lease(self._namespace, body)
            else:
                written = await self._port.replace_lease(self._namespace, self._name, {**lease, "spec": spec})
        except Conflict:
            return None
        self._note(written.get("spec") or {})
        if not self._version:
            version = str(written["metadata"].get("resourceVersion", ""))
            self._version = int(version) if version.isdigit() else 0
        self._renewed = sent
        return self._identity
