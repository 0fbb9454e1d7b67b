"""All that kopf is used for: watches that fill the cache and put keys into the queue. It makes no write, ever.

An index function is called for every object before any other handler is called for any; so the cache is filled there,
and the first `on.event` call, whichever it is, proves that every kind is listed and opens the queue. No `on.create`,
daemon or timer: they write finalizers and annotations, and see edges instead of levels.
"""

from collections.abc import Mapping
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from pstraining.api import names
from pstraining.controller.cache import Cache
from pstraining.controller.workqueue import WorkQueue

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
WATCHED = (JOBS, *CHILDREN)
"""Group, version and plural of every watched kind."""


def build_settings() -> kopf.OperatorSettings:
    """kopf's settings: children by label on the server's side, no scanning, no posting, quick to reconnect and stop."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.networking.error_backoffs = RECONNECT
    settings.networking.connect_timeout = 10
    settings.queueing.idle_timeout = 1.0
    settings.queueing.exit_timeout = 0.5
    settings.process.ultimate_exiting_timeout = None
    # Never used, as no handler stores anything; not kopf's own name in any case.
    settings.persistence.finalizer = f"{names.GROUP}/operator"
    for child in CHILDREN:
        settings.watching.label_selectors[child] = names.LABEL_JOB_UID
    return settings


def build_registry(cache: Cache, queue: WorkQueue, configuration: Configuration) -> kopf.OperatorRegistry:
    """kopf's handlers.

    Args:
        cache: is filled.
        queue: gets the keys of jobs about which anything changed, and is opened once the cache is filled.
        configuration: where the API server is; kopf logs in the same way as our own client.
    """
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection_info(configuration)

    async def index(body: Mapping[str, Any], **_: Any) -> None:
        key = cache.observed(dict(body))
        if key is not None:
            queue.add(key)

    async def event(event: Mapping[str, Any], **_: Any) -> None:
        if event["type"] == "DELETED":
            key = cache.vanished(event["object"])
            if key is not None:
                queue.add(key)
        if not queue.opened:
            queue.open()

    kopf.on.login(id="login", registry=registry)(login)
    for group, version, plural in WATCHED:
        kopf.index(group, version, plural, id=f"index-{plural}", registry=registry)(index)
        kopf.on.event(group, version, plural, id=f"event-{plural}", registry=registry)(event)
    return registry


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
