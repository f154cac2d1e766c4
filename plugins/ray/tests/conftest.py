"""A Ray cluster of three nodes, simulated on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Before ray is imported: its processes inherit them. A lost node is noticed after five seconds instead of fifteen.
os.environ.update(
    RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0", RAY_health_check_period_ms="1000"
)
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])

import ray
from ray.cluster_utils import Cluster

OBJECTS_NBYTES = 80 << 20
HOSTS = ("host0", "host1", "host2")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Three nodes, each with a resource of its own name to place actors by."""
    made = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 4,
            "include_dashboard": False,
            "object_store_memory": OBJECTS_NBYTES,
            "resources": {HOSTS[0]: 10},
        },
    )
    for host in HOSTS[1:]:
        made.add_node(num_cpus=4, object_store_memory=OBJECTS_NBYTES, resources={host: 10})
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
