"""Changes that would make a run faster, and by how much, from what its iterations take."""

from collections.abc import Iterator
from dataclasses import dataclass

from omegaconf import OmegaConf

from embodyflow.cli.speed.iteration_time import IterationTime
from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import validate_config
from embodyflow.config.grouped import GroupedConfig
from embodyflow.config.robots.control import ControlConfig
from embodyflow.errors import ConfigError

LEAST_GAIN = 1.05
"""Smallest gain that is worth a line."""


@dataclass(frozen=True)
class Advice:
    """A change of the configuration.

    Attributes:
        change: Keys to set, as for a run.
        gain: How many times as fast an iteration would be.
        condition: Needs or costs of the change.
        is_bound: Whether the gain is the most that is possible, and not what is expected.
    """

    change: str
    gain: float
    condition: str
    is_bound: bool = False


def advice(time: IterationTime, config: RunConfig) -> list[Advice]:
    """Return the changes that gain most and that the run's kind of job allows, each alone, best first.

    Every gain is T / T′ with the time T of an iteration now and T′ after the change. Each formula is with the change.
    """
    found = [
        *_ahead(time, config),
        *_more_workers(time, config),
        *_more_ranks(time, config),
        *_larger_micro_batches(time, config),
        *_fewer_task_runs(time, config),
        *_fewer_evaluations(time, config),
    ]
    worthwhile = [each for each in found if each.gain >= LEAST_GAIN and _is_allowed(each.change, config)]
    return sorted(worthwhile, key=lambda each: (each.is_bound, -each.gain))


def _is_allowed(change: str, config: RunConfig) -> bool:
    """Return False if the run's configuration would be refused with the change."""
    merged = OmegaConf.merge(config.model_dump(mode="json"), OmegaConf.from_dotlist(change.split()))
    try:
        validate_config(OmegaConf.to_container(merged))  # type: ignore[arg-type]
    except ConfigError:
        return False
    return True


def _gain(time: IterationTime, saved: float) -> float:
    """Return T / (T − saved)."""
    return time.total / max(time.total - saved, 1e-9)


def _ahead(time: IterationTime, config: RunConfig) -> Iterator[Advice]:
    """Roll out beside training: T′ = max(R, L + C) + E, so min(R, L + C) is saved.

    R is the wait for rows, L the rest of the nodes, C the commit and E the evaluation.
    """
    if config.rollout.max_staleness:
        return
    objective = "" if config.algorithm.old_log_probs != "recomputed" else " algorithm.old_log_probs=proximal"
    saved = min(time.rollout, time.training + time.commit)
    needs = "if rollout workers and trainer have cores of their own; rows are one version older"
    yield Advice(f"rollout.max_staleness=1{objective}", _gain(time, saved), needs)


def _more_workers(time: IterationTime, config: RunConfig) -> Iterator[Advice]:
    """Use twice as many rollout workers: T′ = T − min(R, g / 2).

    g is the time of the nodes on rollout workers that no training precedes, on the critical path. Twice as many workers
    need half of it; of that, no more is saved than the trainer waits for, R.
    """
    if isinstance(config, GroupedConfig) and config.rollout.autoscale is not None:  # it starts more itself
        return
    now = config.rollout.num_workers
    keys = f"rollout.num_workers={2 * now}"
    if isinstance(config, ControlConfig):
        if config.rollout.envs_per_worker % 2:
            return
        keys += f" rollout.envs_per_worker={config.rollout.envs_per_worker // 2}"  # the same number of rows
    elif isinstance(config, GroupedConfig) and config.rollout.num_groups < 2 * now:  # a group is played by one worker
        return
    saved = min(time.rollout, time.seconds_of(time.rollout_path) / 2)
    yield Advice(keys, _gain(time, saved), f"now {now}; if {now} more cores are free")


def _more_ranks(time: IterationTime, config: RunConfig) -> Iterator[Advice]:
    """Use twice as many trainer ranks: T′ = T − t / 2, with the time t of the trainer's nodes on the critical path.

    With rollouts ahead that is a bound: the wait for rows grows, unless rollouts take less time than training.
    """
    now = config.trainer.num_ranks
    saved = time.seconds_of(time.trainer_path) / 2
    needs = f"now {now}; if {now} more cores or devices are free"
    yield Advice(f"trainer.num_ranks={2 * now}", _gain(time, saved), needs, config.rollout.max_staleness > 0)


def _larger_micro_batches(time: IterationTime, config: RunConfig) -> Iterator[Advice]:
    """Use micro-batches of twice the size: T′ ≥ T − t / 2.

    t is the time of the trainer's nodes on the critical path. Half as many forward passes save at most half of it:
    when a pass takes as long with twice the rows, as on a device that is not busy.
    """
    trainer = config.trainer
    if time.micro_batches <= 1:
        return
    sizes = {"micro_batch_rows": trainer.micro_batch_rows, "micro_batch_tokens": trainer.micro_batch_tokens}
    for key, size in sizes.items():
        if size is not None:
            needs = f"now {size}, {time.micro_batches:.3g} per step; needs twice the memory for activations"
            yield Advice(f"trainer.{key}={2 * size}", _gain(time, time.seconds_of(time.trainer_path) / 2), needs, True)


def _fewer_task_runs(time: IterationTime, config: RunConfig) -> Iterator[Advice]:
    """Run an iteration as one task run: T′ ≥ T − O, with the time O between the nodes of the critical path."""
    if config.pipeline.task_runs == "node" and not config.rollout.max_staleness:
        needs = f"{time.rest:.2f} s are task runs, messages and waits"
        yield Advice("pipeline.task_runs=iteration", _gain(time, time.rest), needs, True)


def _fewer_evaluations(time: IterationTime, config: RunConfig) -> Iterator[Advice]:
    """Evaluate half as often: T′ = T − E / 2, with the time E of evaluations per iteration."""
    every = None if config.evaluation is None else config.evaluation.every
    if every is not None:
        yield Advice(f"evaluation.every={2 * every}", _gain(time, time.evaluation / 2), f"now {every}")
