"""Running statistics of states in the trainer: when they change, where they are stored, and who acts with them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from trainers import SEED, free_address

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.policies.policy_registry import build_acting_policy
from embodyflow.training.fsdp_trainer import FSDPTrainer
from embodyflow.types import Batch

NUM_ROWS = 16
MEAN, DEVIATION = 40.0, 3.0


@pytest.fixture
def config() -> RunConfig:
    small = ("rollout.num_workers=1", "rollout.envs_per_worker=1", "rollout.num_steps=16", "policy.hidden_size=16")
    passes = ("trainer.num_minibatches=4", "trainer.epochs=3", "critic.epochs=3")
    return compose_config(
        ["experiment=reacher", "algorithm=ppo", "policy.normalize_observations=true", *small, *passes]
    )


@pytest.fixture
def start(config: RunConfig, close: list[FSDPTrainer]) -> Callable[[], FSDPTrainer]:
    """Return a function that starts a trainer and closes the one before."""

    def started() -> FSDPTrainer:
        if close:
            close.pop().close()
        close.append(trainer := FSDPTrainer(config, 0, 1))
        trainer.connect(free_address())
        return trainer

    return started


def rows_of(config: RunConfig, iteration: int) -> Batch:
    draw = np.random.default_rng(iteration)
    sizes = {"state": config.policy.state_dim, "action_tokens": config.policy.action_dim}
    sizes |= dict.fromkeys(("old_log_probs", "advantages"), 1)
    rows = to_batch({name: draw.normal(size=(NUM_ROWS, 1, size)).astype(np.float32) for name, size in sizes.items()})
    rows["state"] = MEAN + DEVIATION * rows["state"]
    rows["loss_mask"] = torch.ones(NUM_ROWS, 1, 1, dtype=torch.bool)
    rows["seed"], rows["instruction_ids"] = torch.arange(NUM_ROWS), torch.zeros(NUM_ROWS, 1, dtype=torch.int64)
    rows["values"], rows["returns"] = torch.zeros(NUM_ROWS, 1), torch.ones(NUM_ROWS, 1)
    return rows


def train(trainer: FSDPTrainer, iteration: int) -> None:
    rows = rows_of(trainer.config, iteration)
    rows["old_log_probs"] = trainer.log_probs(rows, reference=False)
    arguments = {"positions": np.arange(NUM_ROWS), "total_rows": NUM_ROWS, "seed": SEED, "iteration": iteration}
    trainer.step_both(rows, **arguments)


def states_until(config: RunConfig, iteration: int) -> np.ndarray:
    return np.concatenate([rows_of(config, each)["state"][:, 0].double().numpy() for each in range(1, iteration + 1)])


def test_each_iteration_counts_its_rows_once(config: RunConfig, start: Callable[[], FSDPTrainer]) -> None:
    trainer = start()
    for iteration in (1, 2, 3):
        train(trainer, iteration)
        seen = states_until(config, iteration)
        for model in (trainer.policy.model, trainer.critic.model):
            assert model.normalize.count.item() == iteration * NUM_ROWS
            np.testing.assert_allclose(model.normalize.mean, seen.mean(0), rtol=1e-12)
            np.testing.assert_allclose(model.normalize.variance, seen.var(0), rtol=1e-9)


def test_log_probs_and_values_count_nothing(config: RunConfig, start: Callable[[], FSDPTrainer]) -> None:
    trainer = start()
    train(trainer, 1)
    before = trainer.fingerprint()
    rows = rows_of(config, 2)
    trainer.log_probs(rows, reference=False), trainer.values(rows)
    assert trainer.fingerprint() == before


def test_an_iteration_repeated_from_a_checkpoint_counts_once(start: Callable[[], FSDPTrainer], tmp_path: Path) -> None:
    trainer = start()
    train(trainer, 1)
    trainer.save(str(tmp_path / "1"))
    train(trainer, 2)
    expected = trainer.weights() | {"critic count": trainer.critic.model.normalize.count.numpy().copy()}
    restored = start()
    restored.load_reference(str(tmp_path / "1"))
    restored.load(str(tmp_path / "1"))
    assert restored.policy.model.normalize.count.item() == NUM_ROWS
    train(restored, 2)
    repeated = restored.weights() | {"critic count": restored.critic.model.normalize.count.numpy()}
    assert repeated["normalize.count"].item() == repeated["critic count"].item() == 2 * NUM_ROWS
    assert repeated.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(repeated[name], value)


def test_a_rollout_acts_with_the_statistics_of_its_version(config: RunConfig, start: Callable[[], FSDPTrainer]) -> None:
    trainer, policy = start(), build_acting_policy(config.policy, "cpu")
    for iteration in (1, 2):
        train(trainer, iteration)
        weights = trainer.weights()
        policy.model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
        rows = rows_of(config, 3)
        uniforms = np.random.default_rng(0).random((NUM_ROWS, config.policy.action_dim))
        decision = policy.act({"state": rows["state"][:, 0].numpy()}, uniforms, 1.0)
        rows["action_tokens"] = torch.from_numpy(decision.tokens)[:, None]
        recomputed = trainer.log_probs(rows, reference=False)[:, 0].numpy()
        np.testing.assert_allclose(recomputed, decision.log_probs, rtol=1e-5, atol=1e-5)
    train(trainer, 3)  # published weights are copies, which later training leaves alone
    assert weights["normalize.count"].item() == 2 * NUM_ROWS


def test_a_new_run_goes_on_from_a_policys_statistics(start: Callable[[], FSDPTrainer], tmp_path: Path) -> None:
    trainer = start()
    train(trainer, 1)
    trainer.save_weights_file(str(tmp_path / "weights.safetensors"))
    statistics = trainer.policy.model.normalize.state_dict()
    other = start()
    other.load_weights_file(str(tmp_path / "weights.safetensors"))
    for model in (other.policy.model, other.critic.model):
        assert all(torch.equal(value, statistics[name]) for name, value in model.normalize.state_dict().items())
