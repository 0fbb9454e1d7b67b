"""The resource requests of a pod, as Kubernetes computes them."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from pstraining.resources import resource_requests
from tests.support.builders import TEMPLATE, deep_merge, job
from tests.support.simulation import World


def container(
    requested: dict[str, Any] | None = None, limits: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": requested or {}, "limits": limits or {}}, **more}


SIDECAR: dict[str, Any] = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ({"containers": [{"name": "c"}]}, {}),
        ({"containers": [container({"cpu": "500m"}), container({"cpu": 1, "memory": "1Gi"})]},
         {"cpu": "1500m", "memory": str(2**30)}),
        # A limit without a request is requested; a request takes precedence over its limit.
        ({"containers": [container({"cpu": "1"}, {"cpu": "4", "nvidia.com/gpu": 2})]},
         {"cpu": "1", "nvidia.com/gpu": "2"}),
        # Init containers run alone, so the largest one counts if it exceeds the sum of all containers.
        ({"containers": [container({"cpu": "1"})],
          "initContainers": [container({"cpu": "3"}), container({"cpu": "2"})]}, {"cpu": "3"}),
        ({"containers": [container({"cpu": "4"})], "initContainers": [container({"cpu": "3"})]}, {"cpu": "4"}),
        # Sidecars run with the containers, and with the init containers that follow them.
        ({"containers": [container({"cpu": "1"})],
          "initContainers": [container({"cpu": "2"}, **SIDECAR)]}, {"cpu": "3"}),
        ({"containers": [container({"cpu": "1"})],
          "initContainers": [container({"cpu": "2"}, **SIDECAR), container({"cpu": "3"})]}, {"cpu": "5"}),
        ({"containers": [container({"cpu": "1"})],
          "initContainers": [container({"cpu": "3"}), container({"cpu": "2"}, **SIDECAR)]}, {"cpu": "3"}),
        # Requests of the whole pod take precedence, and only for resources that a pod can request.
        ({"containers": [container({"cpu": "1"})], "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "1k"}}},
         {"cpu": "2", "memory": "1000"}),
        ({"containers": [container({"cpu": "1"})], "resources": {"limits": {"cpu": "9"}}}, {"cpu": "1"}),
        ({"containers": [container({"cpu": "1"})], "overhead": {"cpu": "250m", "memory": "10M"}},
         {"cpu": "1250m", "memory": "10000000"}),
        ({"containers": [container({"cpu": "what"})]}, {}),
        ({"containers": [container({"cpu": "0"})]}, {}),
    ],
)  # fmt: skip
def test_the_requests_of_a_pod(spec: dict[str, Any], asked: dict[str, str]) -> None:
    assert resource_requests.total([(1, resource_requests.of_pod(spec))]) == asked


def test_requests_of_pods_are_summed() -> None:
    one, other = {"cpu": Decimal("0.3")}, {"cpu": Decimal(1), "memory": Decimal(5)}
    assert resource_requests.total([(2, one), (3, other), (0, {"nvidia.com/gpu": Decimal(1)})]) == {
        "cpu": "3600m",
        "memory": "15",
    }


@given(
    number=st.decimals(min_value=0, max_value=10**6, places=3),
    suffix=st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3"]),
)
def test_quantities_are_read_as_the_client_reads_them(number: Decimal, suffix: str) -> None:
    text = f"{number}{suffix}"
    assert resource_requests.parse(text) == parse_quantity(text)  # type: ignore[no-untyped-call]


@given(st.decimals(min_value=0, max_value=10**15, places=4))
def test_a_quantity_is_the_amount_rounded_up(amount: Decimal) -> None:
    back = resource_requests.parse(resource_requests.quantity(amount))
    assert amount <= back < amount + Decimal("0.001")


def test_an_invalid_quantity_is_rejected() -> None:
    with pytest.raises(ValueError, match="'1 Gi' is not a quantity"):
        resource_requests.parse("1 Gi")


@pytest.mark.parametrize("text", ["1e5000", "1e1000000", f"1e{'9' * 5000}", "9" * 5000, "2e31"])
def test_a_quantity_that_no_node_has_is_read_as_the_largest_number(text: str) -> None:
    assert resource_requests.parse(text) == 10**30
    assert resource_requests.total([(2, {"memory": resource_requests.parse(text)})]) == {"memory": f"2{'0' * 30}"}


@pytest.mark.parametrize("text", ["1e-5000", "1e-1000000", f"0.{'0' * 5000}1"])
def test_a_tiny_quantity_is_rounded_up(text: str) -> None:
    assert resource_requests.total([(1, {"cpu": resource_requests.parse(text)})]) == {"cpu": "1m"}


@pytest.mark.parametrize("name", ["memory", "nvidia.com/gpu"])
@pytest.mark.parametrize("text", ["1e5000", "1e1000000"])
@pytest.mark.parametrize("gang", ["None", "Volcano"])
def test_a_job_with_a_quantity_of_any_size_has_its_objects_created(name: str, text: str, gang: str) -> None:
    template = deep_merge(TEMPLATE, {})
    template["spec"]["containers"][0]["resources"] = {"limits": {name: text}}
    world = World(job(spec={"worker": {"template": template}, "runPolicy": {"schedulingPolicy": {"gang": gang}}}))
    world.reconcile()
    (container,) = world.children["Deployment", "digits-worker-0"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {name: text}}
