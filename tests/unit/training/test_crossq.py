"""Updates of CrossQ: those of sb3-contrib, the joint pass by hand, and runs in one process."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from off_policy_runs import OffPolicyRun
from stable_baselines import GAMMA, SIZE, drawing, linear_layers, new_batch
from stable_baselines3.common.logger import Logger

from benchmarks.control.in_process import InProcessRun
from embodyflow.config.composition.compose import compose_config
from embodyflow.policies.policy_registry import build_critic, build_policy
from embodyflow.training.off_policy.crossq import CrossQ

WARMUP = 3
ADAM_EPSILON = 1e-4
"""A bias whose feature is positive in every row has no gradient, since its mean is subtracted: only rounding, which
Adam would scale up to a full step."""
WORDS = (
    *("experiment=pendulum", "algorithm=crossq", "policy.hidden_size=16", "policy.critic_hidden_size=24"),
    *(f"policy.renorm_warmup_steps={WARMUP}", f"algorithm.gamma={GAMMA}", "off_policy.policy_delay=2"),
    f"trainer.adam_epsilon={ADAM_EPSILON}",
)
SMALL = ("algorithm=crossq", "policy.critic_hidden_size=24", "policy.renorm_warmup_steps=20")


def new_learner(config: Any) -> Any:
    policy, critics = build_policy(config.policy, "cpu"), build_critic(config.policy, "cpu")
    learner: Any = CrossQ(policy, critics, config)  # type: ignore[arg-type]
    learner.restart()
    return learner


@pytest.fixture
def config() -> Any:
    return compose_config(list(WORDS))


def new_peer() -> Any:
    """sb3-contrib's CrossQ; its warm-up ends after one step more than it states."""
    contrib: Any = pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed")
    peer = contrib.CrossQ(
        "MlpPolicy",
        "Pendulum-v1",
        gamma=GAMMA,
        batch_size=SIZE,
        policy_delay=2,
        device="cpu",
        seed=3,
        policy_kwargs={
            "net_arch": {"pi": [16, 16], "qf": [24, 24]},
            "renorm_warmup_steps": WARMUP - 1,
            "optimizer_kwargs": {"betas": (0.5, 0.999), "eps": ADAM_EPSILON},
        },
    )
    peer.set_logger(Logger(None, []))
    peer.actor.action_dist.epsilon = 0.0  # it adds 1e-6 to the slope of tanh in log-densities, and ours adds nothing
    return peer


def renorms(network: torch.nn.Module) -> list[Any]:
    """Return the batch renormalisations of our network or of sb3-contrib's, in the order of the layers."""
    return [each for each in network.modules() if type(each).__name__.startswith("BatchRenorm")]


def renorm_state(peers: list[Any], shape: torch.Size) -> dict[str, torch.Tensor]:
    """Return the state of one of sb3-contrib's renormalisations, or of one per critic, in our layout."""
    names = {"weight": "scale", "bias": "bias", "mean": "ra_mean", "variance": "ra_var"}
    state = {
        ours: torch.stack([getattr(each, theirs).detach() for each in peers]).reshape(shape)
        for ours, theirs in names.items()
    }
    return state | {"steps": peers[0].steps.double().reshape(1)}


def copy_policy(ours: Any, actor: Any) -> None:
    layers = [*linear_layers(actor.latent_pi), actor.mu, actor.log_std]
    for mine, theirs in zip(linear_layers(ours), layers, strict=True):
        mine.load_state_dict(theirs.state_dict())
    for mine, theirs in zip(renorms(ours), renorms(actor), strict=True):
        mine.load_state_dict(renorm_state([theirs], mine.mean.shape))


def copy_critics(ours: Any, critic: Any) -> None:
    layers = zip(*(linear_layers(each) for each in critic.q_networks), strict=True)
    for mine, theirs in zip([*(block[1] for block in ours.blocks), ours.value], layers, strict=True):
        weight = torch.stack([each.weight.detach().T for each in theirs])
        mine.load_state_dict({"weight": weight, "bias": torch.stack([each.bias.detach()[None] for each in theirs])})
    norms = zip(*(renorms(each) for each in critic.q_networks), strict=True)
    for mine, peers in zip(renorms(ours), norms, strict=True):
        mine.load_state_dict(renorm_state(list(peers), mine.mean.shape))


def twins(config: Any, peer: Any) -> Any:
    """Ours with the weights and statistics of sb3-contrib's."""
    learner = new_learner(config)
    copy_policy(learner.models[0], peer.actor)
    copy_critics(learner.models[1], peer.critic)
    return learner


