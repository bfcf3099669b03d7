"""An iteration of a control job equals one of Stable-Baselines3's PPO from the same rows, weights and mini-batches."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv
from trainers import new_trainer

import tasks
from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.seeding import derive_seed
from embodyflow.training.fsdp_trainer import FSDPTrainer
from embodyflow.training.steps.micro_batches import draw_minibatches
from embodyflow.types import Batch

NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCHES = 2, 60, 3, 4
WORDS = (
    *("experiment=reacher", "algorithm=ppo", "env.max_steps=15", "policy.state_dim=null", "policy.action_dim=null"),
    *(f"rollout.num_workers={NUM_ENVS}", "rollout.envs_per_worker=1"),
    *(f"rollout.num_steps={NUM_STEPS}", f"trainer.epochs={EPOCHS}", f"critic.epochs={EPOCHS}"),
    f"trainer.num_minibatches={MINIBATCHES}",
)
CALL = SimpleNamespace(
    positions=np.arange(NUM_ENVS * NUM_STEPS),
    total_rows=NUM_ENVS * NUM_STEPS,
    seed=3,
    iteration=1,
    policy_version=0,
    node_id="train_actor_critic",
)


class Watch(BaseCallback):
    """Records every step's outputs before SB3 bootstraps the rewards of truncated episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[SimpleNamespace] = []

    def _on_step(self) -> bool:
        seen = {name: self.locals[name] for name in ("rewards", "dones", "new_obs", "infos")}
        self.steps.append(SimpleNamespace(**{name: np.copy(value) for name, value in seen.items()}))
        return True


@pytest.fixture(params=["Hopper-v5", "CartPole-v1"])
def config(request: pytest.FixtureRequest) -> RunConfig:
    """Continuous actions, which a Gaussian samples, and discrete ones, which a categorical policy samples."""
    return compose_config([*WORDS, f"env.id={request.param}"])


@pytest.fixture
def peer(config: RunConfig) -> PPO:
    """SB3's PPO with the same settings."""
    trainer, algorithm = config.trainer, config.algorithm
    assert algorithm.clip_low == algorithm.clip_high and algorithm.entropy_coef == 0.0
    return PPO(
        "MlpPolicy",
        DummyVecEnv([lambda: gym.make(config.env.id, max_episode_steps=config.env.max_steps)] * NUM_ENVS),
        learning_rate=trainer.learning_rate,
        n_steps=NUM_STEPS,
        batch_size=NUM_ENVS * NUM_STEPS // MINIBATCHES,
        n_epochs=EPOCHS,
        gamma=algorithm.gamma,
        gae_lambda=algorithm.lam,
        clip_range=algorithm.clip_low,
        max_grad_norm=trainer.max_grad_norm,
        seed=0,
        device="cpu",
    )


def rows_of(peer: PPO, watch: Watch, dtype: np.dtype[Any]) -> Batch:
    """Return SB3's rollout as our rows, one per episode, in the order in which SB3 flattens them."""
    buffer, pieces = peer.rollout_buffer, []
    for env in range(NUM_ENVS):
        ends = [t for t in range(NUM_STEPS) if watch.steps[t].dones[env] or t == NUM_STEPS - 1]
        for start, end in zip([0, *(t + 1 for t in ends)], ends, strict=False):
            step, length = watch.steps[end], end + 1 - start
            cut, info = slice(start, end + 1), step.infos[env]
            piece = {
                "state": buffer.observations[cut, env].astype(np.float32),
                "action_tokens": buffer.actions[cut, env].astype(dtype),
                "log_probs": buffer.log_probs[cut, env, None],
                "rewards": np.array([[each.rewards[env]] for each in watch.steps[cut]], np.float32),
                "loss_mask": np.ones((length, 1), np.bool_),
            }
            blank = ((0, max(15 - length, 0)), (0, 0))
            rows = {name: np.pad(column, blank) for name, column in piece.items()}
            rows["final_state"] = info["terminal_observation"] if step.dones[env] else step.new_obs[env]
            rows["terminated"] = step.dones[env] and not info["TimeLimit.truncated"]
            pieces.append(rows | {"num_steps": length, "uid": env * NUM_STEPS + start})
    columns = {name: np.stack([np.asarray(piece[name]) for piece in pieces]) for name in pieces[0]}
    columns["final_state"] = columns["final_state"].astype(np.float32)
    zeros = {name: np.zeros(len(pieces), np.int64) for name in ("group_id", "policy_version", "seed")}
    return to_batch(columns | zeros | {"instruction_ids": np.zeros((len(pieces), 1), np.int64)})


