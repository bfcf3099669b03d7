"""The Ray cluster of a run: the user's own, or one for the length of the run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from embodyflow.config import RunConfig


@contextmanager
def ray_cluster(config: RunConfig) -> Iterator[None]:
    """Connect to the cluster at ``RAY_ADDRESS``, or start one here; whoever starts a cluster stops it.

    Worker processes belong to this connection: Ray ends them when it is closed or this process dies, whatever the
    way it dies.
    """
    address = os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options = {"namespace": f"embodyflow-{config.run_id}", "log_to_driver": False, "configure_logging": False}
    if address:
        ray.init(address=address, **options)
    else:
        ray.init(address="local", include_dashboard=False, **options)
    try:
        yield
    finally:
        ray.shutdown()
