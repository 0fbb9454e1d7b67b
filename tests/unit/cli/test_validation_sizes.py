"""Sizes that Kubernetes accepts although they are far too small for a program are warnings."""

from pstraining.cli.validation.documents import wrong_with
from pstraining.cli.validation.schema import Severity
from tests.support.refused import edit, simple
from tests.unit.cli.test_validation_values import POD, claim, limits


def test_bytes_without_a_unit_are_a_warning() -> None:
    """Such a container cannot start, or has nothing reserved."""
    made = simple("default")
    edit(f"{POD}.containers", limits(memory=4, cpu=4))(made)
    made["spec"]["ps"]["resources"] = {"requests": {"memory": "2048"}, "limits": {"memory": "1e9"}}
    made["spec"]["chief"] = {"resources": {"requests": {"memory": "0.5"}, "limits": {"memory": "64Ki"}}}
    made["spec"]["checkpoint"] = {"volumeClaimTemplate": claim("10")}
    maxima = [{"role": "ps", "maxAllowed": {"memory": "16"}}]
    made["spec"]["autoscaling"] = {"mode": "Grow", "rolePolicies": maxima}
    found = [f for f in wrong_with(made) if f.severity is Severity.WARNING and "has no unit" in f.message]
    assert {f.field.removeprefix("spec."): f.message for f in found} == {
        "worker.template.spec.containers[0].resources.limits.memory": "has no unit, and is 4 bytes; did you mean 4Gi?",
        "ps.resources.requests.memory": "has no unit, and is 2048 bytes; write a unit, such as Mi or Gi",
        "chief.resources.requests.memory": "has no unit, and is 0.5 bytes; write a unit, such as Mi or Gi",
        "checkpoint.volumeClaimTemplate.resources.requests.storage": "has no unit, and is 10 bytes; did you mean 10Gi?",
        "autoscaling.rolePolicies[0].maxAllowed.memory": "has no unit, and is 16 bytes; did you mean 16Gi?",
    }


def test_thousandths_of_bytes_are_a_warning() -> None:
    made = simple("default")
    edit(f"{POD}.containers", limits(memory="512m", cpu="500m"))(made)
    edit(f"{POD}.volumes", [{"name": "v", "emptyDir": {"sizeLimit": "1.5m"}}])(made)
    made["spec"]["ps"]["resources"] = {"requests": {"memory": "4000m", "cpu": "4000m"}, "limits": {"memory": "1Gi"}}
    made["spec"]["checkpoint"] = {"volumeClaimTemplate": claim("10m")}
    found = [f for f in wrong_with(made) if f.severity is Severity.WARNING and "thousandths" in f.message]
    said = {f.field.removeprefix("spec."): f.message.partition("; ")[2] for f in found}
    assert said == {
        "worker.template.spec.containers[0].resources.limits.memory": "did you mean 512Mi?",
        "worker.template.spec.volumes[0].emptyDir.sizeLimit": "did you mean 1.5Mi?",
        "ps.resources.requests.memory": "did you mean 4000Mi?",
        "checkpoint.volumeClaimTemplate.resources.requests.storage": "did you mean 10Mi?",
    }
