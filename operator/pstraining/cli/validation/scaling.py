"""The API's rules for a change of the number of workers."""

from pstraining.api.values import copied
from pstraining.cli.client import Object
from pstraining.cli.errors import CommandError
from pstraining.cli.formatting import several
from pstraining.cli.validation.schema import validate


def check_workers(job: Object, workers: int) -> None:
    """Check a change of the number of workers against the API's rules.

    Args:
        job: the job as it is stored.
        workers: the new number.

    Raises:
        CommandError: the rules forbid the change.
    """
    changed = copied(job)
    changed["spec"]["worker"]["replicas"] = workers
    # Errors that the job already has do not prevent the change.
    wrong = [f for f in validate(changed, job) if f not in validate(job, job)]
    if wrong:
        raise CommandError(
            f"{job['metadata']['name']} cannot have {several(workers, 'worker')}: {'; '.join(map(str, wrong))}"
        )
