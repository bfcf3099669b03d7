"""Seeds as rows: no seed is in two splits, and those of validation never move."""

import pytest

from embodyflow.errors import ConfigError
from embodyflow.prompts.prompt_config import SeedsConfig
from embodyflow.prompts.prompt_registry import build_prompt_source
from embodyflow.prompts.seeds import SeedPrompts

SPLITS = ("train", "validation", "demo")


def seeds_of(source: SeedPrompts, split: str) -> list[int]:
    return [source.prompt(split, index).row["seed"] for index in range(source.num_prompts(split))]


def test_each_seed_is_in_one_split() -> None:
    source = build_prompt_source(SeedsConfig(num_train=7, num_validation=3, num_demos=2, first_seed=5), None, 1)
    found = {split: seeds_of(source, split) for split in SPLITS}
    assert found == {"validation": [5, 6, 7], "demo": [8, 9], "train": list(range(10, 17))}
    assert source.place("demo", 1) == "seed 9"
    with pytest.raises(IndexError, match="index=2: allowed are 0 to 1, the demo seeds"):
        source.prompt("demo", 2)


def test_more_seeds_to_train_on_leave_those_of_validation() -> None:
    few, many = SeedPrompts(SeedsConfig(num_train=5)), SeedPrompts(SeedsConfig(num_train=50))
    assert seeds_of(few, "validation") == seeds_of(many, "validation")


def test_a_row_has_the_message_and_no_demonstration() -> None:
    source = SeedPrompts(SeedsConfig(prompt="Answer with one action. "))
    assert source.prompt("train", 0).messages == [{"role": "user", "content": "Answer with one action. "}]
    with pytest.raises(ConfigError, match=r"^data=seeds: has no demonstrations of its own"):
        source.demonstration_turns("demo", 0)
