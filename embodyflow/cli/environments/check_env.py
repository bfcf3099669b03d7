"""``embodyflow check-env``: check that an environment is fit for reinforcement learning."""

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from embodyflow.cli.environments.batch_checks import BATCH_CHECKS
from embodyflow.cli.environments.env_checks import CHECKS, Check, Finding, Subject
from embodyflow.config.composition.compose import compose_environment, validate_environment
from embodyflow.config.composition.keys import known_keys
from embodyflow.config.robots.environment import EnvConfig
from embodyflow.errors import ConfigError
from embodyflow.simulation.make_env import declared_tasks

__all__ = ["CHECKS", "Subject", "configuration", "show"]


def show(env_id: str | None, words: Sequence[str]) -> int:
    """Check an environment and print a table; of ``env.members`` each in its turn.

    Args:
        env_id: Gymnasium id, or ``module:id``; ``None`` if ``words`` name the environment.
        words: Words ``key=value`` as for a run, such as ``experiment=push``, ``env=libero_object`` or
            ``env.adapter.success_info=is_success``. The prefix ``env.`` may be left out: ``kwargs.size=3``.

    Returns:
        1 if a check failed, else 0.

    Raises:
        ConfigError: The environment cannot be built.
    """
    if sys.platform == "linux":
        os.environ.setdefault("MUJOCO_GL", "egl")  # renders without a display; read when mujoco is first imported
    warnings.simplefilter("ignore")  # those of Gymnasium at every step; _gymnasium reports those of its checker
    failed = False
    for member, config in configuration(env_id, words).parts.items():
        if member:
            print(f"env.members.{member}", flush=True)
        failed |= _show_checks(Subject(config))
    return int(failed)


def _show_checks(subject: Subject) -> bool:
    """Print a line per check; return True if one failed."""
    failed = False
    checks = CHECKS if subject.config.vector is None else BATCH_CHECKS
    for name, check in checks.items():
        finding = _run(check, subject)
        failed |= finding.verdict == "FAIL"
        advice = f"  → {finding.advice}" if finding.advice else ""
        print(f"{finding.verdict:<5} {name:<18} {finding.details}{advice}", flush=True)
    return failed


def configuration(env_id: str | None, words: Sequence[str]) -> EnvConfig:
    """Return the configuration of the environment to check; the arguments are those of :func:`show`.

    Raises:
        ConfigError: A word is wrong, or the environment cannot be built.
    """
    overrides = [_override(word) for word in words]
    keys = {override.lstrip("+~").partition("=")[0] for override in overrides}
    if env_id is None and not keys & {"experiment", "env", "env.id"}:
        raise ConfigError("check-env: must name an environment by its id, env.id=…, env=… or experiment=…")
    if env_id is not None:
        overrides.append(f"++env.id='{env_id}'")
    values = compose_environment(overrides)
    if keys & {"experiment", "env"}:
        return validate_environment(values)
    # The tasks and steps of the default experiment say nothing about another environment.
    if "env.max_steps" not in keys:
        values["max_steps"] = 200
    if "env.tasks" not in keys:
        # An adapter that defines no success chooses wrappers or the state of a control job.
        values["tasks"] = ["do it"] if _defines_success(values) else declared_tasks(values["id"])[:1]
    return validate_environment(values)


def _defines_success(values: Mapping[str, Any]) -> bool:
    adapter = values.get("adapter") or {}
    return any(adapter.get(key) is not None for key in ("success_info", "success_reward")) or bool(
        adapter.get("success_termination")
    )


def _override(word: str) -> str:
    """Return a word as an override of a run's configuration: a key that a run does not have belongs to ``env``."""
    key = word.lstrip("+~").partition("=")[0]
    if "=" not in word.lstrip("~") and not word.startswith("~"):
        raise ConfigError(f"{word}: must be of the form key=value, such as env.kwargs.size=3")
    if key.partition(".")[0] in {known.partition(".")[0] for known in known_keys()}:
        return word
    prefix = word[: len(word) - len(word.lstrip("+~"))] or "++"
    return f"{prefix}env.{word.lstrip('+~')}"


def _run(check: Check, subject: Subject) -> Finding:
    try:
        return check(subject)
    except Exception as error:  # any error of the environment is a finding
        line = str(error).strip().splitlines()[-1:] or [""]
        return Finding("FAIL", f"{type(error).__name__}: {line[0]}", "the environment raised")
