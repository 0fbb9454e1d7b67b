"""All cases, in the order of docs/reference/tfjob.md."""

from tests.tfjob.cases_pods import PODS
from tests.tfjob.cases_refused import REFUSED
from tests.tfjob.cases_restarts import RESTARTS
from tests.tfjob.cases_roles import ROLES
from tests.tfjob.cases_run_policy import RUN_POLICY
from tests.tfjob.table import Case

GROUPS: dict[str, tuple[Case, ...]] = {
    "Roles, TF_CONFIG, success": ROLES,
    "Restarts": RESTARTS,
    "runPolicy, scaling, status": RUN_POLICY,
    "Pod templates": PODS,
    "Refused here, and mostly accepted by TFJob": REFUSED,
}
CASES = tuple(case for group in GROUPS.values() for case in group)
