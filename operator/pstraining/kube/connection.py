"""Loads the API server's address and our credentials: the pod's service account, or an explicitly named context."""

import os
from collections.abc import Mapping

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

KUBECONFIG = "KUBECONFIG"
CONTEXT = "PSTRAINING_CONTEXT"


class NoApiServerError(Exception):
    """No API server is configured; the message names the variables to set."""


async def load_configuration(environ: Mapping[str, str] | None = None) -> Configuration:
    """Return the client's configuration.

    With KUBECONFIG, only the context that PSTRAINING_CONTEXT names is used, so that a shell's current context is never
    used by accident. Without KUBECONFIG, the pod's service account is used.

    Raises:
        NoApiServerError: neither is available.
    """
    environ = os.environ if environ is None else environ
    configuration = Configuration()
    # The client limits its own requests (slots.py); a request must not wait for a hung one.
    configuration.connection_pool_maxsize = 0
    # Proxies and ~/.netrc must not change the connection to the API server.
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
