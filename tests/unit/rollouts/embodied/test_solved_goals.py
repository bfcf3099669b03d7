"""Goals that are reached before the policy acts are counted and named in evaluations."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from node_calls import call_of

import tasks
from embodyflow.config import RunConfig
from embodyflow.data.rows_file import Journal
from embodyflow.orchestration.evaluation.evaluation import solved_goals
from embodyflow.orchestration.evaluation.evaluation_run import evaluation_lines
from embodyflow.policies.base import Decision
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout

ENV = (
    *("env.id=solved_envs:SomeSolved-v0", "env.tasks=[go]", "env.adapter.success_info=success", "env.max_steps=20"),
    *("evaluation.num_goals=6", "policy.state_dim=1", "policy.action_dim=1", "warm_start=null"),
)
# Goal g of the split `eval` has the seed 2**25 + g, and 2**25 % 3 = 2: goals 1 and 4 start at the origin.
SOLVED = {(0, 1), (0, 4)}


def rollout_of(tiny_config: Callable[..., RunConfig], *words: str, action: float = -1.0) -> EmbodiedRollout:
    """Return a rollout whose policy always takes one action."""
    torch.manual_seed(0)
    rollout = EmbodiedRollout(tiny_config(*ENV, *words), 0, 1)
    act = rollout.policy.act

    def constant(*arguments: object) -> Decision:
        decision = act(*arguments)
        return Decision(decision.tokens, decision.log_probs, np.full_like(decision.actions, action))

    rollout.policy.act = constant
    return rollout


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("mode", ["greedy", "sampled"])
def test_goals_that_no_action_is_needed_for_are_named(
    tiny_config: Callable[..., RunConfig], tells: bool, processes: int, mode: str
) -> None:
    """The action to the left also succeeds at once in goals 2 and 5, but there a null action does not."""
    rollout = rollout_of(tiny_config, f"env.kwargs={{tells:{tells}}}", f"rollout.env_processes={processes}")
    call = call_of("evaluate", iteration=0, seed=0)
    output = tasks.evaluate_policy(None, {"mode": mode}, worker=rollout, call=call)
    played = tasks.play_evaluation(None, {"mode": mode, "task": 0}, worker=rollout, call=call)
    rollout.close()
    assert output.info["solved_at_reset"] == played.info["solved_at_reset"] == SOLVED
    assert output.metrics[f"eval/{mode}_success_rate"].value == pytest.approx(4 / 6)


def test_a_reset_that_says_so_counts_even_if_the_policy_leaves_the_goal(tiny_config: Callable[..., RunConfig]) -> None:
    """An action of 20 leaves the goal in one step, so no episode succeeds."""
    for tells, expected in ((True, SOLVED), (False, set())):
        rollout = rollout_of(tiny_config, f"env.kwargs={{tells:{tells}}}", action=1.0)
        step = rollout.prototypes[0].unwrapped.inner.unwrapped.__class__.step
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("solved_envs.SomeSolved.step", lambda self, action, step=step: step(self, 20 * action + 20))
            info = tasks.evaluate_policy(None, {"mode": "greedy"}, worker=rollout, call=call_of("e")).info
        rollout.close()
        assert info["solved_at_reset"] == expected


def test_training_rows_have_no_such_column(tiny_config: Callable[..., RunConfig]) -> None:
    rollout = rollout_of(tiny_config)
    rows = rollout.play(rollout.training_episodes(0, 1), "train", (0, 1, "rollout"))
    rollout.close()
    assert "solved_at_reset" not in rows


def test_an_interrupted_evaluation_names_them_too(tiny_config: Callable[..., RunConfig], tmp_path) -> None:
    for _ in range(2):  # the second attempt reads all rows from the journal of the first
        rollout = rollout_of(tiny_config)
        episodes = rollout.evaluation_episodes("greedy")
        rows = rollout.play(episodes, "eval", None, Journal(tmp_path / "rows"))
        rollout.close()
        assert rows["goal"][rows["solved_at_reset"]].tolist() == [1, 4]


def test_reports_join_the_modes_and_name_the_goals(tiny_config: Callable[..., RunConfig]) -> None:
    config = tiny_config("env.tasks=[reach-v3,push-v3]")
    reports = [SimpleNamespace(info={"solved_at_reset": pairs}) for pairs in ([[0, 3], [1, 7]], [[0, 3], [0, 1]])]
    solved = solved_goals(config, reports)
    assert solved == {"reach-v3": [1, 3], "push-v3": [7]}
    result = {"tasks": {}, "mean_success_rate": {}, "stand_in_assets": False, "unrestorable": []}
    assert "reach-v3: 2 goals are solved at reset, without the policy: 1, 3" in evaluation_lines(
        {**result, "solved_at_reset": solved}
    )


def test_reset_options_reach_the_environment_in_every_split(tiny_config: Callable[..., RunConfig]) -> None:
    """A shift of 5 moves all goals away from the origin, in training and in evaluation."""
    rollout = rollout_of(tiny_config, "env.reset_options.shift=5")
    info = tasks.evaluate_policy(None, {"mode": "greedy"}, worker=rollout, call=call_of("e")).info
    rows = rollout.play(rollout.training_episodes(0, 1), "train", (0, 1, "rollout"))
    rollout.close()
    assert info["solved_at_reset"] == set() and (rows["state"][:, 0] >= 5).all()
