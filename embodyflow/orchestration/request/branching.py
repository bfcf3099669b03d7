"""Branches: new runs that begin with another run's weights, or go on from one of its checkpoints."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from embodyflow.config import RunConfig
from embodyflow.config.branch import BranchConfig
from embodyflow.config.composition.compose import check_on_this_machine, validate_config
from embodyflow.config.composition.words import changed_by
from embodyflow.config.robots.control import ControlConfig
from embodyflow.errors import ConfigError
from embodyflow.record.episodes.labelled_episodes import LABELLED
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder

RUN = "branch.run"
COPIED = ("replay", "open_episodes", LABELLED, "metrics.jsonl", "observations.json")
"""Files and folders that only a branch with everything has from the other run."""


def branches(overrides: Sequence[str]) -> bool:
    """Return True if the overrides ask for a branch.

    Raises:
        ConfigError: A word about it is not in Hydra's grammar.
    """
    section = _place(overrides).get("branch")
    return isinstance(section, Mapping) and "run" in section


def origin_of(overrides: Sequence[str], run_root: str) -> RunFolder:
    """Return the folder of the run to branch off.

    Args:
        overrides: Overrides with ``branch.run``, and ``run_root`` if it is not the default.
        run_root: Folder of runs if no override says otherwise.

    Raises:
        ConfigError: There is no such run.
    """
    chosen = _place(overrides)
    return RunFolder.open(str(chosen.get("run_root", run_root)), str(chosen["branch"]["run"]), key=RUN)


def branched_config(values: Mapping[str, Any], overrides: Sequence[str], run_root: str) -> RunConfig:
    """Return the checked configuration of a branch: the other run's, with the request's changes.

    Args:
        values: Values of the request by key, such as ``seed``.
        overrides: Overrides ``key=value``, with ``branch.run`` among them.
        run_root: Folder of runs if no override says otherwise.

    Raises:
        ConfigError: One line per mistake.
    """
    origin = origin_of(overrides, run_root)
    try:
        before = validate_config(origin.config())
    except ConfigError as error:
        raise ConfigError(f"{RUN}={origin.path.name}: its config.yaml is not valid in this version: {error}") from error
    own = {"run_id": None, "branch": None, "run_root": str(origin.path.parent)}
    config = validate_config(changed_by(origin.config() | own, overrides) | dict(values))
    assert config.branch is not None
    iteration = _iteration(config, origin)
    branch = config.branch.model_copy(update={"iteration": iteration})
    if branch.take == "everything":  # it goes on as the run did, which a roll-back may have changed
        changed = [f"{key}={value!r}" for key, value in Ledger(origin.ledger_path).values_after(iteration).items()]
        config = validate_config(changed_by(origin.config() | own, [*changed, *overrides]) | dict(values))
    config = config.model_copy(update={"branch": branch})
    _require_same_structure(before, config)
    if config.begins_at >= config.iterations:
        raise ConfigError(
            f"iterations={config.iterations}: must be above branch.iteration={branch.iteration} with "
            "branch.take=everything, which goes on counting"
        )
    check_on_this_machine(config)
    return config


def fill_branch(config: RunConfig, folder: Path) -> None:
    """Bring what a branch begins with into its folder, and its lineage into its ledger.

    Files of checkpoints never change, so they are linked.

    Args:
        config: Configuration of the branch.
        folder: Folder of the branch, which is not a run's yet.

    Raises:
        ConfigError: The other run removed the checkpoint meanwhile.
    """
    branch = config.branch
    assert branch is not None and branch.iteration is not None
    origin, ledger = RunFolder.open(config.run_root, branch.run, key=RUN), Ledger(folder / "ledger.jsonl")
    try:
        facts = origin.checkpoints.facts(branch.iteration)
        own = RunFolder(folder)
        target = own.checkpoints if branch.take == "everything" else own.origin
        for iteration in _needed_checkpoints(config):
            source = origin.checkpoints.folder(iteration)
            shutil.copytree(source, target.folder(iteration), copy_function=_link)
        for name in ("demonstrations", *(COPIED if branch.take == "everything" else ())):
            _copy(origin.path / name, folder / name)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"branch.iteration={branch.iteration}: {origin.path} has lost it meanwhile: {error}"
        ) from error
    lineage = {"run": branch.run, "from_iteration": branch.iteration, "take": branch.take}
    ledger.append("branch", config.begins_at, lineage | {"weights_digest": facts["weights_digest"]})
    if branch.take == "everything":
        for entry in Ledger(origin.ledger_path).entries:
            if entry.kind in ("commit", "evaluation") and entry.iteration <= branch.iteration:
                ledger.append(*entry)


def _needed_checkpoints(config: RunConfig) -> list[int]:
    """Return the iterations of the checkpoints that a branch begins with."""
    branch = config.branch
    assert branch is not None and branch.iteration is not None
    if branch.take != "everything":
        return [branch.iteration]
    oldest = max(branch.iteration - config.rollout.max_staleness, 0)  # rollouts may use older weights
    return sorted({0, *range(oldest, branch.iteration + 1)})


def _iteration(config: RunConfig, origin: RunFolder) -> int:
    """Return the iteration to branch off after.

    Raises:
        ConfigError: The other run has no such checkpoint.
    """
    branch, done = config.branch, origin.checkpoints.committed()
    assert branch is not None
    if not done:
        raise ConfigError(f"branch.run={branch.run}: it has no committed checkpoint; allowed are runs with one")
    iteration = done[-1] if branch.iteration is None else branch.iteration
    chosen = config.model_copy(update={"branch": branch.model_copy(update={"iteration": iteration})})
    for needed in _needed_checkpoints(chosen):
        if needed not in done:
            raise ConfigError(
                f"branch.iteration={iteration}: the run {branch.run} has no checkpoint of iteration {needed}; it has "
                f"those of {', '.join(map(str, done))}"
            )
    return iteration


def _require_same_structure(before: RunConfig, config: RunConfig) -> None:
    """Refuse a change of what the checkpoint's models, and with ``everything`` its transitions, have as shapes.

    Raises:
        ConfigError: One line with the key.
    """
    old, new = (dict(_structure(each, config.branch)) for each in (before, config))
    for key in [*old, *(new.keys() - old.keys())]:
        if old.get(key) != new.get(key):
            raise ConfigError(
                f"{key}={new.get(key)}: the run {config.branch.run} has {old.get(key)}, "  # type: ignore[union-attr]
                "which a branch keeps"
            )
    if getattr(config, "dagger", None) is not None and getattr(before, "dagger", None) is None:
        raise ConfigError(
            f"dagger: must be null: the run {config.branch.run} has no labelled steps to "  # type: ignore[union-attr]
            "go on with"
        )


def _structure(config: RunConfig, branch: BranchConfig | None) -> Iterator[tuple[str, Any]]:
    """Yield the keys whose values a branch keeps."""
    yield "job", config.job
    for key, value in config.policy.model_dump(mode="json").items():
        yield f"policy.{key}", value
    kl, off_policy = config.algorithm.kl, getattr(config, "off_policy", None)
    yield "trainer.lora", config.trainer.lora
    yield "rollout.agent.weights", "own" if config.has_own_weights else "shared"
    if config.has_own_weights:
        yield "rollout.agent.agents", list(config.agents)
    yield "algorithm.advantage", config.algorithm.advantage if config.algorithm.needs_critic else "without a critic"
    if config.algorithm.needs_critic:
        yield "critic.features", config.critic.features
        yield "critic.level", config.critic.level
    yield "algorithm.keeps_baselines", config.algorithm.keeps_baselines
    yield "algorithm.kl.changes_coef", kl.changes_coef
    yield "algorithm.kl.refresh_every", "null" if kl.refresh_every is None else "a number"
    yield "off_policy.name", None if off_policy is None else off_policy.name
    if branch is not None and branch.take == "everything" and isinstance(config, ControlConfig):
        yield "env.id", config.env.id
        for key in ("num_workers", "envs_per_worker", "num_steps"):
            yield f"rollout.{key}", getattr(config.rollout, key)
        yield "off_policy.demonstrations", None if off_policy is None else off_policy.demonstrations


def _place(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``run_root`` and of the section ``branch`` that the overrides set."""
    keys = [each.lstrip("+").partition("=")[0] for each in overrides]
    about = [each for key, each in zip(keys, overrides, strict=True) if re.fullmatch(r"run_root|branch(\..*)?", key)]
    return changed_by({}, about)


def _copy(source: Path, target: Path) -> None:
    """Copy a file or folder, if it exists."""
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.exists():
        shutil.copy2(source, target)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another file system, or owned by another user
        shutil.copy2(source, target)
