"""Complete runs of the training flows other than GRPO, at the smallest size that still trains."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import Runs, assert_trained, training_records

pytestmark = pytest.mark.integration

SHORT = ("iterations=1", "tracking.tensorboard=false")


@pytest.fixture
def runs(tmp_path: Path, prefect_api: str, ray_env: dict[str, str]) -> Runs:
    return Runs(tmp_path).served_by(prefect_api, **ray_env)


def trained(runs: Runs, flow: str, *words: str) -> dict[str, Any]:
    """Run one iteration of a flow; return its metrics."""
    runs.run(flow, *SHORT, *words, flow=flow)
    before, line, after = runs.metrics(flow)
    assert (before["iteration"], line["iteration"], after["iteration"]) == (0, 1, 1)
    assert_trained([line])
    return line


@pytest.mark.core
def test_ppo_trains_policy_and_critic(runs: Runs) -> None:
    line = trained(runs, "ppo", "trainer.epochs=1", "critic.epochs=2")
    nodes = ["rollout", "reward", "value", "advantage", "old_log_prob", "ref_log_prob", "train_actor", "train_critic"]
    assert sorted(line["digests"]) == sorted(nodes)
    assert line["train/optimizer_steps"] == 4 and line["critic/optimizer_steps"] == 8
    assert line["critic/value"] == 0 and line["critic/loss"] > 0


SHARED = ("pipeline.name=ppo_joint", "critic.features=policy", "critic.level=action", "trainer.epochs=2")


def test_a_critic_with_the_policys_features_takes_its_steps(runs: Runs) -> None:
    line = trained(runs, "ppo", *SHARED, "critic.epochs=2")
    nodes = ["rollout", "reward", "value", "advantage", "old_log_prob", "ref_log_prob", "train_actor_critic"]
    assert sorted(line["digests"]) == sorted(nodes)
    assert line["train/optimizer_steps"] == 8 and "critic/optimizer_steps" not in line
    assert line["critic/value"] == 0 and line["critic/loss"] > 0


@pytest.mark.slow
def test_a_critic_with_the_policys_features_resumes_bit_identically(runs: Runs) -> None:
    words = (*SHORT[1:], *SHARED, "critic.epochs=2")
    runs.run("straight", *words, "iterations=2", flow="ppo")
    runs.run("resumed", *words, "iterations=1", flow="ppo")
    runs.resume("resumed", f"run_root={runs.root}", "iterations=2", flow="ppo")
    runs.assert_same_training("resumed", "straight")


KL_IN_REWARD = (
    *SHORT[1:],
    *("iterations=2", "pipeline.name=ppo_kl_reward", "trainer.epochs=2", "algorithm.kl.placement=reward"),
    *("algorithm.kl.coef=0.1", "algorithm.kl.estimator=k1", "algorithm.kl.target=0.05", "algorithm.kl.horizon=100"),
)


@pytest.mark.slow
def test_the_coefficient_of_the_kl_in_the_rewards_adapts(runs: Runs) -> None:
    runs.run("ppo", *KL_IN_REWARD, flow="ppo")
    lines = runs.metrics("ppo")[1:3]
    assert [line["reward/kl_penalty"] != 0 for line in lines] == [False, True], "the policy starts as the reference"
    # At first the KL is below its target, so the coefficient falls at its maximum rate.
    assert [line["policy/kl_coef"] for line in lines] == [0.1, pytest.approx(0.1 * (1 - 0.2 * 16 / 100))]


@pytest.mark.slow
def test_a_run_with_kl_in_the_rewards_resumes_bit_identically(runs: Runs) -> None:
    runs.run("straight", *KL_IN_REWARD, flow="ppo")
    runs.run("resumed", *KL_IN_REWARD, "iterations=1", flow="ppo")
    runs.resume("resumed", f"run_root={runs.root}", "iterations=2", flow="ppo")
    runs.assert_same_training("resumed", "straight")


def test_dapo_fills_its_batch_with_mixed_groups(runs: Runs) -> None:
    line = trained(runs, "dapo", "filter.num_groups=4", "filter.max_rerolls=30")
    assert line["groups/num_kept_rows"] == 16
    played = 4 + line["groups/num_rerolled"]
    assert line["rollout/num_episodes"] == 4 * played
    assert line["groups/mixed_fraction"] * played >= 4
    assert line["groups/num_dropped"] == pytest.approx((1 - line["groups/mixed_fraction"]) * played)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [(), ("rollout.max_staleness=1", "algorithm.old_log_probs=proximal")])
def test_surplus_groups_of_dapo_are_used_later_and_survive_a_resume(runs: Runs, ahead: tuple[str, ...]) -> None:
    words = (*SHORT, "filter.num_groups=3", "filter.max_rerolls=30", *ahead)
    runs.run("stopped", *words, flow="dapo")
    runs.resume("stopped", f"run_root={runs.root}", "iterations=3", flow="dapo")
    runs.run("straight", *words, "iterations=3", flow="dapo")
    runs.assert_same_training("stopped", "straight")
    lines = training_records(runs.metrics("straight"))
    used = [line.get("surplus/num_used", 0) for line in lines]
    assert sum(used) > 0
    stale = [line["policy/num_stale_rows"] for line in lines]
    assert stale == ([0, *(line["groups/num_kept_rows"] for line in lines[1:])] if ahead else used)


@pytest.mark.slow
def test_a_success_classifier_rewards_and_resumes_bit_identically(runs: Runs) -> None:
    words = (*SHORT, "algorithm=success_classifier", "classifier.labelled_share=0.25", "classifier.steps=50")
    runs.run("stopped", *words)
    runs.resume("stopped", f"run_root={runs.root}", "iterations=2")
    runs.run("straight", *words, "iterations=2")
    runs.assert_same_training("stopped", "straight")
    lines = training_records(runs.metrics("straight"))
    assert [line["classifier/labelled_share"] for line in lines] == [0.25, 0.25]
    demos = lines[0]["classifier/num_examples"] - 4
    assert demos > 0 and lines[1]["classifier/num_examples"] == demos + 8
    assert all(0 < line["reward/score"] < 1 for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(("flow", "loss"), [("gspo", "gspo"), ("cpgd", "cpgd")])
def test_a_flow_trains_by_the_loss_of_its_name(runs: Runs, flow: str, loss: str) -> None:
    trained(runs, flow, "trainer.epochs=1")
    config = yaml.safe_load((runs.root / flow / "config.yaml").read_text())
    assert (config["flow"], config["algorithm_name"], config["algorithm"]["loss"]) == (flow, flow, loss)
