"""Kueue, which admits pods by quota, on demand: its manager beside the control plane, and its webhooks.

The API server calls the manager on the loopback device of their namespace, not through a Service. `up` installs CRDs
and webhooks, and `down` removes them.
"""

import base64
import json
from pathlib import Path
from typing import Any

from localcluster import pki
from localcluster.controlplane import write
from localcluster.errors import ClusterError
from localcluster.lifecycle import Cluster
from localcluster.pki import Certificate
from localcluster.procs import Daemon
from localcluster.shell import log_hint, wait_for

NAME, SERVING = "kueue", "kueue-serving"
CERTIFICATES = (Certificate(NAME, NAME, "system:masters"), Certificate(SERVING, NAME, sans=("IP:127.0.0.1",)))
PORT, HEALTH_PORT = 9443, 18081
FRAMEWORKS = ("batch/job", "pod", "deployment", "statefulset")
EXTERNAL = ("PSTrainingJob.v1alpha1.pstraining.dev",)
"""The kinds whose own operators request their quota: Kueue ignores children of these objects."""
CALLED = ("v1-pod", "v1-job", "v1-deployment", "v1-statefulset", "kueue-x-k8s-io")
"""Parts of the paths of the webhooks for these kinds, and for Kueue's own objects."""
CONVERTED = ("localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters")
"""CRDs whose versions the manager converts."""
DEADLINE_S = 90
OWN_ETC = (
    "unshare",
    "--mount",
    "sh",
    "-ec",
    'mount -t tmpfs tmpfs /etc; mkdir -p /etc/kueue/metrics; ln -s "$0" /etc/kueue/metrics/certs; exec "$@"',
)
"""Kueue reads certificates for metrics from a fixed path in /etc, even without metrics: it gets a separate /etc."""

Object = dict[str, Any]


def configuration(certificates: Path, *, all_jobs: bool) -> Object:
    """Return the manager's configuration, with few fields beside those that the local cluster needs.

    Args:
        certificates: the folder of the manager's serving certificate.
        all_jobs: whether the manager also admits jobs without a queue.
    """
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{HEALTH_PORT}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": PORT, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "manageJobsWithoutQueueName": all_jobs,
        "multiKueue": {"externalFrameworks": [{"name": name} for name in EXTERNAL]},
        "integrations": {"frameworks": list(FRAMEWORKS), "externalFrameworks": list(EXTERNAL)},
    }


def called(path: str, authority: bytes) -> Object:
    """Return the client configuration for a path of the manager."""
    return {"url": f"https://127.0.0.1:{PORT}{path}", "caBundle": base64.b64encode(authority).decode()}


def documents(manifest: Path) -> list[Object]:
    """Return the objects of a manifest, which is YAML.

    Raises:
        ClusterError: this Python has no PyYAML.
    """
    try:
        import yaml  # only here: the other commands run without any package
    except ImportError:
        raise ClusterError("Kueue's manifests are YAML: use a Python with PyYAML, such as .venv/bin/python") from None
    return [item for item in yaml.safe_load_all(manifest.read_text(encoding="utf-8")) if item]


def definitions(folder: Path, authority: bytes) -> list[Object]:
    """Return the CRDs, with the conversions of Kueue's kustomization."""
    found = [item for file in sorted(folder.glob("*.yaml")) for item in documents(file)]
    for crd in found:
        if crd["spec"]["names"]["plural"] in CONVERTED:
            webhook = {"clientConfig": called("/convert", authority), "conversionReviewVersions": ["v1"]}
            crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    return found


def webhooks(manifests: Path, authority: bytes) -> list[Object]:
    """Return Kueue's webhook configurations, without webhooks for kinds that this cluster does not have."""
    found = documents(manifests)
    for item in found:
        item["metadata"]["name"] = f"{NAME}-{item['metadata']['name']}"
        kept = [w for w in item["webhooks"] if any(part in w["clientConfig"]["service"]["path"] for part in CALLED)]
        for webhook in kept:
            webhook["clientConfig"] = called(webhook["clientConfig"]["service"]["path"], authority)
        item["webhooks"] = kept
    return found


