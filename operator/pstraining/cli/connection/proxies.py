"""Selects the proxy for a URL from the environment, by Go's rules (golang.org/x/net/http/httpproxy).

They differ from those of Python's libraries: ALL_PROXY is not read, and loopback addresses are never proxied.
"""

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from pstraining.cli.errors import CommandError

RULE: Final = "it must begin with http, https or socks5, and name a host, as in http://HOST:PORT"
"""The rule of a proxy's URL, for messages."""
_SCHEMES: Final = ("http", "https", "socks5", "socks5h")
_LOGIN: Final = re.compile(r"^([^:/?#@]*://|).*@", re.DOTALL)
"""The login at the beginning of a URL, with any characters; the scheme may be missing."""


def without_login(url: str) -> str:
    """Return the URL of a proxy, also an invalid one, without the name and the password, which no message has."""
    return _LOGIN.sub(r"\1", url)


def is_usable(url: str) -> bool:
    """Return whether a URL can be that of a proxy."""
    try:
        parts = urlsplit(url)
        return parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0 and url == "".join(url.split())
    except ValueError:
        return False


def from_environment(url: str, environ: Mapping[str, str]) -> str:
    """Return the proxy's URL; empty without one.

    Raises:
        CommandError: the variable's value is not the URL of a proxy.
    """
    parts = urlsplit(url)
    scheme = parts.scheme.upper()
    proxy = environ.get(f"{scheme}_PROXY") or environ.get(f"{scheme.lower()}_proxy") or ""
    excluded = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    host, port = (parts.hostname or "").lower(), str(parts.port or (443 if scheme == "HTTPS" else 80))
    if not proxy or host == "localhost" or any(_excludes(entry, host, port) for entry in excluded.split(",")):
        return ""
    if (address := _address(host)) and address.is_loopback:
        return ""
    found = proxy if "://" in proxy else f"http://{proxy}"
    if not is_usable(found):
        shown = without_login(proxy)
        raise CommandError(f"The variable {scheme}_PROXY has {shown}: {RULE}. Correct it, or set NO_PROXY.")
    return found


def _excludes(entry: str, host: str, port: str) -> bool:
    entry = entry.strip().lower()
    if entry in ("", "*"):
        return entry == "*"
    address = _address(host)
    if "/" in entry:
        try:
            return address is not None and address in ip_network(entry, strict=False)
        except ValueError:
            return False
    name, only = _split(entry)
    if only not in ("", port):
        return False
    if (excluded := _address(name)) is not None:
        return address == excluded
    name = name.removeprefix("*")
    return bool(name) and (host.endswith(name if name[0] == "." else f".{name}") or host == name)


def _split(entry: str) -> tuple[str, str]:
    """Return host and port of an entry of NO_PROXY. The port is empty if the entry has none."""
    if _address(entry) is not None:
        return entry, ""
    name, colon, port = entry.rpartition(":")
    return (name.strip("[]"), port) if colon else (entry, "")


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
