"""The Ray cluster of a run: the user's, or one that lives as long as the run."""

import atexit
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import ray_constants
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # compiled, without stubs

from embodyflow.config import RunConfig
from embodyflow.errors import ClusterLostError, ConfigError
from embodyflow.process.files.private_folder import RAY_SUBFOLDER, private_folder
from embodyflow.process.ports import answers
from embodyflow.process.ray_start import NUM_RAY_STARTS, RAY_TOO_SLOW
from embodyflow.process.variables import variables_set
from embodyflow.workers.gpu_sharing import check_own_gpus

_RESTART_SECONDS = 30.0
"""Time that a head node which is starting again has until it answers."""

_LIMIT = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Variable with the seconds after which Ray ends a process whose head is gone."""

_DEFAULT_LIMIT = 60.0
"""Its value where it is not set."""

_DISCONNECT_SECONDS = 5.0
"""Time that Ray has to close the connection to a cluster that is lost."""


@contextmanager
def ray_cluster(config: RunConfig) -> Iterator[None]:
    """Connect to the cluster at ``RAY_ADDRESS``, or start a local one and stop it at the end.

    The local one listens on the loopback interface, answers only to a secret of this run, and keeps its files in a
    folder that no other user can enter. Worker processes belong to this connection: Ray ends them when the connection
    closes or this process dies, even by SIGKILL.

    Raises:
        ConfigError: Nothing answers at ``RAY_ADDRESS``; or Ray would end this process before ``cluster.head_timeout``;
            or the variable is not set, and this machine lacks GPUs that the workers need.
    """
    address = os.environ.get("RAY_ADDRESS")
    if address:
        _check_head_timeout(config.cluster.head_timeout)
    else:
        check_own_gpus(config)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {
        "namespace": f"embodyflow-{config.run_id}",
        "log_to_driver": False,
        "configure_logging": False,
    }
    with _connected(address, options) if address else _local(options):
        yield


def _check_head_timeout(seconds: float) -> None:
    limit = float(os.environ.get(_LIMIT, _DEFAULT_LIMIT))
    if seconds >= limit:
        raise ConfigError(
            f"cluster.head_timeout={seconds:g}: Ray ends a process whose head is gone for {limit:g} s; "
            f"allowed is less, or set {_LIMIT} to more for this command and on all nodes"
        )


@contextmanager
def _connected(address: str, options: dict[str, Any]) -> Iterator[None]:
    # Without this check, Ray would try to connect for as long as nothing listens there.
    deadline = time.monotonic() + _RESTART_SECONDS
    while not answers(address):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"RAY_ADDRESS={address}: nothing answers there; start that cluster, or unset RAY_ADDRESS to have one "
                "for this run"
            )
        time.sleep(0.5)
    disconnect = ray.shutdown
    try:
        _init({"address": address, **options})
        yield
    except ClusterLostError:
        disconnect = _disconnect_from_lost
        raise
    finally:
        disconnect()


def _disconnect_from_lost() -> None:
    """Close the connection to a lost cluster, or leave that to the end of this process.

    Ray waits for minutes for a head whose machine has lost its power or its network, and would wait again at exit.
    """
    closing = threading.Thread(target=ray.shutdown, name="ray-shutdown", daemon=True)
    closing.start()
    closing.join(_DISCONNECT_SECONDS)
    if closing.is_alive():
        atexit.unregister(ray.shutdown)


@contextmanager
def _local(options: dict[str, Any]) -> Iterator[None]:
    with private_folder(for_sockets=True) as folder, _private_environment():
        _start({**options, "_temp_dir": str(folder / RAY_SUBFOLDER)})
        try:
            yield
        finally:
            ray.shutdown()


def _start(options: dict[str, Any]) -> None:
    for attempt in range(1, NUM_RAY_STARTS + 1):
        try:
            _init({"address": "local", "include_dashboard": False, **options})
            return
        except Exception as error:
            ray.shutdown()
            if RAY_TOO_SLOW not in str(error) or attempt == NUM_RAY_STARTS:
                raise
            logging.getLogger(__name__).warning("Ray did not start in time (attempt %d of %d)", attempt, NUM_RAY_STARTS)


def _init(options: dict[str, Any]) -> None:
    """Connect to Ray, and leave SIGTERM to Python.

    Ray installs a handler in C++ that calls Python's and then ends the process by SIGABRT three seconds later, in the
    middle of an orderly stop that takes longer.
    """
    try:
        ray.init(**options)
    except BaseException as error:
        if not isinstance(error, Exception):  # a signal came meanwhile, and Ray's handler has set its alarm
            signal.alarm(0)
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


@contextmanager
def _private_environment() -> Iterator[None]:
    """Make a cluster that this process starts ask for a secret of its own and stay on the loopback interface.

    Ray has the switch for the loopback interface for macOS and Windows, where it is on by default. It reads the
    variable when it is imported.
    """
    variables = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
    if "RAY_AUTH_MODE" not in os.environ:  # the user's choice stands
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    allows_clusters, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        with variables_set(variables):
            _forget_secrets()
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = allows_clusters
        _forget_secrets()


def _forget_secrets() -> None:
    """Let Ray read its variables again; it keeps the mode and the token of its first connection in memory."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
