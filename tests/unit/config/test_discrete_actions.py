"""Control jobs with Discrete actions: the action space chooses the policy, and what does not fit is one line."""

import pytest

from embodyflow.config.composition.compose import compose_config, validate_config
from embodyflow.errors import ConfigError
from embodyflow.policies.control.mlp_categorical.configuration_mlp_categorical import MLPCategoricalConfig
from embodyflow.policies.control.mlp_gaussian.configuration_mlp_gaussian import MLPGaussianConfig

REACHER = ["experiment=reacher", "algorithm=ppo"]
OPEN = ["policy.state_dim=null", "policy.action_dim=null"]


@pytest.mark.parametrize(("env_id", "state_dim", "num_actions"), [("CartPole-v1", 4, 2), ("Acrobot-v1", 6, 3)])
@pytest.mark.parametrize("words", [OPEN, ["policy=mlp_categorical"], ["policy=mlp_categorical", *OPEN]])
def test_a_discrete_space_chooses_the_categorical_policy(
    env_id: str, state_dim: int, num_actions: int, words: list[str]
) -> None:
    config = compose_config([*REACHER, f"env.id={env_id}", *words, "policy.hidden_size=32"])
    assert config.policy == MLPCategoricalConfig(state_dim=state_dim, num_actions=num_actions, hidden_size=32)
    assert validate_config(config.model_dump(mode="json")) == config


def test_normalisation_is_kept() -> None:
    words = ["env.id=CartPole-v1", *OPEN, "policy.normalize_observations=true", "policy.observation_clip=5"]
    policy = compose_config([*REACHER, *words]).policy
    expected = {"normalize_observations": True, "observation_clip": 5.0}
    assert policy == MLPCategoricalConfig(state_dim=4, num_actions=2, **expected)


def test_a_box_keeps_the_gaussian_policy() -> None:
    policy = compose_config([*REACHER, "env.id=Pendulum-v1", *OPEN]).policy
    assert policy == MLPGaussianConfig(state_dim=3, action_dim=1)


def test_a_discrete_observation_is_flattened_by_a_wrapper() -> None:
    words = ["policy=mlp_categorical", "env.adapter.wrappers=[gymnasium.wrappers:FlattenObservation]"]
    policy = compose_config([*REACHER, "env.id=FrozenLake-v1", "env.max_steps=100", *words]).policy
    assert policy == MLPCategoricalConfig(state_dim=16, num_actions=4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["env.id=CartPole-v1", "policy.state_dim=4", "policy.action_dim=1"],
            "policy.name=mlp_gaussian: has continuous actions, the environment's are Discrete(2); allowed is "
            "policy=mlp_categorical, or policy.action_dim=null, which chooses it",
        ),
        (
            ["policy=mlp_categorical"],
            "policy.name=mlp_categorical: chooses among numbered actions, the environment's are Box(-1.0, 1.0, (2,), "
            "float32); allowed is policy=mlp_gaussian or another policy for continuous actions",
        ),
        (
            ["env.id=CartPole-v1", "policy=mlp_categorical", "policy.num_actions=3"],
            "policy.num_actions=3: the environment has 2 actions",
        ),
        (
            ["env.id=CartPole-v1", "policy=mlp_categorical", "policy.action_dim=2"],
            "policy.action_dim=2: input should be 1",
        ),
        (
            ["env.id=CartPole-v1", *OPEN, "policy.initial_log_std=-1"],
            "policy.initial_log_std: allowed with policy.name=mlp_gaussian",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config([*REACHER, *words])
    assert str(caught.value) == message
