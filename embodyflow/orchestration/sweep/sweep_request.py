"""The request for a sweep: its parameters, and its combinations, all checked before any process starts."""

import difflib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from embodyflow.config import RunConfig
from embodyflow.config.base import RUN_NAME_PATTERN
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.request import (
    IfExists,
    RunRequest,
    check,
    if_exists_of,
    parse_arguments,
    split_word,
    whole_number,
)
from embodyflow.orchestration.sweep.grid import Grid, combinations, grid_of, size_of, swept
from embodyflow.record.metric_names import MEASURES, METRICS, documented

Direction = Literal["maximize", "minimize"]
"""Whether the largest or the smallest value of the metric is the best."""

MAX_RUNS = 64
"""Default of the largest number of runs."""

_SIMILAR = 0.8  # of difflib: a metric's name with a slip, and not one of the user's own


@dataclass(frozen=True)
class SweepRequest:
    """The parameters of the flow ``sweep``.

    Attributes:
        sweep_id: Name of the sweep: of its folder in ``run_root`` and the beginning of its runs' names.
        experiment: Experiment of the runs; several in Hydra's grammar.
        overrides: Words ``key=value`` in the grammar of Hydra's multirun. Besides overrides of the configuration they
            may set ``algorithm``, ``iterations`` and ``seed``.
        concurrency: Most runs at a time.
        metric: Metric to rank the runs by; ``None`` is the first of
            :data:`~embodyflow.record.metric_names.MEASURES` that every finished run has.
        direction: Whether a large or a small value is good.
        max_runs: Most combinations that a sweep may have.
        stop_at_failure: Whether no further run starts after one has failed.
        if_exists: Whether a sweep that exists is refused or continued.
    """

    sweep_id: str
    experiment: str = RunRequest.experiment
    overrides: tuple[str, ...] = ()
    concurrency: int = 1
    metric: str | None = None
    direction: Direction = "maximize"
    max_runs: int = MAX_RUNS
    stop_at_failure: bool = False
    if_exists: IfExists = "refuse"

    def parameters(self) -> dict[str, Any]:
        """Return the request as parameters of the flow."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {"overrides": list(self.overrides)}


@dataclass(frozen=True)
class Combination:
    """One run of a sweep.

    Attributes:
        run_id: Name of the run.
        values: Word of each key.
        config: Checked configuration, with ``run_id``.
    """

    run_id: str
    values: Mapping[str, str]
    config: RunConfig

    @property
    def words(self) -> list[str]:
        """Words of the run's command line, without its name."""
        return [f"{key}={value}" for key, value in self.values.items()]

    def request(self) -> RunRequest:
        """Return the request for the run."""
        return replace(parse_arguments(self.words, self.config.flow), run_id=self.run_id)


@dataclass(frozen=True)
class Plan:
    """What a sweep runs.

    Attributes:
        grid: Values of each key.
        combinations: The runs, in the order in which they start.
    """

    grid: Grid
    combinations: Sequence[Combination]

    @property
    def run_root(self) -> str:
        """Folder that holds the runs' folders."""
        return self.combinations[0].config.run_root


def parse_sweep(words: Sequence[str]) -> SweepRequest:
    """Parse a command line of ``key=value`` words. Without ``sweep_id`` the name is made of the time.

    Raises:
        ConfigError: A word has another form, or a value of the sweep's own keys is not allowed.
    """
    named: dict[str, Any] = {}
    overrides = []
    for word in words:
        key, value = split_word(word, "seed=range(0,3)")
        if key in _PARSERS:
            named[key] = _PARSERS[key](word, value)
        else:
            overrides.append(word)
    if "sweep_id" not in named:
        named["sweep_id"] = f"sweep-{time.strftime('%Y%m%d-%H%M%S')}"
    return SweepRequest(**named, overrides=tuple(overrides))


