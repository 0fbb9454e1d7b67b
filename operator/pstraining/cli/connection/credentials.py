"""The credentials of a request, and the identity to impersonate."""

import base64
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pstraining.cli.connection import exec_plugin, oidc
from pstraining.cli.connection.access import Access
from pstraining.cli.errors import CommandError

Pair = tuple[bytes, bytes]
"""A certificate and its key, in PEM."""
_PLAIN: Final = frozenset("!#$&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""Characters that are not escaped in a header's name. `%` is also escaped."""


class Credentials:
    """The user's credentials, fetched on first use."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._printed: exec_plugin.Printed | None = None
        self._provider = access.user.auth_provider
        self._lock = threading.Lock()

    def headers(self) -> Iterator[tuple[str, str]]:
        """Yield names and values of a request's headers. A name can occur more than once.

        Raises:
            CommandError: the credentials are not available.
        """
        # Like kubectl, send no credentials over plain HTTP.
        authorization = self._authorization() if self._access.secure else ""
        if authorization := authorization or _basic(*self._access.login):
            yield "Authorization", authorization
        user = self._access.user
        if user.impersonate:
            yield "Impersonate-User", user.impersonate
            if user.impersonate_uid:
                yield "Impersonate-Uid", user.impersonate_uid
            yield from (("Impersonate-Group", group) for group in user.impersonate_groups)
            for key, values in user.impersonate_user_extra.items():
                yield from ((f"Impersonate-Extra-{escaped(key)}", value) for value in values)

    def certificate(self) -> Pair | None:
        """Return the client's certificate, if it has one.

        Raises:
            CommandError: the certificate is not available.
        """
        user = self._access.user
        if user.client_certificate or user.client_certificate_data:
            return (
                user.client_certificate_data or read(user.client_certificate, "client-certificate"),
                user.client_key_data or read(user.client_key, "client-key"),
            )
        printed = self._plugin()
        return (printed.certificate, printed.key) if printed and printed.certificate else None

    def refused(self) -> None:
        """Forget credentials that the API server rejected, so that the next request runs the plugin again."""
        self._printed = None

    def _authorization(self) -> str:
        user = self._access.user
        if user.username or user.password:
            return _basic(user.username, user.password)
        if user.token or user.token_file:
            return f"Bearer {self._token()}"
        if self._provider is not None:
            with self._lock:
                self._provider = oidc.current(self._provider, self._access.user_name, self._access.origin)
                return f"Bearer {self._provider.config['id-token']}"
        printed = self._plugin()
        return f"Bearer {printed.token}" if printed and printed.token else ""

    def _token(self) -> str:
        """Return the token of the file, which is renewed, or else the kubeconfig's."""
        user = self._access.user
        try:
            found = Path(user.token_file).read_text(encoding="utf-8").strip() if user.token_file else ""
        except (OSError, UnicodeDecodeError) as error:
            if not user.token:
                why = getattr(error, "strerror", None) or error
                raise CommandError(f"The token file {user.token_file} cannot be read: {why}.") from error
            found = ""
        if not found and not user.token:
            raise CommandError(f"The token file {user.token_file} is empty.")
        return found or user.token

    def _plugin(self) -> exec_plugin.Printed | None:
        """Return the plugin's credentials; None without a plugin, or if other credentials take precedence."""
        access, user = self._access, self._access.user
        others = user.username or user.password or user.token or user.token_file
        certificate = user.client_certificate or user.client_certificate_data
        if user.exec is None or others or certificate or not access.secure:
            return None
        with self._lock:  # concurrent requests run the plugin once
            expires = self._printed.expires if self._printed else None
            if self._printed is None or (expires is not None and expires <= datetime.now(UTC)):
                self._printed = exec_plugin.run(user.exec, access.cluster, access.user_name, os.environ)
            return self._printed


def _basic(name: str, password: str) -> str:
    """Return the header's value for a name and a password; empty without both."""
    pair = f"{name}:{password}".encode()
    return f"Basic {base64.b64encode(pair).decode()}" if name or password else ""


def escaped(key: str) -> str:
    """Escape a key for use in a header's name."""
    return "".join(chr(b) if chr(b) in _PLAIN else f"%{b:02X}" for b in key.encode(errors="surrogateescape"))


def read(path: str, what: str) -> bytes:
    """Read a file that the kubeconfig names.

    Raises:
        CommandError: the file cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CommandError(f"The kubeconfig's {what} {path} cannot be read: {error.strerror}.") from error
