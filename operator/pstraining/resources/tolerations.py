"""How long a task's pod waits for a node that has been lost, where its template is silent.

Kubernetes gives every pod five minutes of its own at admission. Training stands still meanwhile, and no pod of a node
that comes back later is worth them.
"""

from typing import Any, Final

from pstraining.api.models import PSTrainingJob

TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""What the node controller puts on a node that it has lost."""
_EFFECT: Final = "NoExecute"


def tolerate(job: PSTrainingJob, spec: dict[str, Any]) -> None:
    """Bound a pod's stay on a lost node.

    Args:
        job: the owner, whose runPolicy says for how long.
        spec: is changed.
    """
    own = spec.get("tolerations") or ()
    seconds = job.spec.run_policy.node_loss_seconds
    # Of several tolerations of one taint the shortest counts: one more would overrule the template's.
    bounds = [
        {"key": taint, "operator": "Exists", "effect": _EFFECT, "tolerationSeconds": seconds}
        for taint in TAINTS
        if not any(_is_for(toleration, taint) for toleration in own)
    ]
    if bounds:
        spec["tolerations"] = [*own, *bounds]


def _is_for(toleration: dict[str, Any], taint: str) -> bool:
    """As Kubernetes' own admission reads it: no key stands for every key, no effect for every effect."""
    return toleration.get("key") in (None, "", taint) and toleration.get("effect") in (None, "", _EFFECT)
