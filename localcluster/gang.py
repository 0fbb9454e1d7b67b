"""A second scheduler that places pods as gangs: scheduler-plugins' Coscheduling, on demand.

It runs beside the cluster's scheduler, and places only pods that name it. Its name is that of its chart. `up` installs
its CRD, and `down` removes it.
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
"""The option for a retry of rejected pods after 20 seconds; the default is five minutes. A gang may miss the release of
its last resources if the scheduler rejects it at the same moment.
"""
CERTIFICATE = Certificate(NAME, NAME, "system:masters")


def configuration(kubeconfig: Path) -> dict[str, Any]:
    """Return the scheduler's configuration, as in scheduler-plugins' instructions."""
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
    """Return the path of the CRD of PodGroups, of the same version as the scheduler."""
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
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=90s", "crd", CRD)
    # No serving port: the cluster's scheduler uses the default one.
    argv = (str(cluster.toolbox.binary(NAME)), f"--config={config}", "--secure-port=0", LOOK_AGAIN)
    cluster.supervisor.ensure(Daemon(NAME, argv, cluster.plan.control_netns, (config, own)))


def down(cluster: Cluster) -> None:
    """Stop the scheduler, and delete the CRD with all PodGroups."""
    cluster.supervisor.stop([NAME])
    cluster.kubectl("delete", "crd", CRD, "--ignore-not-found")
