"""How the process of an environment is started, and what it says of the environment."""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from embodyflow.errors import ConfigError
from embodyflow.process import guardian
from embodyflow.process.variables import variables_for_episodes
from embodyflow.prompts.verifiers.verifiers_config import VerifiersConfig

SIDE = Path(__file__).with_name("environment_side.py")
"""Script of the process."""


def command(config: VerifiersConfig, mode: Literal["describe", "play"]) -> tuple[str, ...]:
    """Return the command of the process.

    Raises:
        ConfigError: There is no such Python.
    """
    own = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    python = shutil.which(config.python, path=own)
    if python is None:
        raise ConfigError(f"rollout.agent.verifiers.python: {config.python} is no command that this machine has")
    return python, str(SIDE), mode


def start(descriptor: int, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Start a process that ends with all its descendants once the other end of a pipe is closed.

    Args:
        descriptor: Read end of the pipe, which the process inherits.
        command: Command of the process.
    """
    return subprocess.Popen(
        (sys.executable, "-P", guardian.__file__, str(descriptor), *command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_variables(),
        pass_fds=[descriptor],
        start_new_session=True,
    )


def _variables() -> dict[str, str]:
    """Return the environment variables of the process.

    It finds the modules that this process finds in folders. It has installed packages of its own.
    """
    folders = (path for path in sys.path if path and not {"site-packages", "dist-packages"} & set(Path(path).parts))
    outside = [path for path in folders if not path.startswith((sys.base_prefix, sys.prefix))]
    exempt = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1", "localhost")))
    paths = dict.fromkeys([*outside, os.getcwd()])
    return {
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",  # the order of a set is part of a prompt that is made of it
        **variables_for_episodes(with_tokens=True),
        "PYTHONPATH": os.pathsep.join(paths),
        "NO_PROXY": exempt,
        "no_proxy": exempt,
    }


def first_line(config: VerifiersConfig, **values: Any) -> bytes:
    """Return the request that the process begins with."""
    return json.dumps({"taskset": config.taskset, "settings": config.settings, **values}).encode() + b"\n"


def read_answer(config: VerifiersConfig, line: str | bytes, reason: str) -> Any:
    """Return the first line that the process writes.

    Args:
        config: Environment.
        line: Line; an empty one means that the process has ended.
        reason: End of what it printed to stderr, for messages.

    Raises:
        ConfigError: The environment cannot be trained on, or the process has failed; one line says why.
    """
    key = f"rollout.agent.verifiers={config.taskset}"
    if not line.strip():
        last = reason.strip().rpartition("\n")[2]
        raise ConfigError(f"{key}: its process has failed: {last or 'it printed nothing'}")
    answer = json.loads(line)
    if "error" in answer:
        raise ConfigError(f"{key}: {answer['error']}")
    return answer


def tasks_of(config: VerifiersConfig, number: int | None) -> list[Mapping[str, Any]]:
    """Return the first tasks of an environment, each with ``messages``, ``answer`` and ``data``.

    Args:
        config: Environment.
        number: Number of tasks; ``None`` means all.

    Raises:
        ConfigError: The environment cannot be loaded in time, has no tasks or gives no reward.
    """
    return _tasks_of(config.model_dump_json(), number)


@functools.lru_cache(maxsize=4)
def _tasks_of(config_as_json: str, number: int | None) -> list[Mapping[str, Any]]:
    """Return the tasks; checks and rollouts of a process ask for the same ones, and loading takes seconds."""
    config = VerifiersConfig.model_validate_json(config_as_json)
    theirs, ours = os.pipe()
    try:
        process = start(theirs, command(config, "describe"))
        output, errors = process.communicate(first_line(config, num_tasks=number), config.start_timeout)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"rollout.agent.verifiers={config.taskset}: its tasks were not loaded within "
            f"start_timeout={config.start_timeout:g} seconds"
        ) from error
    finally:
        os.close(ours)  # ends what is left of the process
        os.close(theirs)
    tasks: list[Mapping[str, Any]] = read_answer(config, output, errors.decode(errors="replace"))["tasks"]
    return tasks
