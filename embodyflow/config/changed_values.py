"""Numbers of a configuration by key, and configurations with other ones."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)


def value_of(config: BaseModel, key: str) -> Any:
    """Return the value of a key such as ``algorithm.kl.coef``."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def with_values(config: Model, values: Mapping[str, float]) -> Model:
    """Return a configuration with other values of some keys, which are not validated.

    Args:
        config: Configuration.
        values: Values by key, such as ``{"algorithm.kl.coef": 0.02}``.
    """
    for key, value in values.items():
        name, _, rest = key.partition(".")
        config = config.model_copy(update={name: with_values(getattr(config, name), {rest: value}) if rest else value})
    return config
