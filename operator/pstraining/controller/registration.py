"""Configures kopf, which only watches: its watches fill the cache and enqueue jobs. kopf never writes.

kopf discovers the kinds, lists, watches, reconnects and renews credentials. Its handlers only select the kinds:
watch.py takes every object before kopf's own processing (a task, a queue and several deep copies per object), which
cost more than the rest of the operator. No `on.create`, daemon or timer is used, because they write finalizers and
annotations, and are edge-triggered.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from pstraining.api import names
from pstraining.controller import failed_creates
from pstraining.controller.informer_cache import Key
from pstraining.controller.rate_limit import is_starting
from pstraining.controller.watch_state import WatchState
from pstraining.controller.workqueue import WorkQueue
from pstraining.core.actions import Kind

RECONNECT = (0.2, 0.5, 1, 1, *(2,) * 600)
"""Seconds between kopf's attempts to reach an unreachable API server; after the last one the process exits."""

JOBS = (names.GROUP, names.VERSION, names.PLURAL)
CHILDREN = (
    ("", "v1", "pods"),
    ("", "v1", "services"),
    ("", "v1", "configmaps"),
    # No other object shows the claims of removed parameter servers. Jobs without volumes have no claims.
    ("", "v1", "persistentvolumeclaims"),
    ("apps", "v1", "statefulsets"),
    ("apps", "v1", "deployments"),
    ("batch", "v1", "jobs"),
    ("policy", "v1", "poddisruptionbudgets"),
    # One small object per job. Unwatched, its deletion or change would go unnoticed and leave the job open.
    ("networking.k8s.io", "v1", "networkpolicies"),
)
EVENTS = ("", "v1", "events")
"""Events; only those about pods that could not be created are watched."""
WATCHED = (JOBS, *CHILDREN, EVENTS)
"""Group, version and plural of every kind that is watched in the jobs' namespaces."""
WORKLOADS = ("kueue.x-k8s.io", "v1beta2", "workloads")
"""Watched only if jobs may queue and the API server serves them."""
NODES = ("", "v1", "nodes")
"""Watched only if the operator has the cluster-wide permission."""


def build_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: server-side label selection, no scanning, no posting, fast reconnects and shutdown."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.networking.error_backoffs = RECONNECT
    settings.networking.connect_timeout = 10
    settings.queueing.idle_timeout = 1.0
    settings.queueing.exit_timeout = 0.5
    settings.process.ultimate_exiting_timeout = None
    # Unused, because no handler stores data; set so that kopf's own finalizer can never appear.
    settings.persistence.finalizer = f"{names.GROUP}/operator"
    for child in (*CHILDREN, WORKLOADS):
        settings.watching.label_selectors[child] = names.LABEL_JOB_UID
    settings.watching.field_selectors[EVENTS] = failed_creates.FIELD_SELECTOR
    return settings


def watched(*, nodes: bool, queues: bool) -> tuple[tuple[str, str, str], ...]:
    """Return group, version and plural of every kind that is watched.

    Args:
        nodes: whether nodes are watched.
        queues: whether Kueue's Workloads are watched.
    """
    return (*WATCHED, *((WORKLOADS,) if queues else ()), *((NODES,) if nodes else ()))


def build_registry(configuration: Configuration, kinds: Iterable[tuple[str, str, str]]) -> kopf.OperatorRegistry:
    """Return kopf's handlers: one for the credentials, and one per watched kind that is never called.

    Args:
        configuration: the API server and credentials of our own client.
        kinds: group, version and plural of the kinds that are watched.
    """
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection_info(configuration)

    async def event(**_: Any) -> None:
        """Do nothing: watch.py takes the objects before kopf calls its handlers."""

    kopf.on.login(id="login", registry=registry)(login)
    for group, version, plural in kinds:
        kopf.on.event(group, version, plural, id=f"event-{plural}", registry=registry)(event)
    return registry


def receiver(
    watch_state: WatchState, queue: WorkQueue, startup_delay: Callable[[Key], float] = lambda key: 0.0
) -> Callable[[Mapping[str, Any]], None]:
    """Return the function that records every event of the watches and enqueues the jobs that it concerns.

    Args:
        watch_state: records the events.
        queue: the jobs that need a pass.
        startup_delay: seconds for which an event of a starting pod of a job may wait.
    """

    def receive(event: Mapping[str, Any]) -> None:
        raw, kind = event["object"], event["type"]
        may_wait = kind != "DELETED" and raw.get("kind") == Kind.POD and is_starting(raw)
        for key in watch_state.receive(raw, kind):
            wait = startup_delay(key) if may_wait else 0.0
            if wait:
                queue.add_after(key, wait)
            else:
                queue.add(key)

    return receive


async def connection_info(configuration: Configuration) -> kopf.ConnectionInfo:
    """Return our client's credentials for kopf, which calls this again when the API server rejects the old ones."""
    header = await configuration.get_api_key_with_prefix("BearerToken")
    scheme, _, token = (header or "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme if token else None,
        token=token or scheme or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
    )
