"""Programs that print credentials, run as kubectl runs them (client.authentication.k8s.io).

Source of the rules: k8s.io/client-go plugin/pkg/client/auth/exec.
"""

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

from pstraining.api.text import printable
from pstraining.cli.connection.models import ExecPlugin, KubeconfigCluster
from pstraining.cli.errors import CommandError
from pstraining.core.observe import parse_time

GROUP: Final = "client.authentication.k8s.io"
VERSIONS: Final = (f"{GROUP}/v1", f"{GROUP}/v1beta1")
WORDS: Final = 2000
"""Characters of the end of a plugin's error output that a message repeats."""


@dataclass(frozen=True)
class Printed:
    """The credentials that a plugin has printed."""

    token: str = ""
    certificate: bytes = b""
    """PEM, as the key."""
    key: bytes = b""
    expires: datetime | None = None


def run(plugin: ExecPlugin, cluster: KubeconfigCluster, user: str, environ: Mapping[str, str]) -> Printed:
    """Run a plugin. Its error output is passed on as it comes: it may ask for a login there.

    Args:
        plugin: which one.
        cluster: what it hears of the cluster if it wants to.
        user: the kubeconfig's name of the user, for messages.
        environ: the process's environment.

    Raises:
        CommandError: the plugin is missing, fails, or prints no credentials; with its own words.
    """
    subject = f"The credential plugin {plugin.command} of user {user}"
    if plugin.api_version not in VERSIONS:
        raise CommandError(f"{subject} has the apiVersion {plugin.api_version}: it must be {' or '.join(VERSIONS)}.")
    interactive = _interactive(plugin, subject)
    given = {**environ, **{v.name: v.value for v in plugin.env}}
    given["KUBERNETES_EXEC_INFO"] = json.dumps(info(plugin, cluster, interactive=interactive))
    try:
        output, said, code = _ran([plugin.command, *plugin.args], given, interactive=interactive)
    except OSError as error:
        hint = printable(plugin.install_hint) or "Install it, or correct PATH."
        raise CommandError(f"{subject} cannot be run: {error.strerror}. {hint}") from error
    if code:
        words = printable(" ".join(said[-WORDS:].split()))
        raise CommandError(f"{subject} failed with exit code {code}{': ' if words else '.'}{words}")
    return printed(output, plugin.api_version, subject)


def _ran(command: list[str], environ: Mapping[str, str], *, interactive: bool) -> tuple[bytes, str, int]:
    """What a command has printed, and to its error output, and its exit code."""
    said: list[str] = []
    pipe, stdin = subprocess.PIPE, None if interactive else subprocess.DEVNULL
    with subprocess.Popen(command, env=environ, stdin=stdin, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None  # noqa: S101 - for mypy: both are pipes
        assert process.stderr is not None  # noqa: S101
        passed = threading.Thread(target=_pass_on, args=(process.stderr.fileno(), sys.stderr, said))
        passed.start()
        output = process.stdout.read()
        passed.join()
        return output, "".join(said), process.wait()


def info(plugin: ExecPlugin, cluster: KubeconfigCluster, *, interactive: bool) -> dict[str, Any]:
    """What a plugin hears in KUBERNETES_EXEC_INFO."""
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.provide_cluster_info:
        data = cluster.certificate_authority_data
        if cluster.certificate_authority:
            data = Path(cluster.certificate_authority).read_bytes()
        own = next((e.extension for e in cluster.extensions if e.name == f"{GROUP}/exec"), None)
        given = {
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "certificate-authority-data": base64.b64encode(data).decode(),
            "proxy-url": cluster.proxy_url,
            "disable-compression": cluster.disable_compression,
            "config": own,
        }
        spec["cluster"] = {name: value for name, value in given.items() if value}
    return {"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec}


def printed(output: bytes, version: str, subject: str) -> Printed:
    """The credentials of a plugin's output.

    Raises:
        CommandError: there are none.
    """
    try:
        found = json.loads(output)
        status = found.get("status") or {}
        token, certificate, key, expires = (
            str(status.get(name) or "")
            for name in ("token", "clientCertificateData", "clientKeyData", "expirationTimestamp")
        )
        said, end = found.get("apiVersion"), parse_time(expires or None)
    except (ValueError, AttributeError) as error:
        raise CommandError(f"{subject} printed no ExecCredential in JSON.") from error
    if said != version:
        raise CommandError(f"{subject} printed apiVersion {said}, but the kubeconfig has {version}.")
    if not token and not certificate and not key:
        raise CommandError(f"{subject} printed neither a token nor a certificate.")
    if bool(certificate) != bool(key):
        raise CommandError(f"{subject} printed a certificate or a key, but not both.")
    return Printed(token, certificate.encode(), key.encode(), end)


def _interactive(plugin: ExecPlugin, subject: str) -> bool:
    """Whether the plugin gets our standard input."""
    terminal = sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive_mode == "Always" and not terminal:
        raise CommandError(f"{subject} needs a terminal for its input: its interactiveMode is Always.")
    return terminal and plugin.interactive_mode != "Never"


def _pass_on(source: int, stream: TextIO, said: list[str]) -> None:
    """Write what comes at once, prompts without a line's end too, and keep it."""
    while piece := os.read(source, 4096):
        text = piece.decode(errors="replace")
        said.append(text)
        stream.write(text)
        stream.flush()
