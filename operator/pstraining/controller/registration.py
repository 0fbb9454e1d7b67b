"""All that kopf is used for: watches that fill the cache and put keys into the queue. It makes no write, ever.

kopf finds the kinds, lists, watches, reconnects and renews credentials. Its handlers are there only to say which kinds:
watch.py takes every object before kopf's own processing (a task, a queue and several deep copies for each), which cost
more than all the rest of the operator together. No `on.create`, daemon or timer: they write finalizers and annotations,
and see edges instead of levels.
"""

from collections.abc import Callable, Mapping
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from pstraining.api import names
from pstraining.controller import refusals
from pstraining.controller.cache import Key
from pstraining.controller.known import Known
from pstraining.controller.pace import merely_comes_up
from pstraining.controller.workqueue import WorkQueue
from pstraining.core.actions import Kind

RECONNECT = (0.2, 0.5, 1, 1, *(2,) * 600)
"""Seconds between kopf's tries to reach an API server that is away; at the end the process exits."""

JOBS = (names.GROUP, names.VERSION, names.PLURAL)
CHILDREN = (
    ("", "v1", "pods"),
    ("", "v1", "services"),
    ("", "v1", "configmaps"),
    # Those of parameter servers that are gone are seen nowhere else; jobs without volumes have none.
    ("", "v1", "persistentvolumeclaims"),
    ("apps", "v1", "statefulsets"),
    ("apps", "v1", "deployments"),
    ("batch", "v1", "jobs"),
    ("policy", "v1", "poddisruptionbudgets"),
    # One small object a job. Unwatched it could not be seen to be gone or changed, and the job would stand open.
    ("networking.k8s.io", "v1", "networkpolicies"),
)
EVENTS = ("", "v1", "events")
"""Of those that say that a pod could not be created."""
WATCHED = (JOBS, *CHILDREN, EVENTS)
"""Group, version and plural of every kind that is watched where jobs are."""
NODES = ("", "v1", "nodes")
"""Watched only by an operator that may: nodes belong to no namespace."""

CHUNK = 250
"""Objects in one answer to a list. A list of thousands at once leaves a process several times as large behind."""


def build_settings() -> kopf.OperatorSettings:
    """kopf's settings: children by label on the server's side, no scanning, no posting, quick to reconnect and stop."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.chunk_size = CHUNK
    settings.networking.error_backoffs = RECONNECT
    settings.networking.connect_timeout = 10
    settings.queueing.idle_timeout = 1.0
    settings.queueing.exit_timeout = 0.5
    settings.process.ultimate_exiting_timeout = None
    # Never used, as no handler stores anything; not kopf's own name in any case.
    settings.persistence.finalizer = f"{names.GROUP}/operator"
    for child in CHILDREN:
        settings.watching.label_selectors[child] = names.LABEL_JOB_UID
    settings.watching.field_selectors[EVENTS] = refusals.FIELD_SELECTOR
    return settings


def build_registry(configuration: Configuration, *, nodes: bool) -> kopf.OperatorRegistry:
    """kopf's handlers: the credentials, and one for every watched kind, which is never called.

    Args:
        configuration: where the API server is; kopf logs in in the same way as our own client.
        nodes: whether nodes are watched.
    """
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection_info(configuration)

    async def event(**_: Any) -> None:
        """Nothing: see the module's words."""

    kopf.on.login(id="login", registry=registry)(login)
    for group, version, plural in (*WATCHED, NODES) if nodes else WATCHED:
        kopf.on.event(group, version, plural, id=f"event-{plural}", registry=registry)(event)
    return registry


def receiver(
    known: Known, queue: WorkQueue, patience: Callable[[Key], float] = lambda key: 0.0
) -> Callable[[Mapping[str, Any]], None]:
    """What every event of the watches is given to: it is taken in, and the jobs it matters to are looked at again.

    Args:
        known: takes it in.
        queue: of jobs to be looked at.
        patience: seconds for which the news that a pod of a job comes up may wait.
    """

    def receive(event: Mapping[str, Any]) -> None:
        found, kind = event["object"], event["type"]
        calm = kind != "DELETED" and found.get("kind") == Kind.POD and merely_comes_up(found)
        for key in known.take(found, kind):
            wait = patience(key) if calm else 0.0
            if wait:
                queue.add_after(key, wait)
            else:
                queue.add(key)

    return receive


async def connection_info(configuration: Configuration) -> kopf.ConnectionInfo:
    """Our client's credentials as kopf wants them; asked again whenever the API server refuses the old ones."""
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
