"""Off-policy runs in one process: they learn, and end the same whatever dies."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from off_policy_runs import OffPolicyRun

from embodyflow.data.tables import digest_of
from embodyflow.errors import DamageError

LEARN = (
    "rollout.num_steps=100",
    "off_policy.replay_capacity=10000",
    "policy.hidden_size=32",
    "off_policy.batch_size=64",
)


def end(run: OffPolicyRun) -> tuple[str, tuple[int, ...], dict[str, bytes]]:
    """Return what identifies the end of a run: digest of the policy, all weights, and the replay buffer's files."""
    return (
        digest_of({name: each[None] for name, each in run.trainer.weights().items()}),
        run.trainer.fingerprint(),
        run.files(),
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = OffPolicyRun(tmp_path_factory.mktemp("undisturbed"))
    run.iterate(range(1, 7))
    run.close()
    return end(run)


class Killed(Exception):
    """Stands for the end of a process."""


def kill_in_update(run: OffPolicyRun, number: int) -> None:
    """Make the run fail in its update of this number from now on, half-way."""
    train_policy, done = run.trainer._learner._train_policy, [0]

    def failing(*columns: torch.Tensor) -> Any:
        done[0] += 1
        if done[0] == number:
            raise Killed  # the critics have taken their step
        return train_policy(*columns)

    run.trainer._learner._train_policy = failing


@pytest.mark.parametrize("where", ["after the transitions", "in an update", "in the commit", "after the commit"])
def test_a_run_killed_in_an_iteration_ends_with_the_same_weights(tmp_path: Path, undisturbed: Any, where: str) -> None:
    run = OffPolicyRun(tmp_path)
    run.iterate(range(1, 4))
    run.gather(4)
    if where == "in an update":
        kill_in_update(run, 5)
        with pytest.raises(Killed):
            run.train(4)
    elif where != "after the transitions":
        run.train(4)
        run.commit(4)
        if where == "in the commit":
            run.checkpoint(4).rename(tmp_path / "checkpoints" / "unfinished")
    run.close()
    again = OffPolicyRun(tmp_path, last=4 if where == "after the commit" else 3)
    again.iterate(range(5 if where == "after the commit" else 4, 7))
    again.close()
    assert end(again) == undisturbed


def test_another_seed_ends_elsewhere(tmp_path: Path, undisturbed: Any) -> None:
    run = OffPolicyRun(tmp_path, ["seed=1"])
    run.iterate(range(1, 7))
    run.close()
    assert end(run)[0] != undisturbed[0]


def test_looking_at_a_commit_leaves_the_replay_buffer_alone(tmp_path: Path) -> None:
    run = OffPolicyRun(tmp_path)
    run.iterate(range(1, 4))
    before = run.files()
    run.close()
    evaluation = OffPolicyRun(tmp_path, last=1)
    assert evaluation.rollout.evaluate(range(2)).lengths == [5, 5]
    evaluation.close()
    assert run.files() == before


def test_a_replay_buffer_of_other_iterations_is_refused(tmp_path: Path) -> None:
    run = OffPolicyRun(tmp_path)
    run.gather(1)
    with pytest.raises(RuntimeError, match="iteration 1: the replay buffer has 16 rows, not 0"):
        run.gather(1)
    run.close()


def test_updates_follow_transitions_by_their_index(tmp_path: Path) -> None:
    """16 transitions per iteration, 20 without updates, and then three updates for each two transitions."""
    run = OffPolicyRun(tmp_path, ["off_policy.updates_per_transition=1.5"])
    counts = []
    for iteration in (1, 2, 3):
        counts.append(run.iterate(range(iteration, iteration + 1))["train/optimizer_steps"].value)
    run.close()
    assert counts == [0, 18, 24]


def test_demonstrations_are_part_of_a_run_and_must_not_change(tmp_path: Path, undisturbed: Any) -> None:
    expert = OffPolicyRun(tmp_path / "expert", ["seed=9"])
    expert.iterate(range(1, 4))
    expert.close()
    words = [f"off_policy.demonstrations={tmp_path}/expert/replay"]
    run = OffPolicyRun(tmp_path / "run", words)
    run.iterate(range(1, 7))
    assert end(run)[0] != undisturbed[0]
    run.close()
    expert = OffPolicyRun(tmp_path / "expert", ["seed=9"], last=3)
    expert.iterate(range(4, 5))
    expert.close()
    with pytest.raises(DamageError, match="is not what it was when the run began"):
        OffPolicyRun(tmp_path / "run", words, last=6).trainer.replay  # noqa: B018


def test_it_learns(tmp_path: Path) -> None:
    """The best reward of a step is 0 on average; one action for all states gets -1."""
    run = OffPolicyRun(
        tmp_path, [*LEARN, "trainer.learning_rate=3e-3", "critic.learning_rate=3e-3", "algorithm.gamma=0.5"]
    )
    before = np.mean(run.rollout.evaluate(range(20)).returns) / 5
    run.iterate(range(1, 4))
    after = np.mean(run.rollout.evaluate(range(20)).returns) / 5
    run.close()
    assert before < -0.8 and after > -0.2


OFFLINE = ("algorithm=iql", "off_policy.updates_per_iteration=7")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The word that names a data set: the transitions of a run by SAC."""
    folder = tmp_path_factory.mktemp("data")
    run = OffPolicyRun(folder)
    run.iterate(range(1, 4))
    run.close()
    return f"off_policy.demonstrations={folder}/replay"


def train_offline(run: OffPolicyRun, iterations: range) -> list[tuple[int, ...]]:
    """Train and commit; return all weights after each iteration."""
    ends = []
    for iteration in iterations:
        metrics = run.trainer.train_offline((run.config.seed, iteration, "train"), iteration)
        assert metrics["train/optimizer_steps"].value == 7
        run.commit(iteration)
        ends.append(run.trainer.fingerprint())
    return ends


def test_offline_training_that_was_killed_ends_with_the_same_weights(tmp_path: Path, data: str) -> None:
    run = OffPolicyRun(tmp_path / "whole", [*OFFLINE, data])
    expected = train_offline(run, range(1, 4))
    run.close()
    assert len(set(expected)) == 3 and run.files() == {}, "it stores no transitions"
    killed = OffPolicyRun(tmp_path / "killed", [*OFFLINE, data])
    train_offline(killed, range(1, 2))
    killed.trainer.train_offline((killed.config.seed, 2, "train"), 2)  # not committed
    killed.close()
    again = OffPolicyRun(tmp_path / "killed", [*OFFLINE, data], last=1)
    assert train_offline(again, range(2, 4)) == expected[1:]
    again.close()


def test_a_run_that_begins_with_models_keeps_critics_and_optimizers_but_no_transitions(tmp_path: Path) -> None:
    run = OffPolicyRun(tmp_path)
    run.iterate(range(1, 4))
    trainer, moments = run.trainer, moments_of(run)
    weights = [each.clone() for model in trainer._learner.models for each in model.state_dict().values()]
    trainer.load(str(run.checkpoint(3)))
    trainer.begin_with_models()
    kept = [each for model in trainer._learner.models for each in model.state_dict().values()]
    assert all(map(torch.equal, weights, kept)) and len(trainer.replay) == 0
    assert moments_of(run) == moments and any(moments)
    trainer._restart_from_policy()
    assert not any(moments_of(run)), "what branch.take=weights begins with"
    run.close()


def moments_of(run: OffPolicyRun) -> list[float]:
    """Return the sizes of the first moments of all optimizers."""
    optimizers = [each.optimizer for each in run.trainer._learner.trained.values()]
    return [float(state["exp_avg"].abs().sum()) for each in optimizers for state in each.state.values()]
