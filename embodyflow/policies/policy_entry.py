"""The parts of a policy, by reference.

References are imported where they are used: a configuration is checked without torch and transformers, which take
seconds to import.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from embodyflow.errors import ConfigError
from embodyflow.policies.policy_config import PolicyConfig
from embodyflow.references import resolve

if TYPE_CHECKING:
    import gymnasium as gym

    from embodyflow.policies.base import Critic, Policy

Check = Callable[[Any, "gym.Env[Any, Any] | None"], None]
"""Refuses a configuration by a ``ConfigError``, given the environment; a language job has none."""

METHODS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "embodied": ("act", "encode_instruction", "evaluate", "export"),
        "control": ("act", "evaluate", "export"),
        "language": ("evaluate", "export", "read"),
    }
)
"""Methods that a policy class must have, by kind of job; see :mod:`embodyflow.policies.base`."""

FEATURE_METHODS = ("features", "evaluate_with_features")
"""Methods that a policy class must have besides if its configuration says ``has_features``."""


@dataclass(frozen=True)
class PolicyEntry:
    """The parts of a policy, each ``"module:attribute"``.

    Attributes:
        config: Configuration class, which says by its base class what kind of job the policy is for.
        policy: Policy class, built by ``(config, device)``.
        critic: Critic class, built likewise; ``None`` for a policy without one.
        check: Function of ``(config, env)`` that refuses a configuration, such as one of a checkpoint of other sizes;
            ``None`` where there is nothing to check but the shapes that the configuration states.
        imitates: Whether a policy that acts can start from demonstrations.
    """

    config: str
    policy: str
    critic: str | None = None
    check: str | None = None
    imitates: bool = True

    @property
    def config_class(self) -> type[PolicyConfig]:
        """The configuration class."""
        return cast(type[PolicyConfig], resolve(self.config))

    def build_policy(self, config: PolicyConfig, device: str) -> "Policy":
        """Build the policy, of random weights where its configuration names none."""
        return cast("Policy", resolve(self.policy)(config, device))

    def build_critic(self, config: PolicyConfig, device: str) -> "Critic":
        """Build the critic of an entry that has one."""
        assert self.critic is not None
        return cast("Critic", resolve(self.critic)(config, device))

    def run_check(self, config: PolicyConfig, env: "gym.Env[Any, Any] | None") -> None:
        """Run the policy's own check, if it has one.

        Raises:
            ConfigError: The check refuses the configuration.
        """
        if self.check is not None:
            cast(Check, resolve(self.check))(config, env)


def import_entry(name: str) -> PolicyEntry:
    """Return the entry of another package's policy.

    Args:
        name: ``module:Class`` of a policy class, or of a :class:`PolicyEntry`.

    Raises:
        ConfigError: It cannot be imported, or a part of it is missing; one line.
    """
    try:
        found = resolve(name)
        entry = found if isinstance(found, PolicyEntry) else _entry_of_class(name, found)
        config_class = entry.config_class
    except ImportError as error:
        raise ConfigError(f"policy.name={name}: {error}") from error
    if not inspect.isclass(config_class) or not issubclass(config_class, PolicyConfig) or _job(config_class) is None:
        raise ConfigError(
            f"policy.name={name}: its configuration must extend EmbodiedPolicyConfig, ControlPolicyConfig or "
            "CausalLMConfig of embodyflow.policies"
        )
    _check_parts(name, config_class, config_class.__abstractmethods__)
    if found is not entry:
        needed = METHODS[config_class.job] + (FEATURE_METHODS if config_class.has_features else ())
        _check_parts(name, found, [each for each in needed if not hasattr(found, each)])
    return entry


def _entry_of_class(name: str, found: Any) -> PolicyEntry:
    if not inspect.isclass(found):
        raise ConfigError(f"policy.name={name}: must be a policy class or a PolicyEntry, not {type(found).__name__}")
    return PolicyEntry(
        config=f"{name}.config_class",
        policy=name,
        critic=f"{name}.critic_class" if hasattr(found, "critic_class") else None,
        check=f"{name}.check" if hasattr(found, "check") else None,
        imitates=hasattr(found, "imitation_loss"),
    )


def _job(config_class: type[PolicyConfig]) -> str | None:
    job: str | None = getattr(config_class, "job", None)
    return job if job in METHODS else None


def _check_parts(name: str, owner: type, missing: "list[str] | frozenset[str]") -> None:
    if missing:
        raise ConfigError(f"policy.name={name}: {owner.__name__} must have {', '.join(sorted(missing))}")
