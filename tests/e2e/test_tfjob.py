"""Cases of the table of TFJob's features on real kubelets, many at a time."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.kube import Kube
from tests.support.operator_process import OperatorProcess
from tests.tfjob.cases import CASES
from tests.tfjob.puppets import Played, claim

pytestmark = pytest.mark.cluster

REAL = [c for c in CASES if c.real]
AT_A_TIME = 9


def test_jobs_go_as_a_tfjob_user_expects(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    claim(kube, namespace, shared)
    own_operator.start()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        played = {c.name: pool.submit(lambda case: Played(kube, namespace, shared, case).play(), c) for c in REAL}
    wrong = [f"{name}: {error}" for name, future in played.items() if (error := future.exception()) is not None]
    assert not wrong, "\n".join([*wrong, "the operator's last words:", own_operator.log.read_text()[-8000:]])
