"""Limits the time for which a pod stays bound to a lost node, unless its template sets its own tolerations.

Kubernetes sets five minutes at admission. Training waits meanwhile, which costs more than replacing the pods of a node
that returns later.
"""

from typing import Any, Final

from pstraining.api.models import PSTrainingJob

TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""The taints that the node controller sets on a lost node."""
_EFFECT: Final = "NoExecute"


def tolerate(job: PSTrainingJob, spec: dict[str, Any]) -> None:
    """Add the tolerations for lost nodes.

    Args:
        job: the owner, whose runPolicy has the limit.
        spec: the pod's spec; it is changed.
    """
    own = spec.get("tolerations") or ()
    seconds = job.spec.run_policy.node_loss_seconds
    # The shortest of several tolerations of one taint wins, so another one would override the template's.
    bounds = [
        {"key": taint, "operator": "Exists", "effect": _EFFECT, "tolerationSeconds": seconds}
        for taint in TAINTS
        if not any(_is_for(toleration, taint) for toleration in own)
    ]
    if bounds:
        spec["tolerations"] = [*own, *bounds]


def _is_for(toleration: dict[str, Any], taint: str) -> bool:
    """Whether a toleration is for a taint. As in Kubernetes, an absent key or effect stands for every one."""
    return toleration.get("key") in (None, "", taint) and toleration.get("effect") in (None, "", _EFFECT)
