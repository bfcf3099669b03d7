"""Environment classes and the tools that their methods are.

The contract is that of TRL's ``environment_factory`` (trl/trainer/grpo_trainer.py, 2026): a class that is built without
arguments, with ``reset(**row)``, which returns text or ``None``, typed public methods with docstrings, which are tools,
and an optional ``get_reward()``.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

from embodyflow.agents.tools.tool import ModelTool, Tool, exceptions, import_object
from embodyflow.config.agents.agent import AgentConfig, EnvironmentConfig
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompts import Prompt
from embodyflow.seeding import LARGEST_ENV_SEED, derive_seed

NAME_COLUMN = "environment"
"""Column of the rows with the name of their environment, where there are several."""
QUEUE = ":environment"
"""Name of the queue that the calls of all environments wait in; no tool has it."""
_RESERVED = ("reset", "get_reward")


class EnvironmentClass:
    """An environment class.

    Args:
        reference: Class ``module:Class``, or a function that makes an environment. A class is not built here; a
            function is called once, because its environment alone shows the methods.
        config: Section ``rollout.agent``.

    Raises:
        ConfigError: It cannot be imported, has no ``reset`` or no tool, or a method lacks types or descriptions.
    """

    def __init__(self, reference: str, config: AgentConfig) -> None:
        assert config.environment is not None
        key = f"rollout.agent.environment={reference}"
        self.reference, self.config = reference, config.environment
        self.build: Callable[[], Any] = import_object("rollout.agent.environment", reference)
        methods = _methods_of(self.build, key)
        if "reset" not in methods:
            raise ConfigError(f"{key}: has no method reset(**row)")
        self._reset = methods["reset"]
        self.gives_reward = "get_reward" in methods
        mistakes = exceptions("rollout.agent.mistakes", config.mistakes)
        self.tools: dict[str, Tool] = {
            name: Tool(method, self.config, mistakes, QUEUE)
            for name, method in methods.items()
            if name not in _RESERVED and not name.startswith("_")
        }
        if not self.tools:
            raise ConfigError(f"{key}: has no public method besides {' and '.join(_RESERVED)}; the model needs a tool")

    @property
    def is_seeded(self) -> bool:
        """True if ``random`` and ``numpy.random`` are seeded during its calls."""
        return self.config.concurrency == 1

    def reset_arguments(self, row: Prompt, split: str) -> dict[str, Any]:
        """Return the arguments of ``reset`` for a row: its columns, as far as ``reset`` takes them.

        They are the chat as ``prompt``, the further columns, and, where no column has the name, ``ground_truth``,
        ``data_source``, ``split`` and ``seed``. All episodes of a row have the same seed.

        Raises:
            ConfigError: ``reset`` needs a column that the row does not have.
        """
        key = f"rollout.agent.environment={self.reference}"
        ignored = () if isinstance(self.config.factory, str) else (NAME_COLUMN,)  # it chooses the environment
        return row_arguments(self._reset, row, split, key, ignored)


class Environments:
    """The environment classes of an agent, by name.

    Args:
        config: Section ``rollout.agent``.

    Raises:
        ConfigError: A class is no environment.
    """

    def __init__(self, config: AgentConfig) -> None:
        if config.environment is None:
            raise ConfigError("rollout.agent.environment: must be set with rollout.agent.workflow=EnvironmentLoop")
        self._config: EnvironmentConfig = config.environment
        if not self._config.factories:
            raise ConfigError("rollout.agent.environment: names no environment")
        self._by_name = {
            name: EnvironmentClass(reference, config) for name, reference in self._config.factories.items()
        }

    def all(self) -> list[EnvironmentClass]:
        """Return all classes."""
        return list(self._by_name.values())

    def of(self, row: Prompt) -> EnvironmentClass:
        """Return the class of a row's episodes.

        Raises:
            ConfigError: The row names none, or one that does not exist.
        """
        if isinstance(self._config.factory, str):
            return self._by_name[""]
        allowed = ", ".join(self._by_name)
        place = f"prompt {row.prompt_id} of {row.data_source}"
        if NAME_COLUMN not in row.row:
            raise ConfigError(
                f"rollout.agent.environment: {place} has no column {NAME_COLUMN}; needs one with {allowed}"
            )
        name = row.row[NAME_COLUMN]
        if name not in self._by_name:
            raise ConfigError(f"rollout.agent.environment: {place} names {name!r}; allowed are {allowed}")
        return self._by_name[name]


def row_arguments(
    reset: Callable[..., Any], row: Prompt, split: str, key: str, ignored: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the arguments of a ``reset`` for a row; see :meth:`EnvironmentClass.reset_arguments`.

    Args:
        reset: Function that is reset.
        row: Row of the data.
        split: Split of the row.
        key: Key that names the environment, for messages.
        ignored: Columns that are no arguments.

    Raises:
        ConfigError: The function needs a column that the row does not have.
    """
    own = {
        "seed": task_seed(row, split) % (LARGEST_ENV_SEED + 1),
        "split": split,
        "data_source": row.data_source,
        "ground_truth": row.ground_truth,
    }
    given = own | dict(row.row) | {"prompt": row.messages}
    parameters = inspect.signature(reset).parameters
    if all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters.values()):
        given = {name: value for name, value in given.items() if name in parameters}
    given = {name: value for name, value in given.items() if name not in ignored}
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and name not in given
    ]
    if missing:
        raise ConfigError(
            f"{key}: reset needs {', '.join(missing)}; prompt {row.prompt_id} of {row.data_source} has "
            f"{', '.join(sorted({*row.row, *own, 'prompt'}))}"
        )
    return given


def task_seed(row: Prompt, split: str) -> int:
    """Return the seed of a row's task, which all its episodes share."""
    return derive_seed("environment", split, row.data_source, row.prompt_id)


def check_names(tools: Mapping[str, ModelTool], environment: EnvironmentClass) -> None:
    """Check that no tool has the name of an environment's method.

    Raises:
        ConfigError: One has.
    """
    if both := sorted(tools.keys() & environment.tools.keys()):
        raise ConfigError(
            f"rollout.agent.tools: {both[0]} is also a method of {environment.reference}; names must differ"
        )


def _methods_of(build: Callable[[], Any], key: str) -> dict[str, Callable[..., Any]]:
    """Return the methods of an environment by name, bound to anything, as their signatures need it."""
    if isinstance(build, type):
        stand_in = object()
        bound = {
            name: MethodType(member, stand_in)
            for name, member in inspect.getmembers(build, inspect.isfunction)
            if not isinstance(inspect.getattr_static(build, name), staticmethod)
        }
        return {**dict(inspect.getmembers(build, inspect.ismethod)), **bound}
    if not callable(build):
        raise ConfigError(f"{key}: must be a class, or a function that makes an environment")
    return dict(inspect.getmembers(build(), inspect.ismethod))
