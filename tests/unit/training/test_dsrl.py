"""DSRL in a room of pictures: what is stored, what learns, what is frozen, and how a run goes on after a death."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from picture_room import WORDS
from trainers import free_address

from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.policies.base import Decision
from embodyflow.references import resolve
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.training.off_policy.replay.replay_buffer import Transitions

CHUNK, ACTION, GAMMA = 4, 2, 0.9
SMALL = (
    *(word for word in WORDS if not word.startswith("policy=")),
    *("algorithm=dsrl", f"algorithm.gamma={GAMMA}", f"policy.chunk_size={CHUNK}", "policy.hidden_size=16"),
    *("policy.num_critics=3", "policy.scratch.hidden_size=32", "policy.scratch.vision_hidden_size=16"),
    *("off_policy.batch_size=8", "off_policy.critic_updates=2", "off_policy.updates_per_transition=1"),
    *("rollout.num_workers=1", "rollout.envs_per_worker=4", "rollout.num_groups=4", "evaluation.num_goals=2"),
    *("warm_start.num_demos=2", "warm_start.steps=3", "warm_start.batch_size=8"),
)
Weights = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def config() -> Any:
    return compose_config(list(SMALL))


class Run:
    """A run in a folder; a second object of the same folder is its next process."""

    def __init__(self, config: Any, folder: Path, last: int | None = None) -> None:
        self.folder, self.rollout = folder, EmbodiedRollout(config, 0, 1)
        self.trainer = new_trainer(config)
        if last is None:
            self.random = self.trainer.weights()
            self.trainer.fit(to_batch(self.rollout.demonstrate()), 0)
            self.commit(0)
        else:
            self.trainer.load_reference(self.checkpoint(0))
            self.trainer.load(self.checkpoint(last))

    def checkpoint(self, iteration: int) -> str:
        return str(self.folder / "checkpoints" / str(iteration))

    def commit(self, iteration: int) -> None:
        Path(self.checkpoint(iteration)).mkdir(parents=True, exist_ok=True)
        self.trainer.save(self.checkpoint(iteration), whole=iteration == 0)

    def store(self, iteration: int) -> Any:
        self.rollout.update_weights(self.trainer.weights(), iteration - 1)
        episodes = self.rollout.training_episodes(0, iteration)
        rows = to_batch(self.rollout.play(episodes, "train", (0, iteration, "rollout")))
        self.trainer.store(rows, iteration)
        return rows

    def train(self, iteration: int) -> Any:
        return self.trainer.train((0, iteration, "train"), iteration)

    def iterate(self, iteration: int) -> Any:
        self.store(iteration)
        metrics = self.train(iteration)
        self.commit(iteration)
        return metrics

    def files(self) -> list[bytes]:
        return [file.read_bytes() for file in sorted((self.folder / "replay").glob("*.transitions"))]


def new_trainer(config: Any) -> Any:
    trainer = resolve(config.groups["trainer"].engine)(config, 0, 1)
    trainer.connect(free_address())
    return trainer


def changed(before: Weights, after: Weights) -> set[str]:
    """Return the first parts of the names of weights that differ."""
    return {name.partition(".")[0] for name in before if not np.array_equal(before[name], after[name])}


def trained_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[Transitions]:
    """Return the batches of the updates that are due after the first iteration's transitions; none is taken."""
    seen: list[Transitions] = []

    def update(batch: Transitions, rng: np.random.Generator, index: int) -> dict[str, torch.Tensor]:
        seen.append(batch)
        return {}

    monkeypatch.setattr(run.trainer._learner, "update", update)
    run.train(1)
    return seen


def test_the_warm_start_trains_the_policy_that_rl_freezes(config: Any, tmp_path: Path) -> None:
    run = Run(config, tmp_path)
    fitted = run.trainer.weights()
    assert changed(run.random, fitted) == {"base"}
    first = run.iterate(1)["train/optimizer_steps"].value
    second = run.iterate(2)["train/optimizer_steps"].value
    assert first + second == len(run.trainer.replay) and first >= 4  # an update for each decision
    assert changed(fitted, run.trainer.weights()) == {"actor"}
    assert not any(value.requires_grad for value in run.trainer.policy.network.base.parameters())


def test_a_transition_is_the_noise_of_a_decision_with_the_discount_of_its_chunk(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(config, tmp_path)
    rows = run.store(1)
    stored = run.trainer.replay.columns()
    decided = rows["loss_mask"].any(-1)
    np.testing.assert_array_equal(stored["action"], rows["action_tokens"][decided])
    np.testing.assert_array_equal(stored["state"], rows["state"][decided])
    assert stored["action"].shape[1] == ACTION and np.abs(stored["action"]).max() <= 1
    assert stored["reward"].sum() == rows["success"].sum()
    seen = trained_on(run, monkeypatch)
    discounts = torch.cat([batch.discounts for batch in seen])
    followed = discounts[discounts > 0]
    assert len(followed) and torch.allclose(followed, torch.tensor(GAMMA**CHUNK))
    assert all(batch.num_demonstrated == 0 for batch in seen)


def test_a_potential_shapes_the_rewards_with_the_discount_of_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = []
    for words in ([], ["off_policy.potential=potentials:total"]):
        run = Run(compose_config([*SMALL, *words]), tmp_path / str(len(words)))
        run.store(1)
        batches.append(trained_on(run, monkeypatch))
    for plain, shaped in zip(*batches, strict=True):
        gain = plain.discounts * plain.next_state.sum(-1) - plain.state.sum(-1)
        torch.testing.assert_close(shaped.returns, plain.returns + gain)
        assert gain.any()


def test_greedy_episodes_before_training_are_those_of_the_frozen_policy(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(config, tmp_path)
    run.rollout.update_weights(run.trainer.weights(), 0)
    episodes = run.rollout.evaluation_episodes()
    steered = run.rollout.play(episodes, "eval", None)
    assert not steered["action_tokens"].any()
    policy: Any = run.rollout.policy

    def act_alone(observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        actions = policy.base.act(observation, uniforms, temperature).actions
        return Decision(np.zeros_like(actions[:, 0]), np.zeros_like(actions[:, :, 0].repeat(ACTION, 1)), actions)

    monkeypatch.setattr(policy, "act", act_alone)
    alone = run.rollout.play(episodes, "eval", None)
    np.testing.assert_array_equal(steered["actions"], alone["actions"])


def test_a_run_that_was_killed_ends_with_the_same_weights_and_noise(config: Any, tmp_path: Path) -> None:
    run = Run(config, tmp_path / "whole")
    for iteration in (1, 2, 3):
        run.iterate(iteration)
    expected, files = run.trainer.fingerprint(), run.files()
    killed = Run(config, tmp_path / "killed")
    killed.iterate(1)
    killed.store(2)
    killed.train(2)  # not committed
    again = Run(config, tmp_path / "killed", last=1)
    for iteration in (2, 3):
        again.iterate(iteration)
    assert again.trainer.fingerprint() == expected and again.files() == files
    with pytest.raises(RuntimeError, match="iteration 3: the replay buffer has its decisions already"):
        again.store(3)


def test_one_checkpoint_has_the_frozen_weights_too(config: Any, tmp_path: Path) -> None:
    run = Run(config, tmp_path)
    run.iterate(1)
    expected = run.trainer.weights()
    run.trainer.save_weights_file(str(tmp_path / "warm.safetensors"))
    branch = new_trainer(config)
    branch.load(run.checkpoint(1))
    assert changed(expected, branch.weights()) == set()
    other = new_trainer(config)
    other.load_weights_file(str(tmp_path / "warm.safetensors"))
    assert changed(expected, other.weights()) == set()
