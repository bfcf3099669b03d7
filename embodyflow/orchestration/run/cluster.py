"""The Ray cluster of a run: the user's, or one that lives as long as the run."""

import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import ray_constants
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # compiled, without stubs

from embodyflow.config import RunConfig
from embodyflow.process.private_folder import RAY_SUBFOLDER, make_private_folder

NUM_STARTS = 3
"""Attempts to start Ray. It gives a node 30 s to start, however busy the machine is, and has no setting for that."""


@contextmanager
def ray_cluster(config: RunConfig) -> Iterator[None]:
    """Connect to the cluster at ``RAY_ADDRESS``, or start a local one and stop it at the end.

    The local one listens on the loopback interface, answers only to a secret of this run, and keeps its files in a
    folder that no other user can enter. Worker processes belong to this connection: Ray ends them when the connection
    closes or this process dies, even by SIGKILL.
    """
    address = os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {
        "namespace": f"embodyflow-{config.run_id}",
        "log_to_driver": False,
        "configure_logging": False,
    }
    with _connected(address, options) if address else _local(options):
        yield


@contextmanager
def _connected(address: str, options: dict[str, Any]) -> Iterator[None]:
    ray.init(address=address, **options)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _local(options: dict[str, Any]) -> Iterator[None]:
    folder = make_private_folder()
    try:
        with _private_environment():
            _start({**options, "_temp_dir": str(folder / RAY_SUBFOLDER)})
            try:
                yield
            finally:
                ray.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(options: dict[str, Any]) -> None:
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
def _private_environment() -> Iterator[None]:
    """Make a cluster that this process starts ask for a secret of its own and stay on the loopback interface.

    Ray has the switch for the loopback interface for macOS and Windows, where it is on by default. It reads the
    variable when it is imported.
    """
    variables = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
    if "RAY_AUTH_MODE" not in os.environ:  # the user's choice stands
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in variables}
    allows_clusters, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    os.environ.update(variables)
    _forget_secrets()
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = allows_clusters
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _forget_secrets()


def _forget_secrets() -> None:
    """Let Ray read its variables again; it keeps the mode and the token of its first connection in memory."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
