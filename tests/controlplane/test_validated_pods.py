"""What `validate` finds in fields of a pod, compared with a dry run of a real API server."""

from typing import Any

import pytest

from tests.support.kube import ApiError, Kube, Target
from tests.support.refused import edit, simple
from tests.unit.cli.test_validation_of_pods import ACCEPTED, REFUSED
from tests.unit.cli.test_validation_values import POD


def pod_with(field: str, value: Any) -> dict[str, Any]:
    """Return a pod from the workers' template of a job with this value."""
    job = simple("default")
    edit(f"{POD}.{field}", value)(job)
    spec = job["spec"]["worker"]["template"]["spec"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "validated"}, "spec": spec}


@pytest.mark.usefixtures("client")  # it waits for the API server
def test_an_api_server_refuses_what_validate_refuses_and_nothing_more(cluster: dict[str, str], namespace: str) -> None:
    kube = Kube(Target(*cluster.values()))

    def problem(field: str, value: Any) -> str:
        try:
            kube.request("POST", kube.path("Pod", namespace) + "?dryRun=All", pod_with(field, value))
        except ApiError as error:
            return error.message
        return ""

    wrong = [f"accepted: {field} {value}" for field, value, _ in REFUSED if not problem(field, value)]
    wrong += [f"refused: {field}: {said}" for field, value in ACCEPTED if (said := problem(field, value))]
    assert not wrong, "\n".join(wrong)
