"""Settings of DSRL, and what is refused before a run starts."""

from typing import Any

import pytest
from picture_room import WORDS

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.compatibility import check_compatibility

DSRL = ("experiment=push", "algorithm=dsrl", "policy.state_dim=30", "policy.action_dim=4")
MISTAKES = {
    "warm_start=null": "warm_start=null: must be set with off_policy.name=dsrl and policy.path=null",
    "rollout.chunk_correlation=0.5": "rollout.chunk_correlation=0.5: must be 0 with off_policy.name=dsrl",
    "policy.noise_level=0.3": "policy.noise_level=0.3: has no meaning with name=steered_smolvla",
    "policy.noise_bound=0": "policy.noise_bound=0: input should be greater than 0",
    "policy.num_critics=1": "off_policy.num_target_critics=2: must be at most policy.num_critics=1",
    "policy=tiny_smolvla": (
        "policy.name=smolvla: learns on-policy; allowed with off_policy.name=dsrl is steered_smolvla or steered_pi0"
    ),
    "off_policy.imitation_coef=0.1": "off_policy.imitation_coef: allowed with off_policy.name=sac",
    "env.tasks=[push-v3,reach-v3]": "env.tasks: policy.name=steered_smolvla reads no instruction, so it learns one",
    "rollout.mode=streaming": "rollout.mode=streaming: allowed with off_policy=null",
    "trainer.lora.rank=4": "trainer.lora=",
    "algorithm.lam=0.9": "algorithm.lam=0.9: has no meaning with off_policy; allowed is 1.0",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_one_line(words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        compose_config([*DSRL, *words.split()])
    assert str(refusal.value).startswith(MISTAKES[words]) and "\n" not in str(refusal.value)


def test_one_word_chooses_policy_pipeline_and_settings() -> None:
    config: Any = compose_config(list(DSRL))
    check_compatibility(config)
    assert (config.flow, config.pipeline.name, config.policy.name) == ("sac", "embodied_sac", "steered_smolvla")
    assert (config.policy.decision_dim, config.policy.num_action_tokens) == (4, 8 * 4)
    assert config.groups["trainer"].engine.endswith(":SteeringTrainer") and config.env.kwargs == {"image_size": 32}
    own: Any = compose_config([*DSRL, "policy.share_noise=false"])
    assert own.policy.decision_dim == 8 * 4


def test_an_environment_must_show_a_state_and_images() -> None:
    with pytest.raises(ConfigError, match=r"^policy.cameras: the environment has no 'image', only state"):
        compose_config(["experiment=embodied", "algorithm=dsrl"])
    room = [word for word in WORDS if not word.startswith(("policy=", "env.adapter.state="))]
    with pytest.raises(ConfigError, match=r"^policy.state_dim: the environment has no state, which") as refusal:
        compose_config([*room, "env.adapter.state=[]", "algorithm=dsrl"])
    assert "\n" not in str(refusal.value)


def test_a_steered_policy_needs_the_algorithm() -> None:
    with pytest.raises(ConfigError, match=r"^policy.name=steered_smolvla: needs off_policy \(algorithm=dsrl\)$"):
        compose_config(["experiment=push", "policy=tiny_steered_smolvla", "policy.state_dim=30", "policy.action_dim=4"])
