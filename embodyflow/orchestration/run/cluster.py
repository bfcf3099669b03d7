"""The Ray cluster of a run: the user's, or one that lives as long as the run."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from embodyflow.config import RunConfig

NUM_STARTS = 3
"""Attempts to start Ray. It gives a node 30 s to start, however busy the machine is, and has no setting for that."""


def _start_local(options: dict[str, Any]) -> None:
    for attempt in range(1, NUM_STARTS + 1):
        try:
            ray.init(address="local", include_dashboard=False, **options)
            return
        except Exception as error:
            ray.shutdown()
            if "timed out during startup" not in str(error) or attempt == NUM_STARTS:
                raise
            logging.getLogger(__name__).warning("Ray did not start in time (attempt %d of %d)", attempt, NUM_STARTS)


@contextmanager
def ray_cluster(config: RunConfig) -> Iterator[None]:
    """Connect to the cluster at ``RAY_ADDRESS``, or start a local one and stop it at the end.

    Worker processes belong to this connection: Ray ends them when the connection closes or this process dies, even
    by SIGKILL.
    """
    address = os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {
        "namespace": f"embodyflow-{config.run_id}",
        "log_to_driver": False,
        "configure_logging": False,
    }
    if address:
        ray.init(address=address, **options)
    else:
        _start_local(options)
    try:
        yield
    finally:
        ray.shutdown()
