"""Policies of other packages: chosen by module:Class, checked by their own classes, built by the registry."""

import subprocess
import sys
from pathlib import Path

import own_policy_models
import pytest
from acting_models import OWN_POLICY

from embodyflow.config.composition.compose import compose_config, validate_config
from embodyflow.errors import ConfigError
from embodyflow.policies.policy_registry import POLICIES, build_critic, build_policy
from embodyflow.training.language_trainer import LanguageTrainer

ROOT = Path(__file__).resolve().parents[3]
EMBODIED = "policy=own_policy_models:Embodied warm_start=null"
CONTROL = "flow=ppo experiment=reacher policy=own_policy_models:Control"
LANGUAGE = (
    "experiment=math policy=own_policy_models:Language policy.tokenizer=embodyflow.prompts.arithmetic:build_tokenizer "
    "policy.scratch={hidden_size:32,num_hidden_layers:1}"
)
MISTAKES = {
    "misspelt file": (
        "policy=tiny_vl",
        "policy=tiny_vl: allowed are act, causal_lm, cnn_chunks, diffusion, mlp_bounded, mlp_categorical, "
        "mlp_chunks, mlp_deterministic, mlp_ensemble, mlp_gaussian, mlp_renorm, mlp_squashed, openvla, openvla_l1, "
        "openvla_oft, pi0, pi05, smolvla, steered_pi0, steered_smolvla, tiny_act, tiny_openvla, tiny_openvla_l1, "
        "tiny_pi0, tiny_pi05, tiny_qwen, tiny_smolvla, tiny_steered_smolvla, tiny_vla (configs/policy), or "
        "module:Class of your own; did you mean tiny_vla?",
    ),
    "misspelt name": (
        "policy.name=tiny_vl",
        "policy.name=tiny_vl: allowed are tiny_vla, openvla, openvla_l1, smolvla, pi0, pi05, mlp_chunks, "
        "cnn_chunks, steered_smolvla, steered_pi0, act, diffusion with job=embodied (configs/policy), or module:Class "
        "of your own; did you mean tiny_vla?",
    ),
    "a path": (
        "policy=examples/own_policy.py:Policy",
        "policy=examples/own_policy.py:Policy: allowed are act, causal_lm",
    ),
    "no module": (
        "policy=nowhere.policy:Policy",
        "policy.name=nowhere.policy:Policy: cannot import module 'nowhere.policy': ModuleNotFoundError",
    ),
    "no class": (
        "policy=own_policy_models:Nobody",
        "policy.name=own_policy_models:Nobody: 'own_policy_models' has no attribute 'Nobody'",
    ),
    "no class but a number": (
        "policy=own_policy_models:A_NUMBER",
        "policy.name=own_policy_models:A_NUMBER: must be a policy class or a PolicyEntry, not int",
    ),
    "no configuration": (
        "policy=own_policy_models:NoConfig",
        "policy.name=own_policy_models:NoConfig: 'NoConfig' has no attribute 'config_class'",
    ),
    "a configuration of no policy": (
        "policy=own_policy_models:NoPolicyConfig",
        "policy.name=own_policy_models:NoPolicyConfig: its configuration must extend EmbodiedPolicyConfig, "
        "ControlPolicyConfig or CausalLMConfig of embodyflow.policies",
    ),
    "no shapes": (
        "policy=own_policy_models:NoShapes",
        "policy.name=own_policy_models:NoShapes: HalfConfig must have observation_shapes",
    ),
    "no methods": (
        "policy=own_policy_models:NoMethods",
        "policy.name=own_policy_models:NoMethods: NoMethods must have encode_instruction, evaluate, export",
    ),
    "another kind of job": (
        "policy=own_policy_models:Control",
        "policy.name=own_policy_models:Control: is for job=control; allowed are tiny_vla, openvla, openvla_l1, "
        "smolvla, pi0, pi05, mlp_chunks, cnn_chunks, steered_smolvla, steered_pi0, act, diffusion with "
        "job=embodied (configs/policy), or module:Class of your own",
    ),
    "unknown key": (
        f"policy={OWN_POLICY} policy.hiden_size=64",
        "policy.hiden_size: no such key; did you mean policy.hidden_size",
    ),
    "key of a shipped policy": (
        f"policy={OWN_POLICY} policy.vocab_size=64",
        "policy.vocab_size: no such key; did you mean policy.chunk_size",
    ),
    "wrong type": (
        f"policy={OWN_POLICY} policy.hidden_size=wide",
        "policy.hidden_size='wide': input should be a valid integer",
    ),
    "out of range": (f"policy={OWN_POLICY} policy.num_bins=1", "policy.num_bins=1: input should be greater than or"),
    "its own check": (f"{EMBODIED} policy.bound=2", "policy.bound=2.0: must be 1.0, the environment's"),
    "its own check, of a language policy": (
        f"{LANGUAGE} policy.smoothing=2",
        "policy.smoothing=2.0: must be at most 1",
    ),
    "an observation that the environment lacks": (
        "policy=own_policy_models:ReadsProprioception warm_start=null",
        "policy.name=own_policy_models:ReadsProprioception: reads 'proprioception' in (7,), the environment has no "
        "'proprioception', only state",
    ),
    "no demonstrations": (
        "policy=own_policy_models:Embodied",
        "warm_start: must be null with policy.name=own_policy_models:Embodied, which has no imitation_loss",
    ),
    "no critic": (
        f"algorithm=ppo {EMBODIED}",
        "algorithm.advantage=gae: needs a critic, and policy.name=own_policy_models:Embodied has no critic_class",
    ),
    "no features": (
        f"algorithm=ppo critic.features=policy {EMBODIED}",
        "critic.features=policy: policy.name=own_policy_models:Embodied has no features for a value head; allowed are "
        "tiny_vla, openvla, openvla_l1, smolvla, pi0, pi05, act",
    ),
    "no methods for its features": (
        "policy=own_policy_models:HasFeatures",
        "policy.name=own_policy_models:HasFeatures: HasFeatures must have evaluate_with_features, features",
    ),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_that_names_the_key(words: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(words.split())
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_a_policy_with_features_needs_no_critic_of_its_own() -> None:
    words = ["algorithm=ppo", "policy=own_policy_models:GivesFeatures", "warm_start=null"]
    with pytest.raises(ConfigError, match=r"has no critic_class$"):
        compose_config(words)
    assert compose_config([*words, "critic.features=policy"]).critic.features == "policy"


@pytest.mark.parametrize("word", [f"policy={OWN_POLICY}", f"policy.name={OWN_POLICY}"])
def test_a_class_replaces_the_section_and_its_keys_are_overrides(word: str) -> None:
    config = compose_config(["policy.hidden_size=64", word, "policy.num_bins=11"])
    assert config.policy.model_dump() == {
        "name": OWN_POLICY,
        "action_dim": 4,  # the environment's, and so is state_dim
        "chunk_size": 5,
        "state_dim": 30,
        "num_bins": 11,
        "hidden_size": 64,
    }


@pytest.mark.parametrize("words", [EMBODIED, CONTROL, LANGUAGE, f"policy={OWN_POLICY}"])
def test_a_run_keeps_the_configuration_of_its_class(words: str) -> None:
    config = compose_config(words.split())
    assert validate_config(config.model_dump(mode="json")) == config
    assert any(file.endswith(("own_policy_models.py", "own_policy/policy.py")) for file in config.warm_start_files)


def test_sizes_that_are_set_are_not_the_environments() -> None:
    with pytest.raises(ConfigError, match=r"^policy.state_dim=3: the environment's state has \(30,\)$"):
        compose_config([f"policy={OWN_POLICY}", "policy.state_dim=3"])


def test_a_control_policy_and_its_critic_are_built_by_their_classes() -> None:
    config = compose_config(CONTROL.split())
    assert type(config.policy) is own_policy_models.ControlConfig and config.policy.smoothing == 0.5
    assert type(build_policy(config.policy, "cpu")) is own_policy_models.Control
    assert type(build_critic(config.policy, "cpu")) is own_policy_models.Control.critic_class


def test_the_trainer_of_language_jobs_builds_the_class_that_is_named() -> None:
    trainer = LanguageTrainer(compose_config(LANGUAGE.split()), 0, 1)
    assert type(trainer.policy) is own_policy_models.Language


def test_an_entry_stands_for_a_class_that_is_not_imported_yet() -> None:
    config = compose_config(["policy=own_policy_models:ENTRY", "warm_start=null"])
    assert type(config.policy) is own_policy_models.EmbodiedConfig
    assert config.policy.name == "own_policy_models:ENTRY"


def test_the_shipped_configurations_are_checked_without_slow_libraries() -> None:
    command = (
        "import sys\n"
        "from embodyflow.policies.policy_config import PolicyConfig\n"
        "from embodyflow.policies.policy_registry import POLICIES, shipped_configs, validate_policy\n"
        "assert len(shipped_configs(PolicyConfig)) == len(POLICIES)\n"
        "validate_policy({'name': 'openvla', 'path': 'somewhere'}, PolicyConfig)\n"
        "print(sorted({'torch', 'transformers', 'tensordict'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_shipped_policy_is_in_the_room_of_its_kind_of_job() -> None:
    rooms = {name: entry.config.split(".")[2] for name, entry in POLICIES.items()}
    assert rooms == {name: POLICIES[name].config_class.job for name in rooms}


def test_every_reference_of_the_shipped_policies_exists() -> None:
    from embodyflow.references import resolve

    for entry in POLICIES.values():
        parts = (entry.config, entry.policy, entry.critic, entry.check)
        assert all(callable(resolve(part)) for part in parts if part is not None)
