"""The processor time of tests: of this process, of the children that it has waited for, and of added processes."""

import resource

_elsewhere = 0.0


def add(seconds: float) -> None:
    """Count what a process has used that is no child of this one."""
    global _elsewhere  # noqa: PLW0603 - one sum a process
    _elsewhere += seconds


def processor_seconds() -> float:
    """Seconds of a processor so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return _elsewhere + sum(usage.ru_utime + usage.ru_stime for usage in used)
