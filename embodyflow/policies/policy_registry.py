"""Policies by name: the shipped ones, and those of other packages.

A policy of another package needs no change here. Name its class, ``policy=module:Class``; the class has these
attributes:

- ``config_class``: its configuration, see :mod:`embodyflow.policies.policy_config`;
- ``critic_class``: its critic, where it has one;
- ``check``: a static method of ``(config, env)`` that raises :class:`~embodyflow.errors.ConfigError`, where there is
  more to check than the shapes that the configuration states.

A package whose import takes seconds may name a :class:`~embodyflow.policies.policy_entry.PolicyEntry` instead.
"""

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from embodyflow.errors import ConfigError
from embodyflow.policies.policy_config import ActingPolicyConfig, PolicyConfig
from embodyflow.policies.policy_entry import PolicyEntry, import_entry

if TYPE_CHECKING:
    from embodyflow.policies.base import ActingPolicy, Critic, Policy

Config = TypeVar("Config", bound=PolicyConfig)
OWN = "or module:Class of your own"


def _shipped(place: str, title: str, *, has_check: bool = True, imitates: bool = True) -> PolicyEntry:
    """Return the entry of a folder of this package: all folders name their files and classes alike.

    Args:
        place: Package of the folder below this one; the last name is the policy's.
        title: Beginning of the names of its classes.
        has_check: Whether the folder has a check.
        imitates: Whether the policy can start from demonstrations.
    """
    folder, name = f"embodyflow.policies.{place}", place.rpartition(".")[2]
    return PolicyEntry(
        config=f"{folder}.configuration_{name}:{title}Config",
        policy=f"{folder}.policy_{name}:{title}Policy",
        critic=f"{folder}.critic_{name}:{title}Critic",
        check=f"{folder}.check_{name}:check" if has_check else None,
        imitates=imitates,
    )


def _steered(title: str) -> PolicyEntry:
    """Return the entry of a policy that steers a frozen one: they differ by their configurations alone."""
    folder = "embodyflow.policies.embodied.steered"
    return PolicyEntry(
        config=f"{folder}.configuration_steered:{title}Config",
        policy=f"{folder}.policy_steered:SteeredPolicy",
        critic=f"{folder}.critic_steered:SteeredCritic",
        check=f"{folder}.check_steered:check",
    )


POLICIES: Mapping[str, PolicyEntry] = MappingProxyType(
    {
        "tiny_vla": _shipped("embodied.tiny_vla", "TinyVLA"),
        "openvla": _shipped("embodied.openvla", "OpenVLA"),
        "openvla_l1": _shipped("embodied.openvla_l1", "OpenVLAL1"),
        "smolvla": _shipped("embodied.smolvla", "SmolVLA"),
        "pi0": _shipped("embodied.pi0", "PI0"),
        "pi05": _shipped("embodied.pi05", "PI05"),
        "mlp_gaussian": _shipped("control.mlp_gaussian", "MLPGaussian", has_check=False, imitates=False),
        "mlp_categorical": _shipped("control.mlp_categorical", "MLPCategorical", has_check=False, imitates=False),
        "mlp_squashed": _shipped("control.mlp_squashed", "MLPSquashed", has_check=False, imitates=False),
        "mlp_deterministic": _shipped("control.mlp_deterministic", "MLPDeterministic", has_check=False, imitates=False),
        "mlp_bounded": _shipped("control.mlp_bounded", "MLPBounded", has_check=False, imitates=False),
        "mlp_renorm": _shipped("control.mlp_renorm", "MLPRenorm", has_check=False, imitates=False),
        "mlp_chunks": _shipped("embodied.mlp_chunks", "MLPChunks"),
        "cnn_chunks": _shipped("embodied.cnn_chunks", "CNNChunks"),
        "steered_smolvla": _steered("SteeredSmolVLA"),
        "steered_pi0": _steered("SteeredPI0"),
        "act": _shipped("embodied.act", "ACT"),
        "diffusion": _shipped("embodied.diffusion", "Diffusion", has_check=False),
        "causal_lm": _shipped("language.causal_lm", "CausalLM", has_check=False),
    }
)
"""The shipped policies, by their names in configurations."""