def test_updates_are_those_of_sb3_contrib(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight updates of the critics, of which three are warm-up, and four of the policy, of which one is not."""
    peer = new_peer()
    learner = twins(config, peer)
    before = {name: value.clone() for name, value in learner.models[0].state_dict().items()}
    ours, theirs = new_batch()
    monkeypatch.setattr(peer, "replay_buffer", SimpleNamespace(sample=lambda *args, **kwargs: theirs))
    for update in range(8):
        torch.manual_seed(update)
        peer.train(gradient_steps=1, batch_size=SIZE)
        torch.manual_seed(update)  # sb3-contrib draws the noise of the next states before that of the states
        second, first = (torch.normal(torch.zeros(SIZE, 1), torch.ones(SIZE, 1)) for _ in range(2))
        metrics = learner.update(ours, drawing(torch.stack([first, second])), update)
        logged = peer.logger.name_to_value
        assert float(metrics["critic/loss"]) == pytest.approx(float(logged["train/critic_loss"]), rel=1e-5, abs=1e-5)
        assert ("policy/loss" in metrics) == (update % 2 == 1)
        if update % 2 == 1:
            assert float(metrics["policy/loss"]) == pytest.approx(float(logged["train/actor_loss"]), abs=1e-5)
            assert float(metrics["policy/temperature"]) == pytest.approx(float(logged["train/ent_coef"]), abs=1e-6)
    after = twins(config, peer)  # sb3-contrib's weights after these updates, in our layout
    for mine, peers in zip(learner.models[:2], after.models[:2], strict=True):
        torch.testing.assert_close(mine.state_dict(), peers.state_dict(), atol=1e-5, rtol=1e-5)
    assert learner.models[2].log.item() == pytest.approx(peer.log_ent_coef.item(), abs=1e-6)
    assert not any(torch.equal(value, before[name]) for name, value in learner.models[0].state_dict().items())


def test_critics_see_both_halves_in_one_pass(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, (batch, _) = new_learner(config), new_batch()
    noise = torch.linspace(-1, 1, 2 * SIZE).reshape(2, SIZE, 1)
    with torch.no_grad():
        next_actions, _ = learner._policy.sample(batch.next_state, noise[1])
    seen: list[tuple[bool, int]] = []
    values_of = learner._critics.evaluate_actions

    def watched(state: torch.Tensor, action: torch.Tensor, members: Any = None) -> torch.Tensor:
        seen.append((learner.models[1].training, len(state)))
        return values_of(state, action, members)  # type: ignore[no-any-return]

    monkeypatch.setattr(learner._critics, "evaluate_actions", watched)
    learner.update(batch, drawing(noise), 1)
    assert seen == [(True, 2 * SIZE), (False, SIZE)]  # the critics' loss, and the policy's
    first = renorms(learner.models[1])[0]
    rows = torch.cat([torch.cat([batch.state, batch.action], 1), torch.cat([batch.next_state, next_actions], 1)])
    mean = rows.sum(0) / (2 * SIZE)
    variance = (rows - mean).square().sum(0) / (2 * SIZE - 1)
    for member in range(2):
        torch.testing.assert_close(first.mean[member, 0], 0.01 * mean)
        torch.testing.assert_close(first.variance[member, 0], 0.99 + 0.01 * variance)
    own = renorms(learner.models[0])[0]
    torch.testing.assert_close(own.mean[0], 0.01 * batch.state.mean(0))  # the policy's alone


def test_targets_pass_no_gradient_and_temperature_and_policy_wait(config: Any) -> None:
    learner, (batch, _) = new_learner(config), new_batch()
    policy = {name: value.clone() for name, value in learner.models[0].state_dict().items()}
    learner.update(batch, drawing(torch.zeros(2, SIZE, 1)), 0)
    torch.testing.assert_close(learner.models[0].state_dict(), policy, atol=0, rtol=0)
    assert learner.models[2].log.item() == 0
    assert not any(each.training for model in learner.models[:2] for each in renorms(model))


def test_a_killed_run_ends_with_the_same_weights_and_statistics(tmp_path: Path) -> None:
    run = OffPolicyRun(tmp_path / "undisturbed", SMALL)
    run.iterate(range(1, 6))
    expected = run.trainer.fingerprint()
    steps = [int(each.steps) for each in renorms(run.trainer.policy.model)]
    run.close()
    run = OffPolicyRun(tmp_path / "killed", SMALL)
    run.iterate(range(1, 4))
    run.gather(4)
    run.train(4)
    run.close()  # before the commit
    again = OffPolicyRun(tmp_path / "killed", SMALL, last=3)
    again.iterate(range(4, 6))
    assert again.trainer.fingerprint() == expected
    assert steps == [60 // 3] * 3 == [int(each.steps) for each in renorms(again.trainer.policy.model)]
    acting, trained = (each.state_dict() for each in (again.rollout.policy.model, again.trainer.policy.model))
    torch.testing.assert_close(acting, trained, atol=0, rtol=0)
    assert not any(each.training for each in renorms(again.rollout.policy.model))
    again.close()


@pytest.mark.slow
def test_pendulum_improves() -> None:
    run = InProcessRun(
        ["experiment=pendulum", "algorithm=crossq", "policy.critic_hidden_size=256", "policy.hidden_size=64"]
    )
    run.warm_start()
    before = np.mean(run.rollout.evaluate(range(10)).returns)
    for iteration in range(1, 46):
        run.iterate(iteration)
    after = np.mean(run.rollout.evaluate(range(10)).returns)
    run.trainer.close()
    assert before < -1000 and after > -500