def named(peer: PPO) -> dict[str, dict[str, torch.Tensor]]:
    """Return SB3's weights under the names of our models."""
    ours: dict[str, dict[str, torch.Tensor]] = {"policy": {}, "critic": {}}
    head = "logits" if isinstance(peer.action_space, gym.spaces.Discrete) else "mean"
    last = {"action_net": ("policy", head), "value_net": ("critic", "value")}
    for name, value in peer.policy.state_dict().items():
        match name.split("."):
            case ["mlp_extractor", net, layer, kind]:
                model = "policy" if net == "policy_net" else "critic"
                ours[model][f"blocks.{int(layer) // 2}.0.{kind}"] = value.clone()
            case [net, kind]:
                ours[last[net][0]][f"{last[net][1]}.{kind}"] = value.clone()
            case [parameter]:
                ours["policy"][parameter] = value.clone()
    return ours


@pytest.fixture
def ours(config: RunConfig, peer: PPO) -> Iterator[FSDPTrainer]:
    """Our trainer with SB3's weights."""
    trainer = new_trainer(config)
    assert trainer.critic is not None
    for model, weights in ((trainer.policy.model, "policy"), (trainer.critic.model, "critic")):
        model.load_state_dict(named(peer)[weights])
    yield trainer
    trainer.close()


def test_weights_after_an_iteration_are_equal(peer: PPO, ours: FSDPTrainer, monkeypatch: Any) -> None:
    watch = Watch()
    _, callback = peer._setup_learn(NUM_ENVS * NUM_STEPS, watch)
    peer.collect_rollouts(peer.env, callback, peer.rollout_buffer, NUM_STEPS)
    rows = rows_of(peer, watch, ours.policy.token_dtype)
    assert rows["terminated"].any() and (rows["num_steps"] == 15).any()  # some episodes terminate, some are truncated

    for function in (tasks.value_steps, tasks.compute_advantage, tasks.split_decisions, tasks.compute_old_log_prob):
        rows = function(rows, worker=ours, call=CALL).batch
    for mine, theirs in (("values", "values"), ("returns", "returns"), ("advantages", "advantages")):
        column = torch.from_numpy(getattr(peer.rollout_buffer, theirs).swapaxes(0, 1).reshape(-1))
        torch.testing.assert_close(rows[mine].flatten(), column, rtol=1e-4, atol=1e-5)

    before = named(peer)
    seed = derive_seed(CALL.seed, CALL.iteration, CALL.node_id)
    draws = (draw_minibatches(len(rows), MINIBATCHES, derive_seed(seed, epoch)) for epoch in range(EPOCHS))
    monkeypatch.setattr(np.random, "permutation", lambda n: np.argsort(next(draws), kind="stable"))
    peer.train()
    tasks.train_actor_critic(rows, worker=ours, call=CALL)
    assert ours.critic is not None
    for name, model in (("policy", ours.policy.model), ("critic", ours.critic.model)):
        for key, value in model.state_dict().items():
            moved = (named(peer)[name][key] - before[name][key]).abs().max()
            assert moved > 1e-4
            torch.testing.assert_close(value, named(peer)[name][key], rtol=0, atol=1e-3 * float(moved), msg=key)


def test_networks_are_initialised_alike(config: RunConfig, peer: PPO) -> None:
    trainer = FSDPTrainer(config, 0, 1)
    assert trainer.critic is not None
    start = named(peer)
    for name, model in (("policy", trainer.policy.model), ("critic", trainer.critic.model)):
        for key, value in model.state_dict().items():
            theirs = start[name][key]
            assert value.shape == theirs.shape
            if value.ndim == 2:  # orthogonal, so all singular values equal the gain
                value, theirs = torch.linalg.svdvals(value), torch.linalg.svdvals(theirs)
            torch.testing.assert_close(value, theirs, msg=key)
