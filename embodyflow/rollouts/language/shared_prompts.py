"""Check that a language job does not train on what it is evaluated on."""

import json
import logging
from collections.abc import Callable, Hashable, Iterator
from typing import TypeAlias

from embodyflow.config.language import LanguageConfig
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompt_config import RowsConfig
from embodyflow.prompts.prompts import Prompt, PromptSource, Split

MOST_NAMED = 3

Key: TypeAlias = Callable[[Prompt], Hashable]

logger = logging.getLogger(__name__)


def check_shared_prompts(config: LanguageConfig, source: PromptSource) -> None:
    """Check that no row of ``data.validation`` is also one to train on, or to imitate.

    Rows are equal if their prompts are, apart from whitespace, and their ground truths; demonstrations need none, so
    their prompts decide.

    Raises:
        ConfigError: Rows are equal; the message names some. Not raised with ``data.shared_prompts=keep``, which logs
            them.
    """
    if not isinstance(config.data, RowsConfig):
        return
    splits: tuple[tuple[Split, Key], ...] = (("train", _row), ("demo", _prompt))
    for split, key in splits:
        shared = list(_shared(source, split, key))
        if not shared:
            continue
        named = "; ".join(
            f"{source.place(split, row)} is {source.place('validation', at)}" for row, at in shared[:MOST_NAMED]
        )
        more = f"; and {len(shared) - MOST_NAMED} more" if len(shared) > MOST_NAMED else ""
        found = f"data.{split}: {len(shared)} of {source.num_prompts(split)} rows are also in data.validation"
        if config.data.shared_prompts == "error":
            raise ConfigError(
                f"{found}, so an evaluation would measure what the policy was shown: {named}{more}; remove them, or "
                "set data.shared_prompts=keep"
            )
        logger.warning("%s: %s%s", found, named, more)


def _shared(source: PromptSource, split: Split, key: Key) -> Iterator[tuple[int, int]]:
    """Yield the index of each row of a split that is in the validation split, with its index there."""
    places: dict[Hashable, int] = {}
    for index in range(source.num_prompts("validation")):
        places.setdefault(key(source.prompt("validation", index)), index)
    for index in range(source.num_prompts(split) if places else 0):
        if (place := places.get(key(source.prompt(split, index)))) is not None:
            yield index, place


def _prompt(prompt: Prompt) -> str:
    asked = prompt.text if prompt.messages is None else json.dumps(prompt.messages, sort_keys=True, default=str)
    return " ".join(str(asked).split())


def _row(prompt: Prompt) -> tuple[str, str]:
    return _prompt(prompt), str(prompt.ground_truth).strip()
