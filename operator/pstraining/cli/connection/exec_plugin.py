"""Credential plugins: programs that print credentials, run as kubectl runs them (client.authentication.k8s.io).

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
from pstraining.cli.manifests import Document, parsed
from pstraining.core.observe import parse_time

GROUP: Final = "client.authentication.k8s.io"
KIND: Final = "ExecCredential"
VERSIONS: Final = (f"{GROUP}/v1", f"{GROUP}/v1beta1")
ERROR_CHARACTERS: Final = 2000
"""Maximum number of characters, from the end of a plugin's error output, that a message repeats."""

LATE_SECONDS: Final = 1.0
"""Maximum of seconds that the rest of a plugin's error output is awaited after its end."""


@dataclass(frozen=True)
class Printed:
    """The credentials that a plugin printed."""

    token: str = ""
    certificate: bytes = b""
    """The certificate in PEM; the key is also in PEM."""
    key: bytes = b""
    expires: datetime | None = None


def run(plugin: ExecPlugin, cluster: KubeconfigCluster, user: str, environ: Mapping[str, str]) -> Printed:
    """Run a plugin. Its error output is passed on immediately, because it may prompt for a login there.

    Args:
        plugin: the plugin's entry in the kubeconfig.
        cluster: the cluster, which the plugin receives if its entry has provideClusterInfo.
        user: the kubeconfig's name of the user, for messages.
        environ: the process's environment.

    Raises:
        CommandError: the plugin is missing, failed, or printed no credentials. The message repeats its error output.
    """
    subject = f"The credential plugin {plugin.command} of user {user}"
    if plugin.api_version not in VERSIONS:
        raise CommandError(f"{subject} has the apiVersion {plugin.api_version}: it must be {' or '.join(VERSIONS)}.")
    interactive = _interactive(plugin, subject)
    given = {**environ, **{v.name: v.value for v in plugin.env}}
    given["KUBERNETES_EXEC_INFO"] = json.dumps(info(plugin, cluster, interactive=interactive))
    try:
        output, errors, code = _ran([plugin.command, *plugin.args], given, interactive=interactive)
    except OSError as error:
        hint = "Make it executable, or correct its command."
        if isinstance(error, FileNotFoundError):
            hint = printable(plugin.install_hint) or "Install it, or correct PATH."
        raise CommandError(f"{subject} cannot be run: {error.strerror}. {hint}") from error
    except ValueError as error:  # NUL in a text, or = in the name of a variable
        raise CommandError(f"{subject} cannot be run: {error}. Correct its command, args or env.") from error
    if code:
        reason = printable(" ".join(errors[-ERROR_CHARACTERS:].split()))
        raise CommandError(f"{subject} failed with exit code {code}{': ' if reason else '.'}{reason}")
    return printed(output, plugin.api_version, subject)


def _ran(command: list[str], environ: Mapping[str, str], *, interactive: bool) -> tuple[bytes, str, int]:
    """Run a command and return its output, its error output and its exit code."""
    errors: list[str] = []
    stdin = None if interactive else subprocess.DEVNULL
    source, end = os.pipe()
    try:
        process = subprocess.Popen(command, env=environ, stdin=stdin, stdout=subprocess.PIPE, stderr=end)
    except BaseException:
        os.close(source)
        raise
    finally:
        os.close(end)
    with process:
        passed = threading.Thread(target=_pass_on, args=(source, sys.stderr, errors), daemon=True)
        passed.start()
        output = process.communicate()[0]
        # A process that the plugin leaves behind, such as an agent, may keep its error output open forever.
        passed.join(LATE_SECONDS)
        return output, "".join(errors), process.returncode


def info(plugin: ExecPlugin, cluster: KubeconfigCluster, *, interactive: bool) -> dict[str, Any]:
    """Return the content of KUBERNETES_EXEC_INFO, the environment variable that plugins read."""
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
    return {"kind": KIND, "apiVersion": plugin.api_version, "spec": spec}


def printed(output: bytes, version: str, subject: str) -> Printed:
    """Parse the credentials in a plugin's output.

    Raises:
        CommandError: the output has no valid credentials.
    """
    try:
        body = _printed_object(output)
        status = body.get("status") or {}
        token, certificate, key, expires = (
            _text(status.get(name))
            for name in ("token", "clientCertificateData", "clientKeyData", "expirationTimestamp")
        )
        printed_version, end = body.get("apiVersion"), parse_time(expires or None)
        if end is not None and end.tzinfo is None:
            raise ValueError(f"{expires} has no time zone")
    except (ValueError, AttributeError) as error:
        raise CommandError(f"{subject} printed no ExecCredential.") from error
    if printed_version != version:
        raise CommandError(f"{subject} printed apiVersion {printed_version}, but the kubeconfig has {version}.")
    if not token and not certificate and not key:
        raise CommandError(f"{subject} printed neither a token nor a certificate.")
    if bool(certificate) != bool(key):
        raise CommandError(f"{subject} printed a certificate or a key, but not both.")
    return Printed(token, certificate.encode(), key.encode(), end)


def _printed_object(output: bytes) -> dict[str, Any]:
    """Return the ExecCredential in a plugin's output: JSON, or YAML, which kubectl also accepts."""
    found = [one.body if isinstance(one, Document) else {} for one in parsed("output", output.decode())]
    if len(found) != 1 or found[0].get("kind", KIND) != KIND:
        raise ValueError("not one ExecCredential")
    return found[0]


def _text(value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise ValueError("not a text")
    return value or ""


def _interactive(plugin: ExecPlugin, subject: str) -> bool:
    """Return whether the plugin inherits standard input."""
    terminal = sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive_mode == "Always" and not terminal:
        raise CommandError(f"{subject} needs a terminal for its input: its interactiveMode is Always.")
    return terminal and plugin.interactive_mode != "Never"


def _pass_on(source: int, stream: TextIO, kept: list[str]) -> None:
    """Copy output as it arrives, including prompts without a newline, and keep it. Closes the source at its end."""
    with open(source, "rb", buffering=0) as pipe:
        while piece := pipe.read(4096):
            text = piece.decode(errors="replace")
            kept.append(text)
            stream.write(text)
            stream.flush()
