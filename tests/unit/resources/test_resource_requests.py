"""The resource requests of a pod, as Kubernetes computes them."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from pstraining.resources import resource_requests


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
