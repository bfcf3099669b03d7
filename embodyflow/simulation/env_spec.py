"""The registration of an environment by its id."""

import importlib

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from embodyflow.errors import ConfigError
from embodyflow.project import check_room, hides_room

EXAMPLE_ENV_ID = "envs:embodyflow/MetaWorld-v0"


def env_spec(env_id: str) -> EnvSpec:
    """Import the module of an id, if it names one, and return the registration.

    Raises:
        ConfigError: The module cannot be imported, or there is no such environment.
    """
    module, _, name = env_id.rpartition(":")
    if module == "envs":
        check_room(module)
    try:
        if module:
            importlib.import_module(module)
        return gym.spec(name)
    except ImportError as error:
        raise ConfigError(f"env.id={env_id}: {error}; install the package or correct the module's name") from error
    except gym.error.Error as error:
        if module == "envs" and isinstance(error, gym.error.NamespaceNotFound):
            raise ConfigError(hides_room(module, name)) from error
        raise ConfigError(
            f"env.id={env_id}: {str(error).splitlines()[0].rstrip('.')}; "
            f"allowed are a registered id and module:id, such as {EXAMPLE_ENV_ID} or "
            "gymnasium_robotics:FetchReach-v4"
        ) from error
    except Exception as error:  # a user's module may raise anything; it is reported in one line
        raise ConfigError(
            f"env.id={env_id}: cannot import module {module!r}: {type(error).__name__}: {error}"
        ) from error
