"""Settings of off-policy training are refused in one line where they have no meaning."""

from typing import Any

import pytest

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.compatibility import check_compatibility

PENDULUM = "experiment=pendulum"
MISTAKES = {
    "experiment=half_cheetah algorithm=sac policy=mlp_gaussian": (
        "policy.name=mlp_gaussian: learns on-policy; allowed with off_policy is mlp_squashed"
    ),
    "experiment=reacher policy=mlp_squashed": (
        "policy.name=mlp_squashed: needs off_policy (algorithm=sac); allowed without it are mlp_gaussian and"
    ),
    f"{PENDULUM} trainer.num_ranks=2": "trainer.num_ranks=2: has no meaning with off_policy; allowed is 1",
    f"{PENDULUM} algorithm.clip_low=0.1": "algorithm.clip_low=0.1: has no meaning with off_policy; allowed is 0.2",
    f"{PENDULUM} off_policy.batch_size=1": "off_policy.batch_size=1: input should be greater than or equal to 2",
    f"{PENDULUM} off_policy.batchsize=2": "off_policy.batchsize=2: no such key; did you mean off_policy.batch_size",
    f"{PENDULUM} off_policy.demonstrations=x": (
        "off_policy.demonstrations: has no replay.json; allowed is the folder replay of a run by algorithm=sac"
    ),
    "experiment=embodied algorithm=sac": (
        "algorithm=sac: is for control jobs; it learns from single steps; allowed with job=embodied are grpo"
    ),
}


@pytest.mark.parametrize("words", MISTAKES, ids=lambda words: words.rpartition(" ")[2])
def test_a_mistake_is_one_line(words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        compose_config(words.split())
    assert str(refusal.value).startswith(MISTAKES[words]) and "\n" not in str(refusal.value)


def test_a_pipeline_and_the_section_belong_together() -> None:
    config: Any = compose_config(
        ["experiment=reacher", "algorithm=ppo", "flow=sac", "pipeline.name=sac", "algorithm.advantage=grpo"]
    )
    with pytest.raises(ConfigError, match=r"^off_policy: must be set \(algorithm=sac\) with a pipeline that has"):
        check_compatibility(config)
    config = compose_config(["experiment=pendulum", "flow=ppo", "pipeline.name=ppo_control"])
    with pytest.raises(ConfigError, match=r"^algorithm.advantage=grpo: needs a pipeline without a critic"):
        check_compatibility(config)
    check_compatibility(compose_config(["experiment=half_cheetah", "algorithm=sac"]))


def test_one_word_chooses_policy_and_settings() -> None:
    config: Any = compose_config(["experiment=half_cheetah", "algorithm=sac", "policy.hidden_size=64"])
    assert (config.policy.name, config.policy.hidden_size, config.policy.action_dim) == ("mlp_squashed", 64, 6)
    assert (config.flow, config.pipeline.name, config.trainer.max_grad_norm) == ("sac", "sac", None)
    assert config.off_policy.num_updates(100) == 0 and config.off_policy.num_updates(150) == 50
