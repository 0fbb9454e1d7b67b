"""The cluster map of the job in a simulated world, as its pods read it."""

import json
from typing import Any

from pstraining.api import names
from tests.support.simulation import World


def cluster_map(world: World) -> dict[str, Any]:
    """Return the content of the cluster map."""
    found: dict[str, Any] = json.loads(
        world.children["ConfigMap", names.cluster_config_map("digits")]["data"]["cluster.json"]
    )
    return found


def layout(world: World) -> tuple[int, int]:
    """Return the number of the cluster map's layout, and its number of servers."""
    found = cluster_map(world)
    return found.get("layout", 1), len(found["cluster"]["ps"])
