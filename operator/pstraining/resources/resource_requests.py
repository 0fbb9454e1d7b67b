"""Computes the resources that a pod requests, by the scheduler's rules.

The cluster's own additions are not included: a LimitRange's defaults, a RuntimeClass's overhead, a webhook's changes.
"""

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

Amounts = dict[str, Decimal]
"""Amounts by resource name, in cores, bytes or units."""

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([KMGTPE]i|[numkMGTPE]))?", re.ASCII)
_SUFFIXES: Final[Mapping[str, Decimal]] = {
    **{
        suffix: Decimal(1000) ** power
        for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}
_LARGEST: Final = Decimal(10) ** 30
"""Larger numbers are read as this one, which no node has. Decimal and int do not support any number of digits."""
_DIGITS: Final = 1000
"""Larger exponents are read as this one."""
_POD_LEVEL: Final = ("cpu", "memory", "hugepages-")
"""Resources that a pod can request as a whole instead of its containers."""


def of_pod(spec: Mapping[str, Any]) -> Amounts:
    """Return the resources that a pod with this spec requests.

    Containers run together. Sidecars (init containers that are restarted forever) run together with all later
    containers. Other init containers run alone, in sequence. A resource with a limit but no request counts with its
    limit.
    """
    runs = _sum(of_container(c) for c in spec.get("containers") or ())
    beside: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        own = of_container(container)
        if container.get("restartPolicy") == "Always":
            beside = _sum((beside, own))
            peak = _most(peak, beside)
        else:
            peak = _most(peak, _sum((beside, own)))
    found = _most(_sum((runs, beside)), peak)
    whole = spec.get("resources") or {}
    limits = {name: amount for name, amount in _amounts(whole.get("limits")).items() if name not in found}
    found |= {n: a for n, a in (limits | _amounts(whole.get("requests"))).items() if n.startswith(_POD_LEVEL)}
    return _sum((found, _amounts(spec.get("overhead"))))


def total(pods: Iterable[tuple[int, Amounts]]) -> dict[str, str]:
    """Return the sum over numbers of pods and their amounts, as quantities, without resources that no pod requests."""
    found = _sum({name: amount * count for name, amount in amounts.items()} for count, amounts in pods)
    return {name: quantity(amount) for name, amount in sorted(found.items()) if amount > 0}


def parse(text: str | int | float) -> Decimal:
    """Return the number of a Kubernetes quantity, such as 500m or 1Gi.

    Raises:
        ValueError: the text is not a quantity.
    """
    found = _QUANTITY.fullmatch(str(text).strip())
    if found is None:
        raise ValueError(f"{text!r} is not a quantity, such as 500m or 1Gi")
    number, exponent, suffix = found.groups()
    power = max(-_DIGITS, min(_DIGITS, Decimal(exponent[1:]))) if exponent else 0
    amount = max(-_LARGEST, min(_LARGEST, Decimal(f"{number}e{power}")))
    return amount * _SUFFIXES[suffix or ""]


def quantity(amount: Decimal) -> str:
    """Return an amount as a quantity: whole, or in thousandths, rounded up as in Kubernetes."""
    return str(int(amount)) if amount == amount.to_integral_value() else f"{math.ceil(amount * 1000)}m"


def of_container(container: Mapping[str, Any]) -> Amounts:
    """Return the resources that a container requests. A resource with a limit but no request counts with its limit."""
    resources = container.get("resources") or {}
    return _amounts(resources.get("limits")) | _amounts(resources.get("requests"))


def _amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """Return the valid quantities. The API server refuses a pod template with an invalid one."""
    found: Amounts = {}
    for name, text in (quantities or {}).items():
        if _QUANTITY.fullmatch(str(text).strip()):
            found[name] = parse(text)
    return found


def _sum(several: Iterable[Amounts]) -> Amounts:
    found: Amounts = {}
    for amounts in several:
        for name, amount in amounts.items():
            found[name] = found.get(name, Decimal(0)) + amount
    return found


def _most(one: Amounts, other: Amounts) -> Amounts:
    return {n: max(one.get(n, Decimal(0)), other.get(n, Decimal(0))) for n in {**one, **other}}
