"""The grid of a sweep, from words in the grammar of Hydra's multirun: choices, ranges and globs."""

import itertools
from collections.abc import Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException

from embodyflow.config.composition.compose import group_files
from embodyflow.config.composition.mistakes import explain_hydra_error
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.request import split_word

Grid = Mapping[str, tuple[str, ...]]
"""Values of each key as words of a command line, in the order of the command. A key that is not swept has one."""

SEED = "seed"

_RESERVED = {
    "run_id": "the sweep names its runs <sweep_id>-<number>",
    "resume": "the same command with if_exists=resume continues a sweep",
}
"""Keys of a run that a sweep does not take, and why."""


def grid_of(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the grid that words ``key=value`` span.

    Raises:
        ConfigError: A word is not in Hydra's grammar, has no finite list of values, or its key is given twice or is
            reserved.
    """
    grid: dict[str, tuple[str, ...]] = {}
    for word in words:
        key, value = split_word(word, "seed=range(0,3)")
        if key in grid:
            raise ConfigError(f"{word}: {key} is given twice; allowed is once, with all values, as {key}=a,b")
        values = _values(word, value)
        if key in _RESERVED:
            raise ConfigError(f"{word}: is not allowed in a sweep; {_RESERVED[key]}")
        if key == "run_root" and len(values) > 1:
            raise ConfigError(f"{word}: must be one folder, which holds all runs of the sweep")
        grid[key] = values
    return grid


def size_of(grid: Grid) -> int:
    """Return the number of combinations."""
    product = 1
    for values in grid.values():
        product *= len(values)
    return product


def combinations(grid: Grid) -> list[dict[str, str]]:
    """Return the value of each key in each combination; the last key changes fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def swept(grid: Grid) -> list[str]:
    """Return the keys that have several values."""
    return [key for key, values in grid.items() if len(values) > 1]


def difference(kept: Grid, asked: Grid) -> list[str]:
    """Return a clause for each key whose values in one grid are not those in another; the order does not count."""
    clauses = []
    for key in dict.fromkeys([*kept, *asked]):
        before, now = kept.get(key), asked.get(key)
        if before is None or now is None or sorted(before) != sorted(now):
            has = "does not set it" if before is None else f"has {key}={','.join(before)}"
            clauses.append(f"{key} is left out, the sweep {has}" if now is None else f"{key}={','.join(now)}: it {has}")
    return clauses


def short_names(keys: Sequence[str], taken: Sequence[str] = ()) -> dict[str, str]:
    """Return a short name of each key for tables: its last part, or all of it where that is not unique.

    Args:
        keys: The keys.
        taken: Names that other columns have.
    """
    last = {key: key.lstrip("+").rpartition(".")[2] for key in keys}
    names = [*last.values(), *taken]
    return {key: name if names.count(name) == 1 else key.lstrip("+") for key, name in last.items()}


def _values(word: str, value: str) -> tuple[str, ...]:
    try:
        [override] = OverridesParser.create().parse_overrides([word])
        return _swept_values(word, override) if override.is_sweep_override() else (value,)
    except HydraException as error:
        raise ConfigError(explain_hydra_error(error, [word], group_files)) from error


def _swept_values(word: str, override: Override) -> tuple[str, ...]:
    if not override.is_discrete_sweep():
        raise ConfigError(
            f"{word}: has no finite list of values; allowed are a,b and choice(a,b), range(start,stop,step) and, for "
            "files of a configuration group, glob(pattern)"
        )
    pattern = override.value()
    if getattr(pattern, "shuffle", False):
        raise ConfigError(f"{word}: is in a random order that no seed repeats; allowed is the list without shuffle")
    if isinstance(pattern, Glob):
        files = group_files(override.key_or_group)
        values = tuple(pattern.filter(files))
        if not values:
            allowed = ", ".join(files) or "globs of a configuration group, such as algorithm"
            raise ConfigError(f"{word}: matches no file; allowed are {allowed}")
        return values
    values = tuple(override.sweep_string_iterator())
    if not values:
        raise ConfigError(f"{word}: has no values; allowed are ranges with at least one")
    return values
