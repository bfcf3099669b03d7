"""Implicit Q-learning prefers the good actions of its data, and takes the updates of d3rlpy."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from embodyflow.algorithms.off_policy import advantage_weights, expectile_loss
from embodyflow.config.composition import compose
from embodyflow.policies.policy_registry import build_critic, build_policy
from embodyflow.training.off_policy.implicit_q import ImplicitQLearning
from embodyflow.training.off_policy.replay.replay_buffer import Transitions

SIZE, GAMMA = 8, 0.9
WORDS = (
    *("experiment=pendulum", "algorithm=iql", "policy.hidden_size=16", f"algorithm.gamma={GAMMA}"),
    *("off_policy.target_rate=0.1", "off_policy.inverse_temperature=2", "off_policy.largest_weight=3"),
)


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Build a learner, by further overrides."""

    def learner(*words: str) -> Any:
        (tmp_path / "replay.json").write_text('{"length": 9, "state_dim": 3, "action_dim": 1}')
        config: Any = compose.compose_config([*WORDS, f"off_policy.demonstrations={tmp_path}", *words])
        torch.manual_seed(0)
        policy, critics = build_policy(config.policy, "cpu"), build_critic(config.policy, "cpu")
        built: Any = ImplicitQLearning(policy, critics, config)  # type: ignore[arg-type]
        built.restart()
        return built

    return learner


def new_batch() -> Transitions:
    """Return transitions of which two are terminal; some advantages exceed the largest weight."""
    draws = np.random.default_rng(0)
    state, next_state = (torch.from_numpy(draws.normal(size=(SIZE, 3)).astype(np.float32)) for _ in range(2))
    action = torch.from_numpy(draws.uniform(-1, 1, (SIZE, 1)).astype(np.float32))
    reward = torch.from_numpy(draws.normal(size=SIZE).astype(np.float32)) * 3
    return Transitions(state, action, reward, GAMMA * torch.tensor([0.0] * 2 + [1.0] * (SIZE - 2)), next_state)


def test_the_loss_is_least_at_the_expectile() -> None:
    # The slopes of both sides are equal at v = 2: 0.8 · (3 - v) = 0.2 · 2 · (v - 0).
    values, guesses = torch.tensor([3.0, 0.0, 0.0]), torch.linspace(0, 3, 301)
    losses = torch.stack([expectile_loss(values - guess, 0.8) for guess in guesses])
    assert float(guesses[losses.argmin()]) == pytest.approx(2.0)
    assert float(expectile_loss(torch.tensor([1.0, -2.0]), 0.75)) == pytest.approx((0.75 * 1 + 0.25 * 4) / 2)


def test_weights_grow_with_the_advantage_up_to_their_bound() -> None:
    weights = advantage_weights(torch.tensor([0.0, 0.5, -0.5, 9.0]), 2.0, 5.0)
    torch.testing.assert_close(weights, torch.tensor([1.0, float(np.e), float(1 / np.e), 5.0]))


@pytest.mark.parametrize(("inverse_temperature", "expected"), [(20, 0.5), (0, 0.0)])
def test_the_policy_takes_the_best_actions_of_its_data(build: Any, inverse_temperature: int, expected: float) -> None:
    learner = build(
        *(f"off_policy.inverse_temperature={inverse_temperature}", "off_policy.largest_weight=100"),
        *("off_policy.expectile=0.9", "trainer.learning_rate=0.003", "critic.learning_rate=0.003"),
    )
    draws = np.random.default_rng(0)
    for update in range(600):
        action = torch.from_numpy(draws.uniform(-1, 1, (128, 1)).astype(np.float32))
        rewards = -(action[:, 0] - 0.5).square()
        state = torch.zeros(128, 3)
        learner.update(Transitions(state, action, rewards, torch.zeros(128), state), draws, update)
    mean, _ = learner._policy.model(torch.zeros(1, 3))
    assert mean.item() == pytest.approx(expected, abs=0.1)


