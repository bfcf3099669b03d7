"""The iterations that a reproduction repeats, and the checkpoints from which it starts."""

import re
from dataclasses import dataclass

from embodyflow.config import RunConfig
from embodyflow.errors import ConfigError
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder

WHOLE_STATE = ("language", "agent", "embodied")
"""Jobs whose later iterations start from a checkpoint alone; others also have open episodes or a replay buffer."""


@dataclass(frozen=True)
class Span:
    """Consecutive iterations.

    Attributes:
        first, last: First and last iteration, from 1.
    """

    first: int
    last: int

    def checkpoints(self, max_staleness: int) -> list[int]:
        """Return the iterations whose checkpoints are needed: the reference, and those that rollouts act with."""
        return sorted({0, *range(max(self.first - 1 - max_staleness, 0), self.first)})


def span_of(asked: str | None, folder: RunFolder, config: RunConfig, ledger: Ledger) -> Span:
    """Return the iterations to repeat, up to one that trained with other values because of a roll-back.

    Args:
        asked: Text ``first..last``; ``None`` means all committed iterations.
        folder: Folder of the run.
        config: Configuration of the run.
        ledger: Ledger of the run.

    Raises:
        ConfigError: The text is malformed, or the run's folder no longer has what the iterations start from.
    """
    done = max((entry.iteration for entry in ledger.entries if entry.kind == "commit"), default=0)
    if done == 0:
        raise ConfigError(f"{folder.path}: has committed no iteration, so there is nothing to reproduce")
    last = min(done, _end_of_schedule(config, done))
    span = Span(1, last) if asked is None else _parse(asked, last)
    values = ledger.values_after(span.first - 1)
    same = (each for each in range(span.last, span.first, -1) if ledger.values_after(each - 1) == values)
    span = Span(span.first, next(same, span.first))
    _check_start(span, folder, config)
    return span


def _end_of_schedule(config: RunConfig, done: int) -> int:
    """Return the last iteration whose learning rate and KL coefficient the configuration tells.

    More iterations of a resumed run stretch the schedule, from an iteration that no file names.
    """
    trainer = config.trainer
    is_constant = trainer.schedule.name == "constant" and config.algorithm.kl.final_coef is None
    return done if is_constant or trainer.schedule_iterations is not None else config.iterations


def _parse(asked: str, last: int) -> Span:
    found = re.fullmatch(r"(\d+)\.\.(\d+)", asked)
    if found is None:
        raise ConfigError(f"--iterations {asked}: must be of the form first..last, such as 1..{last}")
    span = Span(int(found[1]), int(found[2]))
    if not 1 <= span.first <= span.last <= last:
        raise ConfigError(f"--iterations {asked}: must lie in 1..{last}, the iterations that can be reproduced")
    return span


def _check_start(span: Span, folder: RunFolder, config: RunConfig) -> None:
    if span.first > 1 and config.kind not in WHOLE_STATE:
        raise ConfigError(
            f"--iterations {span.first}..{span.last}: with job={config.kind} a reproduction starts at 1; a later start "
            f"is possible with job={', '.join(WHOLE_STATE)}"
        )
    kept, staleness = folder.checkpoints.committed(), config.rollout.max_staleness
    missing = [each for each in span.checkpoints(staleness) if each not in kept]
    if not missing:
        return
    starts = [each + 1 for each in kept[:-1] if {*Span(each + 1, each + 1).checkpoints(staleness)} <= {*kept}]
    raise ConfigError(
        f"--iterations {span.first}..{span.last}: needs the checkpoints of iterations {_listed(missing)}, which "
        f"the run does not have; a reproduction can start at {_listed(starts) or 'no iteration'}"
    )


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
