"""Check of a language job's golds, and selection of the prompts whose golds can be graded."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from embodyflow.config.language import LanguageConfig
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompt_config import RowsConfig
from embodyflow.prompts.prompts import Prompt, PromptSource, Split
from embodyflow.prompts.selected_prompts import SelectedPrompts
from embodyflow.rewards.gold_checks import find_ungradable, why_unchecked
from embodyflow.rewards.reward_config import BySourceConfig, CodeConfig, CustomConfig, RewardConfig
from embodyflow.seeding import derive_rng

MOST_GOLDS = 2000
"""Number of golds of a split to grade; of more, a seeded sample."""
MOST_NAMED = 3

logger = logging.getLogger(__name__)


def check_golds(config: LanguageConfig, source: PromptSource) -> PromptSource:
    """Grade golds against themselves; return the prompts that can be graded.

    Raises:
        ConfigError: A gold cannot be graded; the message names rows and column. Not raised with
            ``data.skip_ungradable``, which leaves these prompts out.
    """
    if skips_ungradable(config):
        return select_gradable(config, source)[0]
    if (reason := why_unchecked(config.reward)) is not None:
        logger.info("golds are not graded against themselves: %s", reason)
    for split in _graded_splits(config):
        number = source.num_prompts(split)
        rng = derive_rng(config.seed, "golds", split)
        sample = None if number <= MOST_GOLDS else sorted(rng.permutation(number)[:MOST_GOLDS].tolist())
        problems = _problems(config, source, split, sample)
        if problems:
            graded = number if sample is None else len(sample)
            raise ConfigError(_message(config, source, split, problems, graded, number))
    return source


def skips_ungradable(config: LanguageConfig) -> bool:
    """Return True if prompts whose golds cannot be graded are left out."""
    return isinstance(config.data, RowsConfig) and config.data.skip_ungradable


def select_gradable(config: LanguageConfig, source: PromptSource) -> tuple[PromptSource, dict[Split, int]]:
    """Return the prompts whose golds can be graded, and the number of those left out of each split.

    All golds are graded, because every rank must leave out the same prompts.

    Raises:
        ConfigError: The golds of this reward cannot be graded against themselves, or a split has no prompts left.
    """
    if (reason := why_unchecked(config.reward)) is not None:
        raise ConfigError(f"data.skip_ungradable=true: needs golds that can be graded, but {reason}; allowed is false")
    kept: dict[Split, list[int]] = {}
    left_out: dict[Split, int] = {}
    for split in _graded_splits(config):
        number = source.num_prompts(split)
        problems = _problems(config, source, split, None)
        kept[split] = [index for index in range(number) if index not in problems]
        left_out[split] = len(problems)
        if problems:
            logger.warning(_message(config, source, split, problems, number, number))
        if number and not kept[split]:
            raise ConfigError(_message(config, source, split, problems, number, number))
    return SelectedPrompts(source, kept), left_out


def _graded_splits(config: LanguageConfig) -> tuple[Split, ...]:
    """Return the splits whose responses are graded; a warm start that ends at a quality grades those of ``demo``."""
    measured = config.warm_start is not None and config.warm_start.until is not None
    return ("train", "validation", "demo") if measured else ("train", "validation")


def _problems(
    config: LanguageConfig, source: PromptSource, split: Split, sample: Sequence[int] | None
) -> dict[int, str]:
    prompts = [source.prompt(split, index) for index in range(source.num_prompts(split))]
    wanted = range(len(prompts)) if sample is None else set(sample)
    found: dict[int, str] = {}
    for reward, rows in _by_function(config.reward, prompts):
        truths = [prompts[row].ground_truth for row in rows]
        graded = [position for position, row in enumerate(rows) if row in wanted]
        problems = find_ungradable(reward, truths, _column(config), graded)
        found |= {rows[position]: reason for position, reason in problems.items()}
    return dict(sorted(found.items()))


def _by_function(reward: RewardConfig, prompts: Sequence[Prompt]) -> Iterator[tuple[RewardConfig, Sequence[int]]]:
    """Yield each function that takes texts as golds, as the only one of a reward, with the indices of its prompts."""
    function, everything = reward.function, range(len(prompts))
    if not isinstance(function, BySourceConfig):
        groups: list[tuple[Any, Sequence[int]]] = [(function, everything)]
    else:
        sources = dict.fromkeys(prompt.data_source for prompt in prompts)
        groups = [
            (function.functions.get(name, function.default), [i for i in everything if prompts[i].data_source == name])
            for name in sources
        ]
    for each, rows in groups:
        if each is not None and not isinstance(each, CodeConfig | CustomConfig):
            yield reward.model_copy(update={"function": each}), rows


def _column(config: LanguageConfig) -> str:
    return config.data.ground_truth_column if isinstance(config.data, RowsConfig) else "ground_truth"


def _message(
    config: LanguageConfig, source: PromptSource, split: Split, problems: dict[int, str], graded: int, number: int
) -> str:
    assert config.reward.function is not None
    among = f"{number}" if graded == number else f"{number} ({graded} of them graded)"
    shown = [f"{source.place(split, index)}: {problems[index]}" for index in list(problems)[:MOST_NAMED]]
    more = f"; and {len(problems) - MOST_NAMED} more" if len(problems) > MOST_NAMED else ""
    advice = "left out" if skips_ungradable(config) else "mend them or set data.skip_ungradable=true to leave them out"
    return (
        f"data.{split}: reward.function.name={config.reward.function.name} cannot grade {len(problems)} of {among} "
        f"golds; {advice}: {'; '.join(shown)}{more}"
    ).replace("\n", " ")
