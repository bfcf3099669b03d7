"""RLPD: critics of an ensemble as targets, the mean for the policy, episodes and demonstrations as transitions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from trainer_runs import TrainerRun
from trainers import free_address

from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.errors import DamageError
from embodyflow.policies.policy_registry import build_critic, build_policy
from embodyflow.references import resolve
from embodyflow.training.off_policy.replay.episode_transitions import of_demonstrations, of_episodes
from embodyflow.training.off_policy.replay.replay_buffer import Transitions
from embodyflow.training.off_policy.soft_actor_critic import SoftActorCritic

STATE, CHUNK, ACTION = 30, 5, 4
WORDS = (
    *("experiment=push", "algorithm=rlpd", "policy.hidden_size=16", "policy.num_critics=4", "off_policy.batch_size=8"),
    *("warm_start.steps=2", "rollout.num_workers=1", "off_policy.critic_updates=0"),
    *("off_policy.updates_per_transition=1", "off_policy.policy_delay=1"),
)


@pytest.fixture(scope="module")
def config() -> Any:
    return compose_config(list(WORDS))


def new_learner(config: Any, **settings: Any) -> Any:
    torch.manual_seed(0)
    chosen = config.model_copy(update={"off_policy": config.off_policy.model_copy(update=settings)})
    policy, critics = build_policy(config.policy, "cpu"), build_critic(config.policy, "cpu")
    learner: Any = SoftActorCritic(policy, critics, chosen)  # type: ignore[arg-type]
    learner.restart()
    return learner


def new_batch(discount: float = 0.9) -> Transitions:
    draws = np.random.default_rng(0)
    state, following = (torch.from_numpy(draws.normal(size=(8, STATE)).astype(np.float32)) for _ in range(2))
    action = torch.from_numpy(draws.uniform(-1, 1, (8, CHUNK * ACTION)).astype(np.float32))
    returns = torch.from_numpy(draws.normal(size=8).astype(np.float32))
    return Transitions(state, action, returns, torch.full((8,), discount), following)


def test_the_target_is_the_least_of_a_few_critics_without_entropy(config: Any) -> None:
    learner, batch, rng = new_learner(config), new_batch(), np.random.default_rng(5)
    expected = np.random.default_rng(5)
    noise = torch.from_numpy(expected.standard_normal((2, 8, CHUNK * ACTION), np.float32))
    members = np.sort(expected.permutation(4)[:2])
    with torch.no_grad():
        actions, _ = learner._policy.sample(batch.next_state, noise[1])
        every = learner._critics.evaluate_actions(batch.next_state, actions)
        targets = batch.returns + batch.discounts * every[members].amin(0)
        values = learner._critics.evaluate_actions(batch.state, batch.action)
        loss = 0.5 * (values - targets).square().mean(1).sum()
    assert float(learner.update(batch, rng, 0)["critic/loss"]) == pytest.approx(float(loss), rel=1e-5)
    whole = new_learner(config, num_target_critics=None).update(batch, np.random.default_rng(5), 0)
    assert float(whole["critic/loss"]) != pytest.approx(float(loss), rel=1e-3)


def test_the_policy_climbs_the_mean_of_all_critics_after_every_few_updates(config: Any) -> None:
    learner, batch = new_learner(config, policy_delay=3), new_batch()
    before = [value.clone() for value in learner._policy.model.parameters()]
    for index in range(3):
        metrics = learner.update(batch, np.random.default_rng(index), index)
        same = [torch.equal(a, b) for a, b in zip(before, learner._policy.model.parameters(), strict=True)]
        assert all(same) == (index < 2) and ("policy/loss" in metrics) == (index == 2)
    least, mean = (
        new_learner(config, policy_value=name).update(batch, np.random.default_rng(0), 0)["policy/loss"]
        for name in ("least", "mean")
    )
    assert mean < least  # the mean of the values is larger than the least


def test_critics_learn_first_and_the_policy_stays_near_demonstrations(config: Any) -> None:
    learner, batch = new_learner(config, critic_updates=2), new_batch()
    found = ["policy/loss" in learner.update(batch, np.random.default_rng(0), index) for index in range(3)]
    assert found == [False, False, True]
    demonstrated = replace(batch, num_demonstrated=3)
    likelier = new_learner(config, imitation_coef=10.0)
    before = likelier._policy.log_density(batch.state[-3:], batch.action[-3:]).mean()
    for index in range(20):
        likelier.update(demonstrated, np.random.default_rng(index), index)
    assert likelier._policy.log_density(batch.state[-3:], batch.action[-3:]).mean() > before + 0.1


def rows() -> TensorDict:
    """Three episodes of up to three decisions: a success in the second, a time limit, a failure that terminates."""
    num_decisions = torch.tensor([2, 3, 1])
    decided = torch.arange(3) < num_decisions[:, None]
    state = torch.arange(9.0).view(3, 3, 1).expand(3, 3, STATE)
    columns = {
        "uid": torch.arange(3),
        "state": state,
        "final_state": torch.full((3, STATE), 100.0) + torch.arange(3)[:, None],
        "action_tokens": torch.arange(9.0).view(3, 3, 1).expand(3, 3, CHUNK * ACTION) / 10,
        "loss_mask": decided[..., None].expand(3, 3, CHUNK * ACTION),
        "num_steps": num_decisions * CHUNK,
        "success": torch.tensor([True, False, False]),
        "terminated": torch.tensor([False, False, True]),
        "truncated": torch.tensor([True, True, False]),
    }
    return TensorDict({name: column.contiguous() for name, column in columns.items()}, batch_size=[3])


def test_decisions_of_episodes_are_transitions_with_success_as_the_reward() -> None:
    found = of_episodes(rows())
    assert found["state"][:, 0].tolist() == [0, 1, 3, 4, 5, 6]
    assert found["next_state"][:, 0].tolist() == [1, 100, 4, 5, 101, 102]
    assert found["reward"].tolist() == [0, 1, 0, 0, 0, 0]
    assert found["terminated"].tolist() == [False, True, False, False, False, True]  # no reward follows a success
    assert found["truncated"].tolist() == [False, False, False, False, True, False]
    assert found["action"][:, 0].tolist() == pytest.approx([0, 0.1, 0.3, 0.4, 0.5, 0.6])


def demonstrations() -> TensorDict:
    """Two demonstrations of 7 and 4 steps, whose states and actions count the steps."""
    count = np.broadcast_to(np.arange(10, dtype=np.float32)[:, None], (10, STATE))
    demos = {
        "uid": np.array([3, 4]),
        "state": np.stack([count, count + 20]),
        "actions": np.stack([count[:, :ACTION], count[:, :ACTION] + 20]) / 100,
        "num_steps": np.array([7, 4]),
        "instruction_ids": np.zeros((2, 1), np.int64),
    }
    return to_batch(demos)


def test_every_step_of_a_demonstration_begins_a_decision() -> None:
    found = of_demonstrations(demonstrations(), CHUNK)
    assert found["state"][:, 0].tolist() == [*range(7), *range(20, 24)]
    assert found["terminated"].tolist() == [False] * 2 + [True] * 9
    assert found["reward"].tolist() == [0.0] * 2 + [1.0] * 9
    assert found["next_state"][:2, 0].tolist() == [5, 6]
    first = found["action"].reshape(-1, CHUNK, ACTION)[..., 0]
    assert first[1].tolist() == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])
    assert first[5].tolist() == pytest.approx([0.05, 0.06, 0.06, 0.06, 0.06])  # the last action is repeated


class Run(TrainerRun):
    def __init__(self, config: Any, folder: Path, last: int | None = None) -> None:
        super().__init__(config, folder, demonstrations(), last)

    def store(self, iteration: int) -> None:
        batch = rows()
        batch["state"] = batch["state"] + iteration
        self.trainer.store(batch, iteration)

    def iterate(self, iteration: int) -> Any:
        self.store(iteration)
        metrics = self.trainer.train((0, iteration, "train"), iteration)
        self.commit(iteration)
        return metrics


def test_a_run_that_was_killed_ends_with_the_same_weights_and_demonstrations(config: Any, tmp_path: Path) -> None:
    run = Run(config, tmp_path / "whole")
    for iteration in (1, 2, 3):
        metrics = run.iterate(iteration)
    assert metrics["train/optimizer_steps"].value == 6  # one for each decision
    expected = run.trainer.fingerprint()
    killed = Run(config, tmp_path / "killed")
    killed.iterate(1)
    killed.store(2)
    killed.trainer.train((1, 2, "train"), 2)  # not committed
    again = Run(config, tmp_path / "killed", last=1)
    for iteration in (2, 3):
        again.iterate(iteration)
    assert again.trainer.fingerprint() == expected
    with pytest.raises(RuntimeError, match="iteration 3: the replay buffer has its decisions already"):
        again.store(3)


def test_changed_demonstrations_stop_a_resume(config: Any, tmp_path: Path) -> None:
    run = Run(config, tmp_path)
    (file,) = (tmp_path / "demonstrations").glob("*.transitions")
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(DamageError, match="is damaged"):
        Run(config, tmp_path, last=0).trainer.replay  # noqa: B018
    run.trainer.close()


def test_a_file_of_warm_started_weights_brings_its_demonstrations(config: Any, tmp_path: Path) -> None:
    run = Run(config, tmp_path / "first")
    run.trainer.save_weights_file(str(tmp_path / "warm.safetensors"))
    trainer = resolve(config.groups["trainer"].engine)(config, 0, 1)
    trainer.connect(free_address())
    trainer.load_weights_file(str(tmp_path / "warm.safetensors"))
    assert trainer.fingerprint() == run.trainer.fingerprint()
    (tmp_path / "second" / "checkpoints" / "0").mkdir(parents=True)
    trainer.save(str(tmp_path / "second" / "checkpoints" / "0"))
    first, second = (
        next((tmp_path / name / "demonstrations").glob("*.transitions")).read_bytes() for name in ("first", "second")
    )
    assert first == second and len(first) > 0
