"""The processor time of tests: of this process, its awaited children, and added processes."""

import resource

_elsewhere = 0.0


def add(seconds: float) -> None:
    """Add the seconds that a process has used that is not a child of this one."""
    global _elsewhere  # noqa: PLW0603 - one sum a process
    _elsewhere += seconds


def processor_seconds() -> float:
    """Return the processor seconds used so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return _elsewhere + sum(usage.ru_utime + usage.ru_stime for usage in used)