def find_policy(name: str, kind: type[PolicyConfig] = PolicyConfig) -> PolicyEntry:
    """Return the entry of a shipped policy's name, or of what ``"module:Class"`` names.

    Args:
        name: Name of the policy.
        kind: Base class of the configurations to choose from.

    Raises:
        ConfigError: There is no such policy, or its configuration does not extend ``kind``; one line.
    """
    entry = POLICIES.get(name)
    if entry is None and ":" in name:
        entry = import_entry(name)
        if not issubclass(entry.config_class, kind):
            raise ConfigError(f"policy.name={name}: is for job={entry.config_class.job}; {_allowed(kind)}")
    elif entry is None or not issubclass(entry.config_class, kind):
        raise ConfigError(f"policy.name={name}: {_allowed(kind)}{_nearest(name, _names(kind))}")
    return entry


def shipped_configs(kind: type[PolicyConfig]) -> list[type[PolicyConfig]]:
    """Return the configuration classes of the shipped policies that extend ``kind``."""
    return [POLICIES[name].config_class for name in _names(kind)]


def validate_policy(section: Mapping[str, Any], kind: type[Config]) -> Config:
    """Return a policy's configuration, checked by the class that its ``name`` chooses.

    Args:
        section: Plain values.
        kind: Base class of the configurations to choose from.

    Raises:
        ConfigError: There is no such policy, or its configuration does not extend ``kind``; one line.
        pydantic.ValidationError: A key is unknown, is missing, or has a wrong value.
    """
    entry = find_policy(str(section.get("name")), kind)
    return cast(Config, entry.config_class.model_validate(section))


def unknown_policy_file(name: str, files: Sequence[str]) -> str:
    """Return the message about ``policy=name`` that is no file in ``configs/policy``."""
    return f"policy={name}: allowed are {', '.join(files)} (configs/policy), {OWN}{_nearest(name, files)}"


def check_training(config: PolicyConfig, *, needs_critic: str | None, has_demonstrations: bool) -> None:
    """Refuse a policy that lacks a part that the run trains.

    Args:
        config: Configuration of the policy.
        needs_critic: Key and value that need a critic, ``None`` where nothing does.
        has_demonstrations: Whether the policy starts from demonstrations.

    Raises:
        ValueError: The policy has no critic, or cannot start from demonstrations; one line.
    """
    entry = find_policy(config.name)
    if needs_critic is not None and entry.critic is None:
        raise ValueError(f"{needs_critic}: needs a critic, and policy.name={config.name} has no critic_class")
    if has_demonstrations and isinstance(config, ActingPolicyConfig) and not entry.imitates:
        raise ValueError(f"warm_start: must be null with policy.name={config.name}, which has no imitation_loss")


def check_features(config: PolicyConfig) -> None:
    """Refuse a policy whose features a value head cannot read.

    Args:
        config: Configuration of the policy.

    Raises:
        ValueError: The policy has none; one line that names the shipped ones that have.
    """
    if not config.has_features:
        names = [name for name, entry in POLICIES.items() if entry.config_class.has_features]
        raise ValueError(
            f"critic.features=policy: policy.name={config.name} has no features for a value head; allowed are "
            f"{', '.join(names)}"
        )


def build_policy(config: PolicyConfig, device: str) -> "Policy":
    """Build the policy, of random weights where its configuration names none."""
    return find_policy(config.name).build_policy(config, device)


def build_acting_policy(config: ActingPolicyConfig, device: str) -> "ActingPolicy":
    """Build a policy that acts in environments, of random weights where its configuration names none."""
    return cast("ActingPolicy", build_policy(config, device))


def build_critic(config: PolicyConfig, device: str) -> "Critic":
    """Build the policy's critic."""
    return find_policy(config.name).build_critic(config, device)


def _allowed(kind: type[PolicyConfig]) -> str:
    job = f" with job={kind.job}" if hasattr(kind, "job") else ""
    return f"allowed are {', '.join(_names(kind))}{job} (configs/policy), {OWN}"


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _names(kind: type[PolicyConfig]) -> list[str]:
    return [name for name, entry in POLICIES.items() if issubclass(entry.config_class, kind)]
