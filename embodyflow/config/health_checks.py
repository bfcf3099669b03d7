"""Checks of the section ``health`` against the rest of a configuration."""

from collections.abc import Iterator

from pydantic import BaseModel, ValidationError

from embodyflow.config.changed_values import value_of
from embodyflow.health.detector_registry import DETECTORS
from embodyflow.health.settings import DetectorConfig, HealthConfig, NaNConfig
from embodyflow.policies.policy_config import PolicyConfig

CHANGEABLE = (
    *("trainer.learning_rate", "trainer.max_grad_norm", "critic.learning_rate"),
    *("algorithm.kl.coef", "algorithm.kl.target", "algorithm.entropy_coef", "algorithm.clip_low"),
    "algorithm.clip_high",
)
"""Keys that a roll-back may change: the trainer reads them, and a checkpoint does not hold them."""

GOES_BACK = ("roll_back", "pause")
"""Actions that may end in a roll-back; a person who is asked may choose it."""


def rolling_back(health: HealthConfig) -> Iterator[tuple[str, DetectorConfig | NaNConfig]]:
    """Yield the sections of detectors whose finding may roll the run back, by key."""
    for name in DETECTORS:
        section = getattr(health, name)
        if isinstance(section, DetectorConfig | NaNConfig) and section.action in GOES_BACK:
            yield f"health.{name}", section
    yield from ((f"health.own.{name}", own) for name, own in health.own.items() if own.action in GOES_BACK)


def check_health(health: HealthConfig, policy: PolicyConfig, config: BaseModel) -> None:
    """Refuse changes that a roll-back cannot make, and detectors that cannot judge the policy.

    Args:
        health: Section ``health``.
        policy: Section ``policy``.
        config: The whole configuration.

    Raises:
        ValueError: One line with the key and what is allowed.
    """
    for key, section in rolling_back(health):
        for changed, factor in section.changes.items():
            times = health.roll_back.max_times
            _check_change(config, f"{key}.changes.{changed}={factor:g}", changed, factor, times)
    collapse = health.entropy_collapse
    if collapse.action is not None and collapse.max_fall is None and policy.entropy_is_density:
        raise ValueError(
            f"health.entropy_collapse.max_fall: must be set with policy.name={policy.name}, whose entropy is "
            "that of a density and may be negative; 3 means a density that is narrower by a factor of 20"
        )


def _check_change(config: BaseModel, where: str, key: str, factor: float, times: int) -> None:
    if key not in CHANGEABLE:
        raise ValueError(f"{where}: a roll-back cannot change it; allowed are {', '.join(CHANGEABLE)}")
    if key == "algorithm.kl.coef" and value_of(config, "algorithm.kl.changes_coef"):
        raise ValueError(f"{where}: the coefficient changes by itself; allowed is algorithm.kl.target if it is set")
    value = value_of(config, key)
    if not value:
        raise ValueError(f"{where}: {key} is {'null' if value is None else 0}, which no factor changes")
    section, _, name = key.rpartition(".")
    model = value_of(config, section)
    last = value * factor**times
    try:
        type(model).model_validate(model.model_dump() | {name: last})
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"{where}: after {times} roll-backs {key}={last:g}: {message}") from error
