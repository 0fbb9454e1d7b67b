"""kubectl's options of a connection, which override the kubeconfig."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Overrides:
    """The values of the options. An empty value overrides nothing."""

    kubeconfig: str = ""
    """Path of the only kubeconfig to read."""
    context: str = ""
    cluster: str = ""
    user: str = ""
    server: str = ""
    token: str = ""
    impersonate: str = ""
    """The user to act as."""
    impersonate_groups: tuple[str, ...] = ()
    impersonate_uid: str = ""
    impersonate_user_extra: tuple[str, ...] = ()
    """Entries of the form KEY=VALUE."""
    certificate_authority: str = ""
    client_certificate: str = ""
    client_key: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    request_timeout: str = ""
    """A duration as in kubectl: 5, 5s, 1m; 0 without a limit."""
