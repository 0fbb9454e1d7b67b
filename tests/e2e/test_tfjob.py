"""Cases of the table of TFJob's features, and converted TFJobs, on real kubelets, many at the same time."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.kube import Kube
from tests.support.operator_process import OperatorProcess
from tests.support.soak_marks import in_all, in_soak
from tests.tfjob.cases import CASES
from tests.tfjob.converted import EXAMPLES
from tests.tfjob.puppets import Played, claim
from tests.tfjob.table import Case

pytestmark = pytest.mark.cluster

REAL = [c for c in CASES if c.real]
AT_A_TIME = 9


@in_all("tests/e2e/test_tfjob.py::test_converted_tfjobs_run_to_the_documented_end")  # many jobs
def test_jobs_behave_as_a_tfjob_user_expects(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    claim(kube, namespace, shared)
    _play(REAL, kube, own_operator, namespace, shared)


@pytest.mark.minutes
@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=in_soak)], ids=["quick", "others"])
def test_converted_tfjobs_run_to_the_documented_end(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path, quick: bool
) -> None:
    cases = [example.case() for example in EXAMPLES if example.real and example.quick is quick]
    _play(cases, kube, own_operator, namespace, shared)


def _play(cases: Sequence[Case], kube: Kube, operator: OperatorProcess, namespace: str, shared: Path) -> None:
    operator.start()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        played = {c.name: pool.submit(lambda case: Played(kube, namespace, shared, case).play(), c) for c in cases}
    wrong = [f"{name}: {error}" for name, future in played.items() if (error := future.exception()) is not None]
    assert not wrong, "\n".join([*wrong, "the operator's last words:", operator.log.read_text()[-8000:]])
