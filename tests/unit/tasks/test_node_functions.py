"""The node functions, on rows made by hand and with a fake engine."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from node_calls import call_of

import tasks
from embodyflow.algorithms.masked import one_rank
from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.data.metrics import as_metrics, to_floats
from embodyflow.errors import ParityError
from embodyflow.nodes.declarations import declared
from embodyflow.seeding import derive_seed
from embodyflow.types import Batch, NodeOutput

CALL = call_of()


def rows(success: list[int], group_id: list[int], num_tokens: list[int] | None = None) -> Batch:
    """Rows of two decisions of two tokens; row i acted by its first ``num_tokens[i]`` tokens."""
    count = len(success)
    lengths = np.array(num_tokens or [4] * count).reshape(-1, 1)
    mask = (np.arange(4) < lengths).reshape(count, 2, 2)
    return to_batch(
        {
            "uid": np.arange(10, 10 + count),
            "group_id": np.array(group_id, np.int64),
            "policy_version": np.zeros(count, np.int64),
            "success": np.array(success, bool),
            "truncated": ~np.array(success, bool),
            "loss_mask": mask,
            "log_probs": np.where(mask, -1.0, 0.0).astype(np.float32),
        }
    )


def numbers(output: NodeOutput) -> dict[str, float]:
    return to_floats(as_metrics(output.metrics))


def test_every_node_function_is_exported_and_declares_its_columns() -> None:
    verbs = ("generate", "filter_groups", "compute_reward", "compute_value", "compute_advantage")
    for name in (*verbs, "train_actor", "train_critic", "train_actor_critic"):
        function = getattr(tasks, name)
        assert declared(function, "__reads__") is not None and declared(function, "__writes__") is not None, name
    assert sorted(tasks.__all__) == tasks.__all__ and all(hasattr(tasks, name) for name in tasks.__all__)


def test_the_kl_to_the_reference_is_taken_from_each_token_s_reward() -> None:
    words = ("algorithm.kl.coef=0.1", "algorithm.kl.estimator=k1", "algorithm.kl.placement=reward")
    config = compose_config(["algorithm.advantage=dr_grpo", *words])
    worker = SimpleNamespace(kl_coef_in={7: 0.5}.get, config=config, all_reduce=one_rank)
    call = SimpleNamespace(iteration=7)
    batch = tasks.compute_reward(rows([1, 0], [0, 0], num_tokens=[3, 2])).batch
    assert batch is not None
    batch["old_log_probs"] = torch.tensor([[[-1.0, -2.0], [-3.0, 9.0]], [[-1.0, -1.0], [9.0, 9.0]]])
    batch["ref_log_probs"] = torch.tensor([[[-1.5, -1.0], [-3.0, torch.nan]], [[-3.0, -1.0], [torch.nan, 0.0]]])
    output = tasks.compute_kl_penalty(batch, worker=worker, call=call)
    assert output.batch is not None
    assert output.batch["kl_penalty"].flatten(1).tolist() == [[0.25, -0.5, 0, 0], [1, 0, 0, 0]]
    assert numbers(output) == {"reward/kl_penalty": pytest.approx((0.25 - 0.5 + 0 + 1 + 0) / 5)}
    assert numbers(tasks.compute_kl_penalty(batch[:0], worker=worker, call=call)) == {}
    compared = tasks.compute_advantage(output.batch, worker=worker).batch
    assert compared is not None
    scores = 1 + 0.25, -1.0  # their mean is 0.125
    expected = torch.tensor([score - sum(scores) / 2 for score in scores])[:, None, None] * batch["loss_mask"]
    torch.testing.assert_close(compared["advantages"], expected)
    assert compared["rewards"].sum() == 1, "what the episodes were worth is still on record"


def test_the_reward_is_the_outcome_on_the_last_executed_token() -> None:
    output = tasks.compute_reward(rows([1, 0, 1], [0, 0, 0], num_tokens=[3, 4, 1]))
    assert output.batch is not None
    assert output.batch["rewards"].flatten(1).tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    assert numbers(output) == {"reward/score": pytest.approx(2 / 3)}


def test_siblings_are_compared_with_each_other_only(tiny_config) -> None:
    worker = SimpleNamespace(config=tiny_config(), all_reduce=one_rank)
    batch = tasks.compute_reward(rows([1, 0, 1, 1], [5, 5, 6, 6], num_tokens=[2, 4, 4, 4])).batch
    assert batch is not None
    output = tasks.compute_advantage(batch, worker=worker)
    assert output.batch is not None
    # Mean 0.5 and sample deviation 0.5·√2 in the first group; the second has no advantages.
    expected = 0.5 / (0.5 * 2**0.5)
    advantages = output.batch["advantages"].flatten(1)
    torch.testing.assert_close(advantages[0], torch.tensor([expected, expected, 0, 0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(advantages[1], torch.full((4,), -expected), atol=1e-5, rtol=0)
    assert not advantages[2:].any()
    assert numbers(output)["advantage/abs_mean"] == pytest.approx(6 * expected / 14, abs=1e-5)


@pytest.mark.parametrize(
    ("overrides", "kept"),
    [
        ((), [10, 11]),  # only the mixed group has advantages
        (("filter.drop_uniform=false",), [10, 11, 12, 13, 14, 15]),
        (("filter.drop_uniform=false", "filter.min_success=0.5"), [10, 11, 12, 13]),
        (("filter.drop_uniform=false", "filter.max_success=0.5"), [10, 11, 14, 15]),
        (("filter.drop_uniform=false", "filter.drop_truncated=true"), [12, 13]),
        (("filter.drop_truncated=true",), []),
    ],
)
def test_groups_are_kept_or_dropped_whole(tiny_config, overrides: tuple[str, ...], kept: list[int]) -> None:
    worker = SimpleNamespace(config=tiny_config(*overrides))
    output = tasks.filter_groups(rows([1, 0, 1, 1, 0, 0], [0, 0, 1, 1, 2, 2]), worker=worker)
    assert output.batch is not None
    assert output.batch["uid"].tolist() == kept
    assert set(output.batch.keys()) == set(rows([], []).keys())
    metrics = numbers(output)
    assert metrics["groups/num_kept_rows"] == len(kept)
    assert metrics["groups/mixed_fraction"] == pytest.approx(1 / 3)
    assert as_metrics(output.metrics)["groups/mixed_fraction"].weight == 3


class Trainer:
    """Answers with log-probs that are off by a given amount."""

    def __init__(self, config: RunConfig, policy: float = 0.0, reference: float = 0.0) -> None:
        self.config, self._off, self.all_reduce = config, {False: policy, True: reference}, one_rank

    def log_probs(self, batch: Batch, *, reference: bool) -> torch.Tensor:
        return batch["log_probs"] + self._off[reference] * batch["loss_mask"]

    def log_probs_and_entropy(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.log_probs(batch, reference=False), 2.0 * batch["loss_mask"]


def test_log_probs_of_rollout_and_trainer_must_agree(tiny_config) -> None:
    config = tiny_config("trainer.parity_tolerance=1e-3")
    output = tasks.compute_old_log_prob(rows([1, 0], [0, 0]), worker=Trainer(config, policy=5e-4), call=CALL)
    assert numbers(output) == {"parity/log_prob_gap": pytest.approx(5e-4, rel=1e-3), "policy/num_stale_rows": 0}
    with pytest.raises(ParityError, match=r"uid=1\d differ by 0.002 .* trainer.parity_tolerance=0.001"):
        tasks.compute_old_log_prob(rows([1, 0], [0, 0]), worker=Trainer(config, policy=2e-3), call=CALL)
    with pytest.raises(ParityError, match="differ by nan"):
        tasks.compute_old_log_prob(rows([1, 0], [0, 0]), worker=Trainer(config, policy=float("nan")), call=CALL)


def test_rows_of_an_earlier_version_keep_the_log_probs_they_were_made_with(tiny_config) -> None:
    batch = rows([1, 0], [0, 0])
    batch["policy_version"][1] = -1  # one behind the call's
    worker = Trainer(tiny_config("trainer.parity_tolerance=1e-3"))
    worker.log_probs = lambda rows, *, reference: rows["log_probs"] - torch.tensor([5e-4, 0.5])[:, None, None]
    output = tasks.compute_old_log_prob(batch, worker=worker, call=CALL)
    assert output.batch is not None
    assert output.batch["old_log_probs"][0].tolist() == pytest.approx(batch["log_probs"][0] - 5e-4)
    assert output.batch["old_log_probs"][1].equal(batch["log_probs"][1])
    assert numbers(output) == {"parity/log_prob_gap": pytest.approx(5e-4, rel=1e-3), "policy/num_stale_rows": 1}


def test_tokens_of_an_earlier_version_keep_theirs_and_the_others_are_compared(tiny_config) -> None:
    """Four tokens by versions −2, −2, −1, 0 and two by −1, 0, with a trainer of version 0."""
    batch = rows([1, 0], [0, 0], num_tokens=[4, 2])
    versions = torch.tensor([[-2, -2, -1, 0], [-1, 0, 0, 0]], dtype=torch.int32)
    mask, shape = batch["loss_mask"], batch["loss_mask"].shape
    batch["token_version"] = versions.view(shape)
    off = torch.where(versions.view(shape) == 0, 5e-4, 0.5) * mask
    worker = Trainer(tiny_config("trainer.parity_tolerance=1e-3"))
    worker.log_probs = lambda rows, *, reference: rows["log_probs"] + off
    output = tasks.compute_old_log_prob(batch, worker=worker, call=CALL)
    assert output.batch is not None
    moved = (output.batch["old_log_probs"] - batch["log_probs"]).view(2, 4)
    assert moved.tolist() == [pytest.approx([0, 0, 0, 5e-4], abs=1e-7), pytest.approx([0, 5e-4, 0, 0], abs=1e-7)]
    assert numbers(output) == {
        "parity/log_prob_gap": pytest.approx(5e-4, rel=1e-3),
        "policy/num_stale_rows": 0,  # by its column ``policy_version``
        "policy/staleness_mean": pytest.approx((2 + 2 + 1 + 0 + 1 + 0) / 6),
        "policy/staleness_max": 2,
        "policy/staleness_spread": pytest.approx((2 + 1) / 2),
    }


def test_interpolated_log_probs_need_the_staleness_of_tokens_and_no_pass_over_all(tiny_config) -> None:
    batch, asked = rows([1, 0], [0, 0]), []
    batch["policy_version"][1] = -2
    worker = Trainer(tiny_config("algorithm.old_log_probs=interpolated"))
    worker.log_probs = lambda some, *, reference: asked.extend(some["uid"]) or some["log_probs"]
    output = tasks.compute_old_log_prob(batch, worker=worker, call=CALL)
    assert output.batch is not None and asked == []  # of 10 and 11 none is checked
    assert output.batch["old_log_probs"].equal(batch["log_probs"])
    assert output.batch["token_staleness"].flatten(1).tolist() == [[0] * 4, [2] * 4]


def test_recorded_log_probs_are_used_as_they_are_and_some_are_recomputed(tiny_config) -> None:
    config = tiny_config("trainer.parity_tolerance=1e-3", "algorithm.old_log_probs=recorded")
    batch, asked = rows([1] * 40, [0] * 40), []
    worker, right = Trainer(config, policy=5e-4), batch["log_probs"].clone()
    answer = worker.log_probs
    worker.log_probs = lambda some, *, reference: asked.extend(some["uid"]) or answer(some, reference=reference)
    output = tasks.compute_old_log_prob(batch, worker=worker, call=CALL)
    assert output.batch is not None and output.batch["old_log_probs"].equal(right)
    assert asked == [16, 32, 48]  # of uid 10 to 49
    assert numbers(output) == {"parity/log_prob_gap": pytest.approx(5e-4, rel=1e-3), "policy/num_stale_rows": 0}
    with pytest.raises(ParityError, match=r"uid=(16|32|48) differ by 0.002"):
        tasks.compute_old_log_prob(batch, worker=Trainer(config, policy=2e-3), call=CALL)


def test_proximal_log_probs_are_the_trainers_for_all_rows(tiny_config) -> None:
    batch = rows([1, 0], [0, 0], num_tokens=[1, 3])
    batch["policy_version"][1] = -1
    off = torch.tensor([5e-4, 0.5])[:, None, None] * batch["loss_mask"]
    worker = Trainer(tiny_config("trainer.parity_tolerance=1e-3", "algorithm.old_log_probs=proximal"))
    worker.log_probs = lambda rows, *, reference: rows["log_probs"] + off
    output = tasks.compute_old_log_prob(batch, worker=worker, call=CALL)
    assert output.batch is not None and output.batch["old_log_probs"].equal(batch["log_probs"] + off)
    k3 = (math.exp(0.5) - 1 - 0.5) * 3 + (math.exp(5e-4) - 1 - 5e-4)  # tokens of the policy that acted
    assert numbers(output) == {
        "parity/log_prob_gap": pytest.approx(5e-4, rel=1e-3),  # only the row of this version counts
        "policy/behavior_kl": pytest.approx(k3 / 4, rel=1e-4),
        "policy/num_stale_rows": 1,
    }


def test_entropies_are_written_if_the_loss_selects_tokens_by_them(tiny_config) -> None:
    plain = tasks.compute_old_log_prob(rows([1], [0]), worker=Trainer(tiny_config()), call=CALL).batch
    assert plain is not None and "old_entropy" not in set(plain.keys())
    for kind in ("recomputed", "proximal"):
        config = tiny_config("algorithm.top_entropy_fraction=0.2", f"algorithm.old_log_probs={kind}")
        batch = rows([1, 0], [0, 0], num_tokens=[1, 3])
        right = batch["log_probs"] + 5e-6 * batch["loss_mask"]
        output = tasks.compute_old_log_prob(batch, worker=Trainer(config, policy=5e-6), call=CALL)
        assert output.batch is not None and output.batch["old_entropy"].equal(2.0 * batch["loss_mask"])
        assert output.batch["old_log_probs"].equal(right)


def test_parity_is_not_reported_if_all_rows_are_stale(tiny_config) -> None:
    batch = rows([1, 0], [0, 0])
    batch["policy_version"] -= 1
    worker = Trainer(tiny_config("algorithm.old_log_probs=proximal"), policy=0.5)
    assert "parity/log_prob_gap" not in numbers(tasks.compute_old_log_prob(batch, worker=worker, call=CALL))


def test_the_distance_to_the_reference_is_a_mean_over_tokens(tiny_config) -> None:
    batch = rows([1, 0], [0, 0], num_tokens=[1, 3])
    batch["old_log_probs"] = batch["log_probs"].clone()
    output = tasks.compute_ref_log_prob(batch, worker=Trainer(tiny_config(), reference=0.5))
    k3 = np.exp(0.5) - 0.5 - 1  # Schulman's third estimator at log-ratio 0.5, the same for every token
    assert numbers(output) == {"policy/kl_to_reference": pytest.approx(k3, rel=1e-5)}
    assert as_metrics(output.metrics)["policy/kl_to_reference"].weight == 4


def test_a_distance_that_no_term_reads_is_measured_on_some_rows(tiny_config) -> None:
    share = "+algorithm.kl.measured_share=0.25"
    for coef, measured in ((0.0, [12, 16]), (0.1, [10, 11, 12, 13, 14, 15, 16, 17, 18, 19])):
        batch = rows([1] * 10, [0] * 10)
        batch["old_log_probs"] = batch["log_probs"].clone()
        worker = Trainer(tiny_config(share, f"+algorithm.kl.coef={coef}"), reference=0.5)
        output = tasks.compute_ref_log_prob(batch, worker=worker)
        assert output.batch is not None
        known = ~output.batch["ref_log_probs"].flatten(1).isnan()
        assert batch["uid"][known.all(1)].tolist() == measured and torch.equal(known.all(1), known.any(1))
        metric = as_metrics(output.metrics)["policy/kl_to_reference"]
        assert metric.weight == 4 * len(measured) and metric.value == pytest.approx(np.exp(0.5) - 1.5, rel=1e-5)


def test_a_rank_without_rows_reports_nothing_and_does_not_fail(tiny_config) -> None:
    worker: Any = Trainer(tiny_config())
    batch = rows([], [])
    for verb in ("compute_reward", "compute_advantage", "compute_old_log_prob", "compute_ref_log_prob"):
        output = getattr(tasks, verb)(batch, worker=worker, call=CALL)
        assert len(output.batch) == 0
        assert all(metric.value == 0 for metric in as_metrics(output.metrics).values())
        assert not to_floats(as_metrics(output.metrics)).keys() & {"policy/kl_to_reference", "parity/log_prob_gap"}


def test_training_draws_from_run_iteration_and_node() -> None:
    seen: dict[str, Any] = {}
    worker = SimpleNamespace(step=lambda batch, **arguments: seen.update(arguments) or {"train/steps": 1})
    output = tasks.train_actor(batch := rows([1], [0]), worker=worker, call=CALL)
    assert seen.pop("positions").tolist() == []
    assert seen == {"total_rows": 0, "seed": derive_seed(7, 4, "node"), "iteration": 4}
    assert output.batch is batch and output.metrics == {"train/steps": 1}  # train_critic comes after


def test_fitting_sees_the_demonstrations_in_one_order_wherever_they_were_recorded() -> None:
    seen: list[list[int]] = []
    worker = SimpleNamespace(fit=lambda demos, seed: seen.append(demos["uid"].tolist()) or {})
    for order in ([0, 1, 2], [2, 0, 1]):
        tasks.fit(rows([1, 1, 1], [0, 0, 0])[order], worker=worker, call=CALL)
    assert seen == [[10, 11, 12]] * 2


@pytest.mark.parametrize(("mode", "draws"), [("greedy", None), ("sampled", (7, "evaluate"))])
def test_evaluation_reports_a_rate_over_its_goals(mode: str, draws: object, tiny_config) -> None:
    seen: list[object] = []
    played = {"success": np.array([1, 0, 1, 1], bool), "num_steps": np.array([10, 20, 10, 20])}
    played |= {"uid": np.arange(4), "group_id": np.arange(4)}
    worker = SimpleNamespace(
        config=tiny_config(),
        rank=0,
        world_size=1,
        evaluation_episodes=lambda mode, share: "goals",
        play=lambda episodes, split, draws: seen.append((episodes, split, draws)) or played,
        fault_metrics=dict,
    )
    output = tasks.evaluate_policy(None, {"mode": mode}, worker=worker, call=CALL)
    assert seen == [("goals", "eval", draws)]
    metrics = as_metrics(output.metrics)
    assert (metrics[f"eval/{mode}_success_rate"].value, metrics[f"eval/{mode}_success_rate"].weight) == (0.75, 4)
    assert metrics[f"eval/{mode}_episode_steps"].value == 15


def test_evaluation_of_several_tasks_reports_each(tiny_config) -> None:
    played = {"success": np.array([1, 0, 1], bool), "num_steps": np.full(3, 10)}
    played |= {"uid": np.arange(3), "group_id": np.arange(3), "env_task_id": np.array([0, 1, 1])}
    worker = SimpleNamespace(
        config=tiny_config("env.tasks=[reach-v3,push-v3,pick-place-v3]", "rollout.num_groups=3"),
        rank=0,
        world_size=1,
        evaluation_episodes=lambda mode, share: "goals",
        play=lambda episodes, split, draws: played,
        fault_metrics=dict,
    )
    metrics = as_metrics(tasks.evaluate_policy(None, {"mode": "greedy"}, worker=worker, call=CALL).metrics)
    of_tasks = {name: (m.value, m.weight) for name, m in metrics.items() if name.startswith("eval/") and "e/" in name}
    # This rank plays none of the third task.
    assert of_tasks == {"eval/greedy_success_rate/reach-v3": (1.0, 1), "eval/greedy_success_rate/push-v3": (0.5, 2)}


def test_generating_plays_the_iterations_episodes_with_its_own_draws(tiny_config) -> None:
    seen: list[object] = []
    played = {
        "uid": np.arange(2),
        "success": np.array([1, 0], bool),
        "num_steps": np.array([10, 20]),
        "episode_return": np.array([3.0, 4.0], np.float32),
    }
    worker = SimpleNamespace(
        rank=0,
        training_episodes=lambda seed, iteration: (seed, iteration),
        play=lambda *arguments: seen.append(arguments) or played,
        fault_metrics=dict,
    )
    output = tasks.generate(None, worker=worker, call=CALL)
    assert seen == [((7, 4), "train", (7, 4, "node"), None)]
    assert output.batch is not None and output.batch["uid"].tolist() == [0, 1]
    metrics = numbers(output)
    assert metrics.pop("perf/env_steps_per_second") > 0
    assert metrics == {
        "rollout/success_rate": 0.5,
        "rollout/reward": 3.5,
        "rollout/episode_steps": 15.0,
        "rollout/num_episodes": 2.0,
        "rollout/num_steps": 30.0,
    }
