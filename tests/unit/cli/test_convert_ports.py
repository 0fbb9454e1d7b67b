"""Ports of other protocols disturb none of the operator's, which are of TCP."""

import pytest

from pstraining.cli.tfjob.job import converted
from tests.support.tfjobs import replica, tfjob

BESIDE = {"name": "proxy", "image": "proxy"}


@pytest.mark.parametrize("number", [2222, 2224, 2240])
def test_a_udp_port_is_kept_and_not_named(number: int) -> None:
    ports = [{"containerPort": number, "protocol": "UDP"}]
    found = converted(tfjob(Worker=replica(ports=ports)))
    assert found.manifest is not None
    (container,) = found.manifest["spec"]["worker"]["template"]["spec"]["containers"]
    assert container["ports"] == ports
    assert not [note for note in found.notes if ".ports" in note.path]


@pytest.mark.parametrize(("protocol", "named"), [("UDP", False), ("TCP", True), (None, True)])
def test_a_sidecars_port_is_named_if_it_is_of_tcp(protocol: str | None, named: bool) -> None:
    port = {"containerPort": 2230} | ({"protocol": protocol} if protocol else {})
    job = tfjob(Worker=replica())
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"].append({**BESIDE, "ports": [port]})
    paths = [note.path for note in converted(job).notes]
    assert ("spec.tfReplicaSpecs.Worker.template.spec.containers[1].ports[0]" in paths) == named
