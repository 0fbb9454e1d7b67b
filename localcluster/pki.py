"""The cluster's certificates and keys, which the openssl program creates.

Each start of a cluster creates a certificate authority, and `down` deletes it with the run folder.
Existing files are kept, so a repair restarts no daemon.
"""

import base64
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from localcluster.config import OPERATOR_HERE
from localcluster.layout import DOMAIN, ClusterPlan
from localcluster.shell import run

DAYS = "3650"


@dataclass(frozen=True)
class Certificate:
    """A certificate to issue: a server's with ``sans``, or a client's without."""

    name: str
    common_name: str
    organization: str = ""
    sans: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """The subject in openssl's notation."""
        group = f"/O={self.organization}" if self.organization else ""
        return f"{group}/CN={self.common_name}"


def certificates(plan: ClusterPlan) -> list[Certificate]:
    """Return all certificates of a cluster except its authority's."""
    service = "kubernetes.default.svc"
    names = ["kubernetes", "kubernetes.default", service, f"{service}.{DOMAIN}", "localhost"]
    addresses = [plan.gateway, plan.api_address, plan.service_ip, "127.0.0.1"]
    sans = [*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)]
    found = [
        Certificate("apiserver", "kube-apiserver", sans=tuple(sans)),
        Certificate("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
        Certificate("admin", "pstraining-admin", "system:masters"),
        Certificate("operator", OPERATOR_HERE, "system:masters"),
        Certificate("kube-controller-manager", "system:kube-controller-manager"),
        Certificate("kube-scheduler", "system:kube-scheduler"),
        Certificate("kube-proxy", "system:kube-proxy"),
        Certificate("coredns", "system:coredns"),
        Certificate("kwok", "kwok", "system:masters"),
    ]
    for node in plan.nodes:
        found.append(Certificate(node.name, f"system:node:{node.name}", "system:nodes"))
        own = (f"DNS:{node.name}", f"IP:{node.address}")
        found.append(Certificate(f"{node.name}-serving", f"system:node:{node.name}", "system:nodes", own))
    return found


def ensure_pki(folder: Path, wanted: Iterable[Certificate]) -> None:
    """Create the missing ones of the authority, the service-account key and the certificates."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    if not (folder / "ca.crt").exists():
        _self_signed(folder)
    if not (folder / "sa.pub").exists():
        run(["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"])
        run(["openssl", "rsa", "-in", str(folder / "sa.key"), "-pubout", "-out", str(folder / "sa.pub.new")])
        (folder / "sa.pub.new").rename(folder / "sa.pub")
    missing = [entry for entry in wanted if not (folder / f"{entry.name}.crt").exists()]
    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(lambda entry: _issue(folder, entry), missing))


def _self_signed(folder: Path) -> None:
    fresh = folder / "ca.crt.new"
    usage = "keyUsage=critical,digitalSignature,keyCertSign"
    extensions = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", usage]
    run([*_request(folder / "ca.key", fresh), "-subj", "/CN=pstraining-local-ca", *extensions])
    fresh.rename(folder / "ca.crt")


def _issue(folder: Path, entry: Certificate) -> None:
    usage = "serverAuth" if entry.sans else "clientAuth"
    fresh = folder / f"{entry.name}.crt.new"
    args = [*_request(folder / f"{entry.name}.key", fresh), "-subj", entry.subject]
    args += ["-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key")]
    args += ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", f"extendedKeyUsage={usage}"]
    if entry.sans:
        args += ["-addext", f"subjectAltName={','.join(entry.sans)}"]
    run(args)
    fresh.rename(folder / f"{entry.name}.crt")


def _request(key: Path, out: Path) -> list[str]:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    # No system configuration: its extensions would appear twice.
    files = ["-keyout", str(key), "-out", str(out)]
    return ["openssl", "req", "-x509", "-new", *curve, "-config", os.devnull, "-days", DAYS, *files]


def kubeconfig(pki: Path, name: str, *, server: str, context: str, others: Mapping[str, str] | None = None) -> str:
    """Return a kubeconfig (JSON, which is YAML) that contains its certificates, and so can be moved.

    Args:
        pki: the folder with the certificates.
        name: of the user's certificate.
        server: the API server's address.
        context: the name of the context, which is the current one.
        others: names of further contexts, and of the certificates of their users.
    """

    def embed(file: str) -> str:
        return base64.b64encode((pki / file).read_bytes()).decode()

    def user(of: str) -> dict[str, str]:
        return {"client-certificate-data": embed(f"{of}.crt"), "client-key-data": embed(f"{of}.key")}

    users = {context: name, **(others or {})}
    cluster = {"server": server, "certificate-authority-data": embed("ca.crt")}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": context, "cluster": cluster}],
            "users": [{"name": of, "user": user(of)} for of in users.values()],
            "contexts": [{"name": own, "context": {"cluster": context, "user": of}} for own, of in users.items()],
            "current-context": context,
        },
        indent=1,
    )
