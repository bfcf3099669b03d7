"""An update equals one of Stable-Baselines3's SAC with the same weights, batch and noise."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stable_baselines import GAMMA, SIZE, copy_critics, drawing, linear_layers, new_batch
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger
from torch import nn

from embodyflow.config.composition.compose import compose_config
from embodyflow.policies.policy_registry import build_critic, build_policy
from embodyflow.training.off_policy.soft_actor_critic import SoftActorCritic

WORDS = ("experiment=pendulum", "policy.hidden_size=16", f"algorithm.gamma={GAMMA}", "off_policy.target_rate=0.1")


@pytest.fixture
def config() -> Any:
    return compose_config([*WORDS, "critic.learning_rate=1e-3", "trainer.learning_rate=1e-3"])


def new_peer() -> SAC:
    """SB3's SAC, whose learning rate all three models share."""
    peer = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        gamma=GAMMA,
        tau=0.1,
        batch_size=SIZE,
        device="cpu",
        seed=3,
        learning_rate=1e-3,
        policy_kwargs={"net_arch": [16, 16]},
    )
    peer.set_logger(Logger(None, []))
    return peer


def copy_linear(ours: nn.Module, theirs: nn.Linear) -> None:
    ours.load_state_dict(theirs.state_dict())


def copy_policy(ours: Any, actor: Any) -> None:
    for block, layer in zip(ours.blocks, linear_layers(actor.latent_pi), strict=True):
        copy_linear(block[0], layer)
    copy_linear(ours.mean, actor.mu)
    copy_linear(ours.log_std, actor.log_std)


def twins(config: Any, peer: SAC) -> SoftActorCritic:
    """Ours with the weights of SB3's."""
    policy, critics = build_policy(config.policy, "cpu"), build_critic(config.policy, "cpu")
    learner: Any = SoftActorCritic(policy, critics, config)  # type: ignore[arg-type]
    copy_policy(policy.model, peer.actor)
    copy_critics(critics.model, peer.critic)
    learner.restart()
    return learner


def test_updates_are_those_of_stable_baselines3(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = new_peer()
    object.__setattr__(config.off_policy.temperature, "learning_rate", 1e-3)
    learner: Any = twins(config, peer)
    ours, theirs = new_batch()
    monkeypatch.setattr(peer, "replay_buffer", SimpleNamespace(sample=lambda *args, **kwargs: theirs))
    for update in range(5):
        torch.manual_seed(update)
        peer.train(gradient_steps=1, batch_size=SIZE)
        torch.manual_seed(update)  # SB3 draws the noise of the states before that of the next states
        noise = torch.stack([torch.normal(torch.zeros(SIZE, 1), torch.ones(SIZE, 1)) for _ in range(2)])
        metrics = learner.update(ours, drawing(noise), update)
        logged = peer.logger.name_to_value
        expected = {
            "critic/loss": logged["train/critic_loss"],
            "policy/loss": logged["train/actor_loss"],
            "policy/temperature": logged["train/ent_coef"],
        }
        torch.testing.assert_close(
            {name: float(metrics[name]) for name in expected},
            {k: float(v) for k, v in expected.items()},
            atol=1e-5,
            rtol=1e-4,
        )
    after: Any = twins(config, peer)  # SB3's weights after five updates, in our layout
    for mine, peers in zip(learner.models[:2], after.models[:2], strict=True):
        torch.testing.assert_close(mine.state_dict(), peers.state_dict(), atol=2e-6, rtol=1e-4)
    copy_critics(after.models[2], peer.critic_target)
    torch.testing.assert_close(learner.models[2].state_dict(), after.models[2].state_dict(), atol=2e-6, rtol=1e-4)
    assert learner.models[3].log.item() == pytest.approx(peer.log_ent_coef.item(), abs=1e-6)


def test_critics_of_an_ensemble_are_apart(config: Any) -> None:
    words = (*WORDS, "policy.num_critics=5", "policy.critic_layer_norm=true")
    critics: Any = build_critic(compose_config(list(words)).policy, "cpu")
    state, action = torch.randn(4, 3), torch.rand(4, 1)
    values = critics.evaluate_actions(state, action)
    assert values.shape == (5, 4)
    values[2].sum().backward()
    touched = [value.grad.flatten(1).any(1).tolist() for value in critics.model.parameters()]
    assert all(each == [False, False, True, False, False] for each in touched)


def test_a_fixed_temperature_stays(config: Any) -> None:
    words = (*WORDS, "off_policy.temperature.learning_rate=0", "off_policy.temperature.initial=0.2")
    config = compose_config(list(words))
    learner: Any = SoftActorCritic(build_policy(config.policy, "cpu"), build_critic(config.policy, "cpu"), config)  # type: ignore[arg-type]
    for _ in range(2):
        assert learner.update(new_batch()[0], drawing(torch.zeros(2, SIZE, 1)), 0)[
            "policy/temperature"
        ] == pytest.approx(0.2)


def test_a_gradient_that_is_no_number_stops_the_run(config: Any) -> None:
    learner: Any = SoftActorCritic(build_policy(config.policy, "cpu"), build_critic(config.policy, "cpu"), config)  # type: ignore[arg-type]
    batch, _ = new_batch()
    batch.returns[0] = float("nan")
    with pytest.raises(FloatingPointError, match="the gradient norm is nan"):
        learner.update(batch, drawing(torch.zeros(2, SIZE, 1)), 0)