@lru_cache(maxsize=1)  # a command line checks before it starts anything, and the flow checks again
def planned(request: SweepRequest) -> Plan:
    """Return the checked combinations of a sweep, without writing anything.

    Raises:
        ConfigError: One line that names the key and what is allowed and, if a combination is wrong, the combination.
    """
    _check_numbers(request)
    _check_direction(request)
    grid = grid_of((f"experiment={request.experiment}", *request.overrides))
    if (size := size_of(grid)) > request.max_runs:
        raise ConfigError(f"max_runs={request.max_runs}: the sweep has {size} runs; narrow it, or set max_runs={size}")
    width, keys = len(str(size)), swept(grid)
    if re.fullmatch(RUN_NAME_PATTERN, f"{request.sweep_id}-{size}") is None:
        raise ConfigError(
            f"sweep_id={request.sweep_id}: {request.sweep_id}-{size} must be a name of the form {RUN_NAME_PATTERN}"
        )
    checked: dict[str, Combination] = {}
    for number, values in enumerate(combinations(grid), 1):
        name = f"{request.sweep_id}-{number:0{width}d}"
        shown = f"{name} ({' '.join(f'{key}={values[key]}' for key in keys) or 'the only run'})"
        combination = _checked(name, shown, values, request)
        content = json.dumps(combination.config.model_dump(mode="json", exclude={"run_id"}), sort_keys=True)
        if content in checked:
            raise ConfigError(f"{shown}: is the same run as {checked[content].run_id}; leave one of the two values out")
        checked[content] = combination
    return Plan(grid, list(checked.values()))


def _checked(name: str, shown: str, values: Mapping[str, str], request: SweepRequest) -> Combination:
    """Check one combination.

    Raises:
        ConfigError: One line with the combination.
    """
    try:
        config = check(parse_arguments([f"{key}={value}" for key, value in values.items()]), starts=True)
        _check_metric(request.metric, config)
    except ConfigError as error:
        raise ConfigError(f"{shown}: {str(error).splitlines()[0]}") from error
    return Combination(name, values, config.model_copy(update={"run_id": name}))


def _check_metric(metric: str | None, config: RunConfig) -> None:
    """Refuse a metric that the run does not have. Metrics of the user's own functions are not known."""
    if metric is None:
        return
    if metric.startswith("eval/") and config.evaluation is None:
        raise ConfigError(
            f"metric={metric}: needs evaluation, which is null; allowed are metrics of training, rollout/…"
        )
    if not documented(metric) and (near := difflib.get_close_matches(metric, METRICS, 1, _SIMILAR)):
        raise ConfigError(f"metric={metric}: no run has it; did you mean {near[0]}?")


def _check_numbers(request: SweepRequest) -> None:
    """Check what Prefect checks of a deployment's parameters."""
    for key in ("concurrency", "max_runs"):
        if (value := getattr(request, key)) < 1:
            raise ConfigError(f"{key}={value}: must be at least 1")


def _check_direction(request: SweepRequest) -> None:
    """Refuse to rank the results that are compared without a metric by the smallest value: they are successes."""
    if request.direction == "minimize" and request.metric is None:
        raise ConfigError(
            f"direction=minimize: needs metric=…; without one runs are ranked by {MEASURES[0]} or another result, of "
            "which the largest value is the best"
        )


def _direction(word: str, value: str) -> Direction:
    for allowed in get_args(Direction):
        if value == allowed:
            found: Direction = allowed
            return found
    raise ConfigError(f"{word}: must be {' or '.join(get_args(Direction))}")


def _switch(word: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise ConfigError(f"{word}: must be true or false")
    return value == "true"


_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    "sweep_id": lambda word, value: value,
    "experiment": lambda word, value: value,
    "concurrency": lambda word, value: whole_number(word),
    "metric": lambda word, value: value,
    "direction": _direction,
    "max_runs": lambda word, value: whole_number(word),
    "stop_at_failure": _switch,
    "if_exists": lambda word, value: if_exists_of(value),
}
"""How to read the sweep's own keys, from the word and its value."""
