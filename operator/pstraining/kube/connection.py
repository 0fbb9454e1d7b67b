"""Where the API server is and who we are there: the service account of the pod, or an explicitly named context."""

import os
from collections.abc import Mapping

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

KUBECONFIG = "KUBECONFIG"
CONTEXT = "PSTRAINING_CONTEXT"


class NoApiServerError(Exception):
    """There is no way to reach an API server; the message says what to set."""


async def load_configuration(environ: Mapping[str, str] | None = None) -> Configuration:
    """The client's configuration.

    With KUBECONFIG set, the context that PSTRAINING_CONTEXT names is used and no other: whatever context a shell
    happens to point at is never touched by accident. Without it the pod's service account is used.

    Raises:
        NoApiServerError: if neither is there.
    """
    environ = os.environ if environ is None else environ
    configuration = Configuration()
    # What is in flight is bounded by the client (places.py); a request must not wait for one that hangs.
    configuration.connection_pool_maxsize = 0
    # Proxies and ~/.netrc have no say in how the API server is reached.
    configuration.client_session_kwargs = {"trust_env": False}
    path, context = environ.get(KUBECONFIG), environ.get(CONTEXT)
    try:
        if path:
            if not context:
                raise NoApiServerError(f"{KUBECONFIG} is set: name the context to use in {CONTEXT}")
            await load_kube_config(  # type: ignore[no-untyped-call]
                config_file=path, context=context, client_configuration=configuration, persist_config=False
            )
        else:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except ConfigException as error:
        where = f"context {context} of {path}" if path else "in a pod (set KUBECONFIG outside of one)"
        raise NoApiServerError(f"no API server {where}: {error}") from error
    return configuration
