"""Updates equal those of Stable-Baselines3's TD3 with the same weights, batches and noise."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stable_baselines import GAMMA, SIZE, copy_critics, drawing, linear_layers, new_batch
from stable_baselines3 import TD3
from stable_baselines3.common.logger import Logger

from embodyflow.config.composition.compose import compose_config
from embodyflow.policies.policy_registry import build_critic, build_policy
from embodyflow.training.off_policy.twin_delayed import TwinDelayed

NOISE = 0.6  # of which the clip cuts much
WORDS = (
    *("experiment=pendulum", "algorithm=td3", "policy.hidden_size=16", f"algorithm.gamma={GAMMA}"),
    *("off_policy.target_rate=0.1", f"off_policy.target_noise={NOISE}"),
)


@pytest.fixture
def config() -> Any:
    return compose_config(list(WORDS))


def new_peer() -> TD3:
    peer = TD3(
        "MlpPolicy",
        "Pendulum-v1",
        gamma=GAMMA,
        tau=0.1,
        batch_size=SIZE,
        target_policy_noise=NOISE,
        device="cpu",
        seed=3,
        learning_rate=1e-3,
        policy_kwargs={"net_arch": [16, 16]},
    )
    peer.set_logger(Logger(None, []))
    return peer


def copy_policy(ours: Any, actor: Any) -> None:
    for layer, peers in zip([*(block[0] for block in ours.blocks), ours.action], linear_layers(actor), strict=True):
        layer.load_state_dict(peers.state_dict())


def twins(config: Any, peer: TD3) -> Any:
    """Ours with the weights of SB3's, targets included."""
    policy, critics = build_policy(config.policy, "cpu"), build_critic(config.policy, "cpu")
    learner: Any = TwinDelayed(policy, critics, config)  # type: ignore[arg-type]
    learner.restart()
    for model, peers in zip(
        learner.models, (peer.actor, peer.critic, peer.critic_target, peer.actor_target), strict=True
    ):
        (copy_policy if hasattr(peers, "mu") else copy_critics)(model, peers)
    return learner


def test_updates_are_those_of_stable_baselines3(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = new_peer()
    learner = twins(config, peer)
    before = {name: value.clone() for name, value in learner.models[0].state_dict().items()}
    ours, theirs = new_batch()
    monkeypatch.setattr(peer, "replay_buffer", SimpleNamespace(sample=lambda *args, **kwargs: theirs))
    for update in range(5):
        torch.manual_seed(update)
        peer.train(gradient_steps=1, batch_size=SIZE)
        torch.manual_seed(update)
        normals = torch.empty(SIZE, 1).normal_(0, NOISE) / NOISE
        metrics = learner.update(ours, drawing(normals), update)
        logged = peer.logger.name_to_value
        assert float(metrics["critic/loss"]) == pytest.approx(logged["train/critic_loss"], rel=1e-4)
        assert ("policy/loss" in metrics) == (update % 2 == 1)
        if update == 0:
            torch.testing.assert_close(learner.models[0].state_dict(), before, atol=0, rtol=0)
    assert float(metrics.get("policy/loss", 0)) == 0
    after = twins(config, peer)  # SB3's weights after five updates, in our layout
    for mine, peers in zip(learner.models, after.models, strict=True):
        torch.testing.assert_close(mine.state_dict(), peers.state_dict(), atol=2e-6, rtol=1e-4)
    moved = [not torch.equal(value, before[name]) for name, value in learner.models[0].state_dict().items()]
    assert all(moved)


def test_a_checkpoint_has_every_target(config: Any) -> None:
    peer = new_peer()
    learner, other = twins(config, peer), twins(config, new_peer())
    for update in range(4):
        learner.update(new_batch()[0], drawing(torch.zeros(SIZE, 1)), update)
    other.load_state_dict(learner.state_dict())
    for mine, others in zip(learner.models, other.models, strict=True):
        torch.testing.assert_close(mine.state_dict(), others.state_dict(), atol=0, rtol=0)
    assert not torch.equal(learner.models[0].action.weight, learner.models[3].action.weight)
