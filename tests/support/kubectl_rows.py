"""Configurations of a connection, with kubectl's answer to each: its server, namespace and user.

The answers are in kubectl_answers.json. `tests/e2e/test_cli_as_kubectl.py` asks kubectl again,
`tests/unit/cli/test_as_kubectl.py` asks the plugin: both run the same rows. How the answers are written:

    python -m tests.support.kubectl_rows KUBECTL
"""

import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TLS = Path(__file__).parent / "tls"
"""Certificates for these tests only: a server of 127.0.0.1, localhost and api.example, its client jane, and another CA.
"""
ANSWERS = Path(__file__).with_name("kubectl_answers.json")

Outcome = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A configuration. `@dir@` stands for the folder of its files, and names such as `@plain@` for those of
    `Rig.values`.
    """

    name: str
    files: Mapping[str, Any] = field(default_factory=dict)
    """Contents by path: text, or data that is written as JSON."""
    kubeconfig: str | None = "@dir@/config"
    """The environment variable KUBECONFIG; None leaves it unset."""
    options: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    in_pod: bool = False
    """Whether a service account's files exist, as in a pod."""
    refused: str = ""
    """The plugin's error output where kubectl fails."""
    differs: str = ""
    """Why the plugin deliberately differs from kubectl."""


class Recorder(BaseHTTPRequestHandler):
    """Records the properties of a request; every answer is that of a token request."""

    protocol_version = "HTTP/1.1"
    server: "Recording"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.kept.append(self._kept())
        body = json.dumps({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "status": {"token": "t"}})
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_GET = do_POST  # noqa: N815 - http.server's name

    def _kept(self) -> Outcome:
        path, _, query = self.path.partition("?")
        host, _, rest = path.removeprefix("http://").partition("/")
        found: Outcome = {"server": self.server.name, "namespace": rest.split("namespaces/")[-1].split("/")[0]}
        found["prefix"] = rest.split("api/v1")[0]
        found["through"] = host if path.startswith("http://") else ""
        found["authorization"] = self.headers.get("Authorization", "")
        found["as"] = sorted([n.lower(), v] for n, v in self.headers.items() if n.lower().startswith("impersonate"))
        if login := self.headers.get("Proxy-Authorization"):
            found["login"] = login
        found["timeout"] = query.removeprefix("timeout=")
        if isinstance(self.connection, ssl.SSLSocket):
            shown: Any = self.connection.getpeercert() or {}
            found["certificate"] = dict(pair for (pair,) in shown.get("subject", ())).get("commonName", "")
        return found

    def log_message(self, format: str, *args: Any) -> None:
        """Suppress the access log."""


class Recording(ThreadingHTTPServer):
    """A server that records its requests."""

    def __init__(self, name: str, *, tls: bool) -> None:
        super().__init__(("127.0.0.1", 0), Recorder)
        self.name = name
        self.kept: list[Outcome] = []
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
            context.load_verify_locations(TLS / "server.pem")
            context.verify_mode = ssl.CERT_OPTIONAL
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that abort a handshake, which some rows expect."""


class Rig:
    """The servers of all rows."""

    def __init__(self) -> None:
        self.servers = [Recording(name, tls=name == "tls") for name in ("plain", "other", "tls")]

    @property
    def values(self) -> dict[str, str]:
        """Return the values of the placeholders in a row."""
        ports = {f"{s.name}-port": str(s.server_address[1]) for s in self.servers}
        urls = {s.name: f"http{'s' * (s.name == 'tls')}://127.0.0.1:{s.server_address[1]}" for s in self.servers}
        pems = {name: base64.b64encode((TLS / name).read_bytes()).decode() for name in ("server.pem", "other.pem")}
        own = {name: base64.b64encode((TLS / name).read_bytes()).decode() for name in ("client.pem", "client.key")}
        return ports | urls | pems | own | {"pems": str(TLS)}

    def kept(self) -> list[Outcome]:
        """Return the requests of all servers since the last call."""
        found = [outcome for server in self.servers for outcome in server.kept]
        for server in self.servers:
            server.kept.clear()
        return found


@contextmanager
def rig() -> Iterator[Rig]:
    """Run the servers."""
    made = Rig()
    threads = [threading.Thread(target=s.serve_forever, kwargs={"poll_interval": 0.01}) for s in made.servers]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        for server in made.servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


def laid_out(row: Row, rig: Rig, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Write a row's files; return its environment and its options."""

    def filled(text: str) -> str:
        for name, value in {**rig.values, "dir": str(folder)}.items():
            text = text.replace(f"@{name}@", value)
        return text

    for name, content in row.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled(content if isinstance(content, str) else json.dumps(content)))
        if str(content).startswith("#!"):
            path.chmod(0o755)
    environ = {"HOME": str(folder / "home"), "PATH": os.environ["PATH"]}
    environ |= {} if row.kubeconfig is None else {"KUBECONFIG": filled(row.kubeconfig)}
    if row.in_pod:
        service_account = folder / "serviceaccount"
        service_account.mkdir(exist_ok=True)
        (service_account / "token").write_text("pod-token\n")
        (service_account / "namespace").write_text("pod-ns\n")
        (service_account / "ca.crt").write_bytes((TLS / "server.pem").read_bytes())
        environ |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": rig.values["tls-port"]}
    environ |= {name: filled(value) for name, value in row.environ.items()}
    return environ, [filled(option) for option in row.options]


def of_kubectl(kubectl: str, row: Row, rig: Rig, folder: Path) -> Outcome:
    """Return what kubectl does with a row.

    The command creates a token, because no other one sends a single request with the namespace in its path.
    """
    environ, options = laid_out(row, rig, folder)
    command = [kubectl, "create", "token", "default", *options]
    if row.in_pod:
        mounted = "/var/run/secrets/kubernetes.io/serviceaccount"
        script = f'mount -t tmpfs none /run && mkdir -p {mounted} && cp "$0"/* {mounted} && exec "$@"'
        command = [
            "unshare",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            script,
            str(folder / "serviceaccount"),
            *command,
        ]
    ran = subprocess.run(
        command,
        env=environ,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    kept = rig.kept()
    if kept:
        return kept[-1]
    words = ran.stderr.replace(str(folder), "@dir@")
    for name, value in rig.values.items():
        words = words.replace(value, f"@{name}@") if name.endswith("-port") else words
    return {"refused": words.strip().splitlines()[-1]}


def main() -> None:
    """Write kubectl's answers into the file."""
    from tests.support.kubectl_table import ROWS

    found = {}
    with rig() as servers:
        for row in ROWS:
            with tempfile.TemporaryDirectory() as folder:
                found[row.name] = of_kubectl(sys.argv[1], row, servers, Path(folder))
    ANSWERS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
