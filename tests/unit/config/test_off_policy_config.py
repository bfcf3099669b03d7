"""Settings of off-policy training are refused in one line where they have no meaning."""

from pathlib import Path
from typing import Any

import pytest

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.compatibility import check_compatibility

PENDULUM = "experiment=pendulum"
SEEN = "experiment=drawer_open algorithm=drq"
MISTAKES = {
    "experiment=half_cheetah algorithm=sac policy=mlp_gaussian": (
        "policy.name=mlp_gaussian: learns on-policy; allowed with off_policy.name=sac is mlp_squashed"
    ),
    "experiment=reacher policy=mlp_squashed": (
        "policy.name=mlp_squashed: needs off_policy (algorithm=sac); allowed without it are mlp_gaussian and"
    ),
    f"{PENDULUM} trainer.num_ranks=2": "trainer.num_ranks=2: has no meaning with off_policy; allowed is 1",
    f"{PENDULUM} algorithm.clip_low=0.1": "algorithm.clip_low=0.1: has no meaning with off_policy; allowed is 0.2",
    f"{PENDULUM} off_policy.batch_size=1": "off_policy.batch_size=1: input should be greater than or equal to 2",
    f"{PENDULUM} off_policy.batchsize=2": "off_policy.batchsize=2: no such key; did you mean off_policy.batch_size",
    f"{PENDULUM} off_policy.demonstrations=x": (
        "off_policy.demonstrations: has no replay.json; allowed is the folder replay of an off-policy run"
    ),
    f"{PENDULUM} off_policy.potential=x": "off_policy.potential: names no module; write 'module:function'",
    f"{PENDULUM} off_policy.potential=potentials:x": "off_policy.potential: 'potentials' has no attribute 'x'",
    "experiment=half_cheetah algorithm=rlpd": (
        "off_policy.demonstrations: must be set to the folder replay of a finished run: off_policy.demonstrations=runs/"
    ),
    f"{PENDULUM} policy=mlp_deterministic": (
        "policy.name=mlp_deterministic: learns by td3; allowed with off_policy.name=sac is mlp_squashed"
    ),
    f"{PENDULUM} off_policy.num_target_critics=3": (
        "off_policy.num_target_critics=3: must be at most policy.num_critics=2"
    ),
    f"{PENDULUM} algorithm=td3 off_policy.temperature.initial=1": (
        "off_policy.temperature: allowed with off_policy.name=sac"
    ),
    f"{PENDULUM} algorithm=crossq off_policy.target_rate=0.1": (
        "off_policy.target_rate: allowed with off_policy.name=sac or off_policy.name=drq or off_policy.name=td3"
    ),
    f"{PENDULUM} algorithm=crossq policy=mlp_squashed": (
        "policy.name=mlp_squashed: learns by sac; allowed with off_policy.name=crossq is mlp_renorm"
    ),
    f"{PENDULUM} algorithm=crossq off_policy.adam_beta1=1": "off_policy.adam_beta1=1: input should be less than 1",
    f"{PENDULUM} algorithm=iql": (
        "off_policy.demonstrations: must be set to the folder replay of a finished run: off_policy.demonstrations=runs/"
    ),
    f"{PENDULUM} algorithm=iql off_policy.demonstrations=null off_policy.expectile=1": (
        "off_policy.expectile=1: input should be less than 1"
    ),
    f"{PENDULUM} off_policy.expectile=0.8": "off_policy.expectile: allowed with off_policy.name=iql",
    "experiment=push algorithm=rlpd warm_start=null": (
        "warm_start=null: must be set with off_policy, which draws from its demonstrations"
    ),
    "experiment=push algorithm=rlpd off_policy.hindsight.ratio=4": (
        "off_policy.hindsight: must be null with job=embodied, whose transitions are chunks"
    ),
    f"{PENDULUM} off_policy.hindsight.ratio=4": "env.adapter=null: must be set with off_policy.hindsight, so that the",
    f"{PENDULUM} algorithm=td3 off_policy.hindsight.strategy=final": "env.adapter=null: must be set with",
    "experiment=push policy=mlp_chunks": "policy.name=mlp_chunks: needs off_policy (algorithm=rlpd)",
    f"{SEEN} policy.state_features=[30]": ("policy.state_features=[30]: must be different indices below state_dim=30"),
    f"{SEEN} policy.state_features=[1,1]": (
        "policy.state_features=[1, 1]: must be different indices below state_dim=30"
    ),
    f"{SEEN} policy.cameras=[image,image]": (
        "policy.cameras=['image', 'image']: must name each camera once, without dots, none state"
    ),
    f"{SEEN} env.kwargs.image_size=null": "policy.image_size=64: the environment has no 'image', only state; set",
    f"{SEEN} env.kwargs.image_size=32": "policy.image_size=64: the environment has 'image' in (32, 32, 3); set",
    f"{SEEN} trainer.compile=true": "trainer.compile=true: allowed is false with policy.name=cnn_chunks; off-policy,",
    f"{SEEN} policy.num_critics=1": "off_policy.num_target_critics=2: must be at most policy.num_critics=1",
    "experiment=push policy=cnn_chunks": "policy.name=cnn_chunks: needs off_policy (algorithm=drq)",
    "experiment=push algorithm=rlpd off_policy.shift=2": "off_policy.shift: allowed with off_policy.name=drq",
    "experiment=mt10 algorithm=rlpd": (
        "env.tasks: policy.name=mlp_chunks reads no instruction, so it learns one task; there are 10"
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


def test_only_algorithms_that_stay_within_their_data_train_offline(tmp_path: Path) -> None:
    (tmp_path / "replay.json").write_text('{"length": 9, "state_dim": 3, "action_dim": 1}')
    words = [PENDULUM, f"off_policy.demonstrations={tmp_path}"]
    config: Any = compose_config([*words, "algorithm=iql"])
    assert (config.policy.name, config.flow, config.pipeline.name) == ("mlp_bounded", "sac", "offline")
    check_compatibility(config)
    check_compatibility(compose_config([*words, "algorithm=iql", "pipeline.name=sac"]))
    with pytest.raises(ConfigError, match=r"^off_policy.name=sac: overrates actions that its data lack"):
        check_compatibility(compose_config([*words, "pipeline.name=offline"]))
    with pytest.raises(ConfigError, match=r"^off_policy.demonstrations=null: must be the folder replay of a finished"):
        check_compatibility(compose_config([PENDULUM, "algorithm=iql", "off_policy.demonstrations=null"]))


def test_one_word_chooses_policy_and_settings() -> None:
    config: Any = compose_config(["experiment=half_cheetah", "algorithm=sac", "policy.hidden_size=64"])
    assert (config.policy.name, config.policy.hidden_size, config.policy.action_dim) == ("mlp_squashed", 64, 6)
    assert (config.flow, config.pipeline.name, config.trainer.max_grad_norm) == ("sac", "sac", None)
    assert config.off_policy.num_updates(100) == 0 and config.off_policy.num_updates(150) == 50


def test_rlpd_starts_from_the_demonstrations_of_an_experiment_or_from_a_folder(tmp_path: Path) -> None:
    push: Any = compose_config(["experiment=push", "algorithm=rlpd"])
    assert (push.policy.name, push.flow, push.pipeline.name) == ("mlp_chunks", "sac", "embodied_sac")
    assert push.warm_start.num_demos == 4 and not push.off_policy.entropy_backup
    check_compatibility(push)
    check_compatibility(compose_config(["experiment=push", "algorithm=rlpd", "rollout.max_staleness=2"]))
    (tmp_path / "replay.json").write_text('{"length": 9, "state_dim": 17, "action_dim": 6}')
    words = ["experiment=half_cheetah", "algorithm=rlpd", f"off_policy.demonstrations={tmp_path}"]
    cheetah: Any = compose_config(words)
    assert (cheetah.policy.num_critics, cheetah.policy.critic_layer_norm) == (10, True)
    assert (cheetah.off_policy.num_target_critics, cheetah.off_policy.policy_delay) == (2, 20)
    check_compatibility(cheetah)


REPLAYS = {
    "{": "its replay.json is damaged; allowed is the folder of an off-policy run",
    "[]": "its replay.json is damaged; allowed is",
    '{"length": 9, "state_dim": 3}': "its replay.json is damaged; allowed is",
    '{"length": 9, "state_dim": "x", "action_dim": 1}': "its replay.json is damaged; allowed is",
    '{"length": 0, "state_dim": 3, "action_dim": 1}': "holds no transitions; allowed is the folder of a run that has",
    '{"length": 9, "state_dim": 17, "action_dim": 6}': (
        "has states of 17 and actions of 6 numbers; allowed are those of the policy, 3 and 1"
    ),
    '{"length": 9, "state_dim": 3, "action_dim": 1, "cameras": {"top": [8, 8, 3]}}': (
        "has images; allowed are transitions of states, of a run with job=control"
    ),
}


@pytest.mark.parametrize(("written", "message"), REPLAYS.items())
def test_transitions_of_another_run_that_do_not_fit_are_refused(written: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "replay.json").write_text(written)
    with pytest.raises(ConfigError) as refusal:
        compose_config([PENDULUM, f"off_policy.demonstrations={tmp_path}"])
    assert str(refusal.value).startswith(f"off_policy.demonstrations={tmp_path}: {message}")
    assert len(str(refusal.value).splitlines()) == 1