def test_a_checkpoint_has_the_critic_of_states(build: Any) -> None:
    learner, other = build(), build()
    for update in range(3):
        learner.update(new_batch(), np.random.default_rng(0), update)
    state = copy.deepcopy(learner.state_dict())
    learner.update(new_batch(), np.random.default_rng(0), 3)
    other.load_state_dict(state)
    other.update(new_batch(), np.random.default_rng(0), 3)
    for mine, others in zip(learner.models, other.models, strict=True):
        torch.testing.assert_close(mine.state_dict(), others.state_dict(), atol=0, rtol=0)


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    return [each for each in network.modules() if isinstance(each, nn.Linear)]


def copy_ensemble(ours: Any, networks: Any) -> None:
    """Load the weights of d3rlpy's critics into our ensemble."""
    layers = list(zip(*(linear_layers(network) for network in networks), strict=True))
    for block, members in zip([*(block[0] for block in ours.blocks), ours.value], layers, strict=True):
        weight, bias = ([getattr(each, name).detach() for each in members] for name in ("weight", "bias"))
        block.load_state_dict({"weight": torch.stack(weight).mT, "bias": torch.stack(bias)[:, None]})


def copy_layers(ours: Any, last: nn.Linear, network: nn.Module) -> None:
    for layer, peers in zip([*(block[0] for block in ours.blocks), last], linear_layers(network), strict=True):
        layer.load_state_dict(peers.state_dict())


def take_over(learner: Any, modules: Any) -> None:
    """Load all weights of d3rlpy's modules."""
    policy, critics, targets, states = learner.models
    copy_layers(policy, policy.mean, modules.policy)
    policy.deviation.data.copy_(modules.policy._logstd.detach()[0])
    copy_ensemble(critics, modules.q_funcs)
    copy_ensemble(targets, modules.targ_q_funcs)
    copy_layers(states, states.value, modules.value_func)


def new_peer() -> Any:
    algos = pytest.importorskip("d3rlpy.algos", reason="d3rlpy is installed in an environment of its own")
    encoders = pytest.importorskip("d3rlpy.models.encoders")
    torch.manual_seed(3)
    encoder = encoders.VectorEncoderFactory(hidden_units=[16, 16])
    names = ("actor", "critic", "value")
    settings = {"gamma": GAMMA, "tau": 0.1, "weight_temp": 2.0, "max_weight": 3.0, "batch_size": SIZE}
    peer = algos.IQLConfig(**settings, **{f"{name}_encoder_factory": encoder for name in names}).create(device="cpu:0")
    peer.create_impl((3,), 1)
    return peer


def test_updates_are_those_of_d3rlpy(build: Any) -> None:
    peer, learner, after, batch = new_peer(), build(), build(), new_batch()
    take_over(learner, peer.impl.modules)
    before = copy.deepcopy([each.state_dict() for each in learner.models])
    theirs: Any = SimpleNamespace(
        observations=batch.state,
        actions=batch.action,
        rewards=batch.returns[:, None],
        next_observations=batch.next_state,
        terminals=(batch.discounts == 0).float()[:, None],
        intervals=torch.ones(SIZE, 1),
    )
    for update in range(8):
        logged = peer.impl.inner_update(theirs, update)
        metrics = learner.update(batch, np.random.default_rng(0), update)
        assert float(metrics["critic/loss"]) == pytest.approx(logged["q_loss"], rel=1e-4)
        assert float(metrics["critic/state_loss"]) == pytest.approx(logged["v_loss"], rel=1e-4)
        assert float(metrics["policy/loss"]) == pytest.approx(logged["actor_loss"], rel=1e-4)
    take_over(after, peer.impl.modules)
    for mine, peers, first in zip(learner.models, after.models, before, strict=True):
        torch.testing.assert_close(mine.state_dict(), peers.state_dict(), atol=2e-6, rtol=1e-4)
        assert not any(torch.equal(value, first[name]) for name, value in mine.state_dict().items())
