import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from tensordict import TensorDict

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.tiny_vla.configuration_tiny_vla import TinyVLAConfig
from embodyflow.policies.embodied.tiny_vla.policy_tiny_vla import TinyVLAPolicy
from embodyflow.policies.env_match import check_match

SIZES = {"state_dim": 6, "action_dim": 2, "chunk_size": 3, "num_bins": 8, "hidden_size": 16}


def new_policy(**sizes: Any) -> TinyVLAPolicy:
    torch.manual_seed(0)
    return TinyVLAPolicy(TinyVLAConfig(**(SIZES | sizes)), "cpu")


def observe(policy: TinyVLAPolicy, num_rows: int) -> dict[str, np.ndarray]:
    rng, size = np.random.default_rng(0), policy.config.image_size
    observation = {
        "state": rng.standard_normal((num_rows, 6)).astype(np.float32),
        "instruction_ids": np.stack([policy.encode_instruction("open the drawer")] * num_rows),
        "image": rng.integers(256, size=(num_rows, size or 1, size or 1, 3), dtype=np.uint8),
    }
    return observation


def as_batch(policy: TinyVLAPolicy, observation: dict[str, np.ndarray], tokens: np.ndarray) -> TensorDict:
    """Make each observation a row of three decisions, of which only the middle one was taken."""
    num_rows = len(tokens)
    columns = {"instruction_ids": torch.from_numpy(observation["instruction_ids"])}
    taken = {"action_tokens": tokens, "state": observation["state"], "image": observation["image"]}
    for name, values in taken.items():
        columns[name] = torch.zeros(num_rows, 3, *values.shape[1:], dtype=torch.from_numpy(values).dtype)
        columns[name][:, 1] = torch.from_numpy(values)
    columns["loss_mask"] = torch.zeros(num_rows, 3, policy.num_tokens, dtype=torch.bool)
    columns["loss_mask"][:, 1] = True
    return TensorDict(columns, batch_size=[num_rows])


def test_a_greedy_decision_is_the_most_probable() -> None:
    policy = new_policy()
    observation = observe(policy, 4)
    greedy = policy.act(observation, None, 1.0)
    uniforms = np.random.default_rng(1).random((4, 6), dtype=np.float32)
    sampled, again = (policy.act(observation, uniforms, 1.0) for _ in range(2))
    assert np.array_equal(sampled.tokens, again.tokens)
    assert (greedy.log_probs >= sampled.log_probs).all() and (greedy.tokens != sampled.tokens).any()


def test_only_tokens_inside_the_mask_count_and_have_gradients() -> None:
    policy = new_policy()
    observation = observe(policy, 2)
    batch = as_batch(policy, observation, policy.act(observation, None, 1.0).tokens)
    whole, _ = policy.evaluate(batch, 1.0)
    batch["loss_mask"][0, 1, 2:] = False  # the episode ended after the first of three actions
    cut, _ = policy.evaluate(batch, 1.0)
    assert torch.equal(cut[0, 1, :2], whole[0, 1, :2]) and not cut[0, 1, 2:].any()
    assert torch.equal(cut[1], whole[1])
    cut[0, 1, 2:].sum().backward()
    assert not any(p.grad.any() for p in policy.model.parameters())


def test_the_imitation_loss_by_hand() -> None:
    policy = new_policy()
    model = policy.model
    torch.nn.init.zeros_(model.head.coefficients.weight)
    torch.nn.init.zeros_(model.head.coefficients.bias)  # all bins are equally probable
    observation = {name: torch.from_numpy(values) for name, values in observe(policy, 2).items()}
    actions = torch.zeros(2, 3, 2)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    loss = policy.imitation_loss(observation, actions, mask, sigma=1.0, uniforms=torch.zeros(0))
    assert loss.item() == pytest.approx(4 * 2 * math.log(8), rel=1e-6)  # 4 actions of 2 dimensions
    actions[1, 1:] = 0.9  # after the end
    assert policy.imitation_loss(
        observation, actions, mask, sigma=1.0, uniforms=torch.zeros(0)
    ).item() == pytest.approx(loss.item())


def test_states_are_standardised_by_demonstrations() -> None:
    policy = new_policy()
    states = torch.tensor([[1.0, 5, 0, 0, 0, 0], [3.0, 5, 0, 0, 0, 0]])
    policy.set_normalization(states, torch.zeros(len(states), 4))
    embed = policy.model.embed
    assert embed.state_mean.tolist() == [2, 5, 0, 0, 0, 0]
    # A feature that did not vary is not divided by zero.
    np.testing.assert_allclose(embed.state_std, [math.sqrt(2), 0.01, 0.01, 0.01, 0.01, 0.01], rtol=1e-6)
    policy.set_normalization(states[:1], torch.zeros(1, 4))  # one demonstration of one step
    np.testing.assert_allclose(embed.state_std, [0.01] * 6, rtol=1e-6)


class Room(gym.Env):
    def __init__(self, actions: int = 2, **spaces: Box) -> None:
        self.observation_space = Dict(spaces)
        self.action_space = Box(-1, 1, (actions,))


STATE, IMAGE = Box(-1, 1, (6,)), Box(0, 255, (16, 16, 3), np.uint8)


@pytest.mark.parametrize(
    ("sizes", "env", "message"),
    [
        ({"state_dim": 7}, Room(state=STATE), r"policy.state_dim=7: .* \(6,\)"),
        ({}, Room(image=IMAGE), r"policy.state_dim=6: .* None"),
        (
            {"image_size": 16},
            Room(state=STATE),
            r"policy.image_size=16: .* has no 'image', only state; set .*_size=16",
        ),
        ({"image_size": 32}, Room(state=STATE, image=IMAGE), r"policy.image_size=32: .* \(16, 16, 3\)"),
        (
            {"image_size": 16, "cameras": ("image", "wrist_image")},
            Room(state=STATE, image=IMAGE),
            "policy.image_size=16: the environment has no 'wrist_image', only image, state",
        ),
        ({"action_dim": 3}, Room(state=STATE), r"policy.action_dim=3: .* \(2,\)"),
    ],
)
def test_a_mismatch_with_the_environment_is_refused(sizes: dict[str, Any], env: Room, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_match(TinyVLAConfig(**(SIZES | sizes)), env)


def test_a_policy_may_ignore_observations() -> None:
    check_match(TinyVLAConfig(**SIZES), Room(state=STATE, image=IMAGE))
    sizes = SIZES | {"state_dim": 0, "image_size": 16}
    check_match(TinyVLAConfig(**sizes), Room(state=STATE, image=IMAGE))
