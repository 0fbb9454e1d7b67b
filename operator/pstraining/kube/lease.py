"""The Lease in front of the operator: one acts, the others wait.

kubernetes.aio's own leader election was read and not taken: a timeout or a broken connection ends it with an
exception, it cannot release the Lease, and it writes local time without a zone. The rules are client-go's: a holder
counts as dead when its record has not changed for its lease duration as measured by OUR clock, so that clocks need not
agree. The holder's identity is the pod's name: a container that crashed goes on at once when its pod starts it again.

When renewals fail because the API server is away, `held` turns false in good time before anyone else may take the
Lease, and true again once a renewal succeeds and nobody has: during such an outage no write would succeed anyway, and
a process that exits would come back into the kubelet's back-off. Another holder in the record is final: LeaseLostError.
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
"""The part of the lease duration for which a renewal lets us act; the rest covers requests under way."""
RENEWALS = 3
"""Renewals in one lease duration."""
MAX_POLL = 1.0
"""Seconds between two looks of a waiting operator: what a clean hand-over costs at most."""


class LeaseLostError(Exception):
    """Somebody else holds the Lease."""


@dataclass(frozen=True)
class Observed:
    """The record of a Lease and since when it has not changed."""

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
        """Make a candidate; nothing is sent yet.

        Args:
            port: the API server.
            namespace: the Lease's.
            name: the Lease's.
            identity: the holder that we are; the same after a restart of the same pod.
            duration: seconds that a holder may be silent for.
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
        """The resourceVersion of the write that made it ours; 0 while it is not, or where versions are no numbers."""
        return self._version

    @property
    def held(self) -> bool:
        """Whether we may act now."""
        return self._renewed is not None and self._clock() < self._renewed + SAFE_PART * self._duration

    async def acquire(self) -> None:
        """Wait until the Lease is ours."""
        told: str | None = None
        while True:
            holder = await self._quietly_try()
            if holder == self._identity:
                logger.info("Lease %s/%s is held by %s", self._namespace, self._name, self._identity)
                return
            if holder and holder != told:
                logger.info("Waiting for Lease %s/%s, held by %s", self._namespace, self._name, holder)
                told = holder
            await asyncio.sleep(min(MAX_POLL, self._duration / RENEWALS))

    async def keep(self) -> None:
        """Renew for ever.

        Raises:
            LeaseLostError: somebody else holds the Lease.
        """
        pause = self._duration / RENEWALS
        while True:
            await asyncio.sleep(pause)
            was_held = self.held
            holder = await self._quietly_try()
            pause = self._duration / RENEWALS if holder else min(MAX_POLL, self._duration / RENEWALS)
            if holder not in (None, self._identity):
                self._renewed = None
                raise LeaseLostError(f"Lease {self._namespace}/{self._name} is held by {holder}")
            if was_held and not self.held:
                logger.error("Lease %s/%s could not be renewed in time; pausing", self._namespace, self._name)
            if not was_held and self.held:
                logger.info("Lease %s/%s is renewed again; going on", self._namespace, self._name)

    async def release(self) -> None:
        """Give the Lease up, so that a successor need not wait; errors only cost that wait."""
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
        """Take or renew the Lease if allowed; its holder afterwards, None if that is not known."""
        try:
            # A request that hangs must not outlast the Lease: the next try may get through.
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
        """Write ourselves in; nobody known is the holder if somebody else was faster."""
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
