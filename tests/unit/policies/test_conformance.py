"""Requirements on every policy that acts: the shipped ones and the example of another package's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from acting_models import MODELS, OWN_POLICY, ActingModel, observe
from policy_rows import (
    as_batch,
    assert_blank_rows_take_part,
    assert_evaluate_agrees_with_act,
    assert_rows_are_independent,
    uniforms_for,
)

from embodyflow.policies.policy_config import ActingPolicyConfig
from embodyflow.policies.policy_registry import POLICIES, build_critic, find_policy, shipped_configs, validate_policy


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def model(request: pytest.FixtureRequest) -> ActingModel:
    return request.param


@pytest.fixture
def policy(model: ActingModel) -> Any:
    return model.make()


def test_every_shipped_policy_that_acts_is_tested() -> None:
    acting = {name for name, entry in POLICIES.items() if entry.config_class in shipped_configs(ActingPolicyConfig)}
    assert {model.make().config.name for model in MODELS.values()} == acting | {OWN_POLICY}


def test_the_configuration_names_the_policy_and_survives_json(policy: Any) -> None:
    section = policy.config.model_dump(mode="json")
    assert validate_policy(section, ActingPolicyConfig) == policy.config
    assert type(find_policy(section["name"]).build_policy(policy.config, "cpu")) is type(policy)


def test_a_row_is_bit_identical_whichever_rows_are_beside_it(policy: Any) -> None:
    assert_rows_are_independent(policy, observe(policy, 8))


def test_evaluate_agrees_with_act(policy: Any) -> None:
    assert_evaluate_agrees_with_act(policy, observe(policy, 5))


def test_uniforms_are_all_the_randomness_of_a_decision(policy: Any) -> None:
    observation, uniforms = observe(policy, 4), uniforms_for(policy, 4)
    first, same = (policy.act(observation, uniforms, 1.0) for _ in range(2))
    other, greedy = (policy.act(observation, draws, 1.0) for draws in (1 - uniforms, None))
    assert np.array_equal(first.tokens, same.tokens) and np.array_equal(first.actions, same.actions)
    assert (first.tokens != other.tokens).any() and (first.tokens != greedy.tokens).any()


@pytest.mark.parametrize("num_rows", [0, 2])
def test_rows_without_a_decision_take_part_in_forward_and_backward(policy: Any, num_rows: int) -> None:
    assert_blank_rows_take_part(policy, observe(policy, 2), num_rows)


def test_an_exported_policy_acts_as_before(model: ActingModel, policy: Any, tmp_path: Path) -> None:
    weights = {name: value.numpy() + 0.125 for name, value in policy.model.state_dict().items()}
    policy.export(weights, tmp_path)
    policy.model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    loaded, observation, uniforms = model.load(policy.config, tmp_path), observe(policy, 3), uniforms_for(policy, 3)
    assert loaded.model.state_dict().keys() == weights.keys()
    for name, value in loaded.model.state_dict().items():
        np.testing.assert_array_equal(value, weights[name], err_msg=name)
    left, right = (each.act(observation, uniforms, 1.0) for each in (loaded, policy))
    for name in ("tokens", "log_probs", "actions"):
        assert np.array_equal(getattr(left, name), getattr(right, name))


def test_the_imitation_loss_sums_over_actions_inside_the_mask(policy: Any) -> None:
    if not find_policy(policy.config.name).imitates:
        pytest.skip("starts from no demonstrations")
    seen = {name: torch.from_numpy(values) for name, values in observe(policy, 2).items()}
    generator = torch.Generator().manual_seed(0)
    actions = torch.rand(2, policy.horizon, policy.config.action_dim, generator=generator) - 0.5
    uniforms = torch.rand(2, policy.num_imitation_draws, generator=generator)
    mask = torch.zeros(2, policy.horizon, dtype=torch.bool)

    def loss() -> float:
        return float(policy.imitation_loss(seen, actions, mask, 1.0, uniforms).detach())

    assert loss() == 0
    mask[0] = True
    first = loss()
    mask[1] = True
    both = loss()
    mask[0] = False
    assert first > 0 and both == pytest.approx(first + loss(), rel=1e-4)


def test_one_pass_gives_log_probs_and_the_features_of_decisions(policy: Any) -> None:
    if not policy.config.has_features:
        pytest.skip("has no features for a value head")
    observation = observe(policy, 3)
    batch = as_batch(policy, observation, policy.act(observation, None, 1.0).tokens)
    log_probs, entropy, features = policy.evaluate_with_features(batch, 1.6)
    expected = (*policy.evaluate(batch, 1.6), policy.features(batch))
    for found, wanted in zip((log_probs, entropy, features), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert features.shape == (3, policy.feature_size) and features.std(0).all(), "features tell observations apart"
    (log_probs.sum() + features.sum()).backward()
    assert any(value.grad is not None and value.grad.any() for value in policy.model.parameters())
    others = batch.clone()
    others["action_tokens"][:, 1] = torch.from_numpy(policy.act(observation, uniforms_for(policy, 3), 1.0).tokens)
    torch.testing.assert_close(policy.evaluate_with_features(others, 1.6)[2], features, atol=1e-6, rtol=1e-5)
    batch["loss_mask"].zero_()
    log_probs, _, blank = policy.evaluate_with_features(batch, 1.6)
    assert blank.shape == policy.features(batch).shape == (1, policy.feature_size) and not log_probs.any()


def test_a_critic_values_decisions_and_starts_from_the_policy(policy: Any) -> None:
    if getattr(policy.config, "off_policy", False):
        pytest.skip("its critics value actions: training/test_soft_actor_critic.py")
    critic = build_critic(policy.config, "cpu")
    critic.start_from(policy.model.state_dict())
    observation = observe(policy, 3)
    batch = as_batch(policy, observation, policy.act(observation, None, 1.0).tokens)
    values = critic.evaluate(batch)
    assert values.shape == (3, 3) and values.dtype == torch.float32 and not values[:, [0, 2]].any()
    ((values - 1.0) ** 2).sum().backward()
    assert all(parameter.grad is not None for parameter in critic.model.parameters() if parameter.requires_grad)
    critic.model.zero_grad()
    batch["loss_mask"].zero_()
    blank = critic.evaluate(batch)
    blank.sum().backward()
    assert not blank.any()
    assert not any(parameter.grad.any() for parameter in critic.model.parameters() if parameter.grad is not None)
