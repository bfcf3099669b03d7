"""Settings of DAgger, and what is refused before a run starts."""

from typing import Any

import pytest

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.compatibility import check_compatibility

DAGGER = ("experiment=push", "algorithm=dagger")
MISTAKES = {
    "dagger.beta=1": "dagger.beta=1: input should be less than 1",
    "dagger.gate=builtins:nothing": "dagger.gate: must be module:function, and ",
    "dagger.gate=no_such_module:gate": "dagger.gate: must be module:function, and ",
    "dagger.gate=sys:maxsize": "dagger.gate: must be module:function, and names no function",
    "dagger.gate=operator:eq dagger.beta=0.5": "dagger.beta=0.5: allowed is 0 with dagger.gate, which decides who acts",
    "warm_start=null": "warm_start=null: must be set with dagger, whose data begin with its demonstrations",
    "rollout.keep_episodes=2": "rollout.keep_episodes=2: allowed is 0 with dagger",
    "trainer.num_ranks=2": "trainer.num_ranks=2: allowed is 1 with dagger",
    "trainer.lora.rank=4": "trainer.lora: must be null with dagger",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_one_line(words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        compose_config([*DAGGER, *words.split()])
    assert str(refusal.value).startswith(MISTAKES[words]) and "\n" not in str(refusal.value)


def test_one_word_chooses_pipeline_and_settings() -> None:
    config: Any = compose_config([*DAGGER, "dagger.steps=7", "dagger.gate=operator:eq"])
    check_compatibility(config)
    assert (config.flow, config.pipeline.name, config.dagger.steps, config.rollout.group_size) == (
        "grpo",
        "dagger",
        7,
        1,
    )


def test_a_pipeline_and_the_section_belong_together() -> None:
    with pytest.raises(
        ConfigError, match=r"^dagger: must be set \(algorithm=dagger\) with a pipeline that has tasks:t"
    ):
        check_compatibility(compose_config(["experiment=push", "pipeline.name=dagger"]))
    with pytest.raises(ConfigError, match=r"^dagger: must be null with a pipeline without tasks:train_on_labels"):
        check_compatibility(compose_config([*DAGGER, "pipeline.name=embodied_grpo"]))
