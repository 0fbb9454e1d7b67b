"""A second scheduler that places pods as gangs: scheduler-plugins' Coscheduling, on demand.

It runs beside the cluster's own under the name that its chart gives it, so pods that name it, and no others, are its
own. Its CRD comes and goes with it.
"""

import json
from pathlib import Path
from typing import Any

from localcluster import pki
from localcluster.controlplane import write
from localcluster.lifecycle import Cluster
from localcluster.pki import Certificate
from localcluster.procs import Daemon

TOOL, NAME = "scheduler-plugins", "gang-scheduler"
SCHEDULER = "scheduler-plugins-scheduler"
CRD = "podgroups.scheduling.x-k8s.io"
LOOK_AGAIN = "--pod-max-in-unschedulable-pods-duration=20s"
"""A gang that is turned away in the moment in which the last of its room is freed may miss that; it is five minutes
until the scheduler looks again by itself."""
CERTIFICATE = Certificate(NAME, NAME, "system:masters")


def configuration(kubeconfig: Path) -> dict[str, Any]:
    """The scheduler's, as scheduler-plugins' own instructions have it."""
    plugins = {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
        "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 500, "burst": 1000},
        "profiles": [{"schedulerName": SCHEDULER, "plugins": plugins}],
    }


def definition(cluster: Cluster) -> Path:
    """The file with the CRD of PodGroups, of the same version as the scheduler."""
    return cluster.toolbox.binary(NAME).parent / "bases" / "scheduling.x-k8s.io_podgroups.yaml"


def up(cluster: Cluster) -> None:
    """Install the CRD and start the scheduler."""
    cluster.toolbox.ensure([TOOL])
    pki.ensure_pki(cluster.layout.pki, [CERTIFICATE])
    own = cluster.control.kubeconfig(NAME)
    cluster.control.write_kubeconfig(NAME, own, cluster.plan.internal_server)
    config = cluster.layout.etc / f"{NAME}.json"
    write(config, json.dumps(configuration(own), indent=1))
    cluster.kubectl("apply", "-f", str(definition(cluster)))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", CRD)
    # No own port: the cluster's scheduler uses it.
    argv = (str(cluster.toolbox.binary(NAME)), f"--config={config}", "--secure-port=0", LOOK_AGAIN)
    cluster.supervisor.ensure(Daemon(NAME, argv, cluster.plan.control_netns, (config, own)))


def down(cluster: Cluster) -> None:
    """Stop the scheduler; the CRD goes, and with it all PodGroups."""
    cluster.supervisor.stop([NAME])
    cluster.kubectl("delete", "crd", CRD, "--ignore-not-found")
