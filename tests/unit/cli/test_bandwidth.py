"""The bandwidth of a job: the formulas of their source, and equal sums of sent and received bytes."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pstraining.api.models import MAX_SERVERS
from pstraining.api.training import Codec, Mode
from pstraining.cli.planning import bandwidth
from pstraining.cli.planning.bandwidth import Exchange, busiest, links, recommended, with_servers
from pstraining.runtime.model.partition import Tensor, servers_to_use
from tests.support.builders import job, typed

VALUES = 25_600_000  # the size of ResNet-50
CLASSIC = Exchange(workers=100, servers=10)

exchanges = st.builds(
    Exchange,
    workers=st.integers(1, 200),
    servers=st.integers(1, 200),
    standbys=st.integers(0, 2),
    mode=st.sampled_from([Mode.ASYNC, Mode.SYNC]),
    push=st.sampled_from(Codec),
    pull=st.sampled_from(Codec),
    permille=st.integers(1, 1000),
    batches=st.integers(1, 64),
)
sizes = st.integers(1024, 10**9)


def test_the_formulas_are_those_of_their_source() -> None:
    """The formulas give the values of the paper's table for n workers and k servers."""
    assert bandwidth.parameter_servers(8, 2) == 4.0
    assert bandwidth.parameter_servers(2, 4) == 1.0
    assert bandwidth.all_reduce(8) == 1.75
    assert round(bandwidth.optimum(8, 2), 2) == 1.47
    assert round(bandwidth.optimum(4, 1), 2) == 1.33
    assert bandwidth.optimum(100, 100) == 1.0
    assert bandwidth.optimum(1, 1) == bandwidth.all_reduce(1) == 0.0
    assert bandwidth.optimum(4, 9) == bandwidth.optimum(4, 4), "more servers than workers are of no use"


def test_the_classic_case() -> None:
    """With a hundred workers and ten servers, each server receives 1.02 GB and sends as much."""
    worker, server = links(CLASSIC, VALUES)
    assert (worker.sent, worker.received) == (102.4e6, 102.4e6)
    assert (server.sent, server.received) == (1.024e9, 1.024e9)
    assert recommended(CLASSIC, VALUES) == 100
    assert recommended(replace(CLASSIC, mode=Mode.HYBRID), VALUES) == 1


@given(exchanges, sizes)
def test_one_end_receives_what_the_other_sends(how: Exchange, values: int) -> None:
    found = links(how, values)
    assert sum(k.sent * k.number for k in found) == pytest.approx(sum(k.received * k.number for k in found))


@given(st.integers(2, 200), st.integers(1, 200), sizes)
def test_plain_exchange_is_the_formula(workers: int, servers: int, values: int) -> None:
    plain = Exchange(workers, servers, least_shard=0)
    assert busiest(links(plain, values)).busier == pytest.approx(
        bandwidth.parameter_servers(workers, servers) * 4 * values
    )
    ring = links(replace(plain, mode=Mode.HYBRID), values)
    assert busiest(ring).busier == pytest.approx(bandwidth.all_reduce(workers) * 4 * values)
    assert bandwidth.optimum(workers, servers) <= bandwidth.parameter_servers(workers, servers) + 1e-9


@example(Exchange(1, 1, standbys=2, mode=Mode.SYNC, push=Codec.TOP_K, pull=Codec.TOP_K, permille=1), 1024)
@given(exchanges, sizes)
def test_the_recommended_number_is_the_smallest_optimum(how: Exchange, values: int) -> None:
    how = replace(how, least_shard=0)
    best = recommended(how, values)

    def most(number: int) -> float:
        return busiest(links(with_servers(how, number), values)).busier

    assert most(best) == pytest.approx(min(map(most, range(1, MAX_SERVERS + 1))), rel=1e-6)
    if best > 1:
        assert most(best - 1) > most(best)


@given(exchanges, sizes)
def test_a_server_with_too_few_parameters_is_not_recommended(how: Exchange, values: int) -> None:
    best = recommended(how, values)
    assert best == 1 or 4 * values / best >= how.least_shard


@given(exchanges, sizes)
def test_servers_that_the_model_is_too_small_for_carry_nothing(how: Exchange, values: int) -> None:
    """The runtime does not use them: the others carry what they carry without them."""
    tensors = [Tensor("kernel", (values,), "float32", "decayed")]
    number = servers_to_use(tensors, how.servers, how.least_shard)
    assert bandwidth.used(how, values) == number
    assert links(how, values) == links(with_servers(how, number), values)
    assert links(how, values)[1].number == number


def test_no_more_servers_are_recommended_than_a_job_can_have() -> None:
    assert recommended(Exchange(workers=3000, servers=10), 100 * VALUES) == MAX_SERVERS


def test_how_a_job_exchanges() -> None:
    assert bandwidth.of_job(typed(job(ps=3, workers=7))) == Exchange(workers=7, servers=3)
    spec = {
        "ps": {"replicas": 2, "standby": {"mode": "Hot", "replicasPerShard": 2}},
        "training": {
            "mode": "Sync",
            "accumulationSteps": 4,
            "minShardBytes": 0,
            "compression": {"push": "TopK", "pull": "Int8", "topKPermille": 5},
        },
    }
    found = bandwidth.of_job(typed(job(spec=spec)))
    assert found == Exchange(2, 2, 2, Mode.SYNC, Codec.TOP_K, Codec.INT8, 5, 4, 0)
    warm = {"ps": {"standby": {"mode": "Warm"}}}
    assert bandwidth.of_job(typed(job(spec=warm))).standbys == 0, "a warm one gets nothing while it waits"


def test_no_saving_option_sends_more_bytes() -> None:
    plain = busiest(links(CLASSIC, VALUES)).busier
    for name, other in bandwidth.ways(CLASSIC).items():
        assert busiest(links(other, VALUES)).busier <= plain, name
    ring = links(bandwidth.ways(replace(CLASSIC, standbys=1))["mode: Hybrid"], VALUES)
    assert [(link.task, link.busier) for link in ring[1:]] == [("parameter server", 0.0), ("hot standby", 0.0)]