def up(cluster: Cluster, *, all_jobs: bool = False) -> None:
    """Install the CRDs, start the manager or restart one with other settings, and install the webhooks."""
    cluster.toolbox.ensure([NAME])
    certs, etc = cluster.layout.pki, cluster.layout.etc
    pki.ensure_pki(certs, CERTIFICATES)
    own = cluster.control.kubeconfig(NAME)
    cluster.control.write_kubeconfig(NAME, own, cluster.plan.internal_server)
    serving = etc / SERVING
    serving.mkdir(exist_ok=True)
    for part in ("crt", "key"):
        target = serving / f"tls.{part}"
        write(target, (certs / f"{SERVING}.{part}").read_text(encoding="utf-8"))
        target.chmod(0o600)
    config = etc / f"{NAME}.json"
    write(config, json.dumps(configuration(serving, all_jobs=all_jobs), indent=1))
    program, authority = cluster.toolbox.binary(NAME), (certs / "ca.crt").read_bytes()
    _apply(cluster, "crds", definitions(program.parent / "bases", authority))
    # Kueue's API for pending workloads would need further certificates.
    options = (f"--config={config}", f"--kubeconfig={own}", "--feature-gates=VisibilityOnDemand=false")
    argv = (*OWN_ETC, str(serving), str(program), *options)
    cluster.supervisor.ensure(Daemon(NAME, argv, cluster.plan.control_netns, (config, own)))
    wait_for(
        lambda: cluster.control.answers("127.0.0.1", HEALTH_PORT, "/readyz"),
        what="Kueue does not answer",
        deadline_s=DEADLINE_S,
        hint=lambda: log_hint(cluster.supervisor.log(NAME)),
        abort=lambda: None if cluster.supervisor.alive(NAME) else "its manager has ended",
    )
    # The webhooks come last: objects that they validate cannot be created before the manager answers.
    _apply(cluster, "webhooks", webhooks(program.parent / "webhook" / "manifests.yaml", authority))


def down(cluster: Cluster) -> None:
    """Remove Kueue: webhooks first, because they have no server afterwards, and then finalizers and CRDs."""
    _forget(cluster, "webhooks")
    cluster.supervisor.stop([NAME])
    for plural in CONVERTED:
        patch = '{"spec":{"conversion":{"strategy":"None","webhook":null}}}'
        crd = ("crd", f"{plural}.kueue.x-k8s.io")
        cluster.kubectl("patch", *crd, "--type=merge", "-p", patch, check=False)
    _release(cluster)
    _forget(cluster, "crds")


def _forget(cluster: Cluster, name: str) -> None:
    file = _file(cluster, name)
    if file.exists():
        cluster.kubectl("delete", "--ignore-not-found", "-f", str(file))
        file.unlink()


def _release(cluster: Cluster) -> None:
    """Remove Kueue's finalizers, because its controller no longer runs."""
    owned = [f"{plural}.kueue.x-k8s.io" for plural in ("clusterqueues", "localqueues", "resourceflavors", "workloads")]
    lines = "{range .items[*]}{.metadata.name} {.metadata.namespace} {.metadata.finalizers}{'\\n'}{end}"
    for kind in (*owned, "pods"):
        found = cluster.kubectl("get", kind, "-A", "-o", f"jsonpath={lines}", check=False)
        for line in found.splitlines():
            name, *rest = line.split()
            if "kueue.x-k8s.io/" in line:
                place = ["-n", rest[0]] if not rest[0].startswith("[") else []
                patch = '{"metadata":{"finalizers":null}}'
                cluster.kubectl("patch", kind, name, *place, "--type=merge", "-p", patch)


def _file(cluster: Cluster, name: str) -> Path:
    return cluster.layout.etc / f"{NAME}-{name}.json"


def _apply(cluster: Cluster, name: str, objects: list[Object]) -> None:
    file = _file(cluster, name)
    write(file, json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=1))
    # CRDs of this size do not fit into the annotation of a client-side apply.
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    if name == "crds":
        names = [f"crd/{o['metadata']['name']}" for o in objects]
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=90s", *names)
