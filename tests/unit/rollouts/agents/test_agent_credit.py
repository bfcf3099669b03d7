"""Agents train with credit for turns, by algorithms with and without a critic, and only on what the model wrote."""

from typing import Any

import numpy as np
import pytest
import torch
from agent_jobs import agent_config, forgetful_words
from language_jobs import language_config
from tensordict import TensorDict

import tasks
from benchmarks.control.in_process import InProcessRun
from embodyflow.agents.chat.transcript import Origin, Transcript
from embodyflow.agents.episode import Counts, Episode
from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.algorithm_registry import LOSSES
from embodyflow.algorithms.masked import one_rank
from embodyflow.data.batches import to_batch
from embodyflow.errors import ConfigError
from embodyflow.generation.interface import Completion
from embodyflow.policies.language.causal_lm import policy_causal_lm
from embodyflow.policies.language.causal_lm.policy_causal_lm import CausalLMPolicy, pack
from embodyflow.rollouts.agents.agent_rows import Played, columns_of_episodes
from embodyflow.training.objectives import PolicyObjective

CONFIG = agent_config()


@pytest.mark.parametrize(
    ("words", "metric"),
    [
        (("algorithm.per_turn=true", "algorithm.turn_discount=0.9"), "policy/pg_loss"),
        (("algorithm=ppo", "algorithm.per_turn=true", "critic.epochs=1"), "critic/loss"),
        (("algorithm=dapo", "filter.num_groups=2", "filter.max_rerolls=1"), "groups/num_kept_rows"),
    ],
    ids=["dr_grpo per turn", "ppo per turn", "dapo"],
)
def test_an_iteration_of_agents_with_several_contexts(words: tuple[str, ...], metric: str) -> None:
    run = InProcessRun(forgetful_words(*words))
    run.warm_start()
    before = run.trainer.weights()
    metrics = run.iterate(1)
    after = run.trainer.weights()

    assert metrics["rollout/contexts"] >= 4 and metrics["rollout/turn_reward"] > 0
    assert metrics["groups/num_kept_rows"] == 4 if "groups/num_kept_rows" in metrics else metrics["critic/value"] == 0
    assert np.isfinite(metrics[metric]) and metrics["train/grad_norm"] > 0
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    run.rollout.close()
    run.trainer.close()


def test_groups_whose_turns_differ_are_kept() -> None:
    rows = agents_rows([(0.0, 1.0), (1.0, 0.0), (0.5, 0.5), (0.5, 0.5)])
    rows["success"], rows["group_id"] = torch.ones(4, dtype=torch.bool), torch.tensor([1, 1, 2, 2])
    worker: Any = type("Worker", (), {"config": CONFIG})

    assert tasks.filter_groups(rows, worker=worker).batch["uid"].tolist() == [0, 1]
    rows["token_turn_reward"] *= 0
    assert len(tasks.filter_groups(rows, worker=worker).batch) == 0


def test_groups_whose_agents_differ_are_kept() -> None:
    rows = agents_rows([(0.0, 0.0)] * 4)
    rows["success"], rows["group_id"] = torch.ones(4, dtype=torch.bool), torch.tensor([1, 1, 2, 2])
    rows["token_agent"] = rows["loss_mask"].int()
    worker: Any = type("Worker", (), {"config": CONFIG})
    assert len(tasks.filter_groups(rows, worker=worker).batch) == 0
    rows["token_agent_reward"][0, -1] = 1.0
    assert tasks.filter_groups(rows, worker=worker).batch["uid"].tolist() == [0, 1]


def agents_rows(turn_rewards: list[tuple[float, float]]) -> TensorDict:
    """Return rows in which the model writes, reads a tool and a user, and writes again; then in another context."""
    played = []
    for row, rewards in enumerate(turn_rewards):
        transcript = Transcript((7, 8, 9))
        transcript.append_sampled(Completion((10, 11 + row), (-1.0, -2.0), "stop", 0))
        transcript.append_given((12, 13), Origin.TOOL)
        transcript.append_given((14,), Origin.USER)
        context = transcript.begin((15, 16))
        transcript.append_sampled(Completion((17, 18), (-1.0, -2.0), "stop", 0), context)
        transcript.append_sampled(Completion((12,), (-1.0,), "stop", 0))
        played.append(Played(Episode(transcript, True, 1.0, turn_rewards=(*rewards, 0.0)), Counts(3), row))
    return to_batch({"uid": np.arange(len(played)), **columns_of_episodes(played)})


@pytest.mark.parametrize("loss", list(LOSSES.entries))
def test_tokens_of_tools_users_and_templates_have_no_gradient(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if what a tool wrote looks rewarding, the logits before its tokens get a gradient of exactly zero."""
    per_row = LOSSES.entries[loss].per_row
    algorithm = AlgorithmConfig(
        advantage="cpgd" if loss == "cpgd" else "grpo",
        loss=loss,
        aggregation="seq_mean_token_mean" if per_row else "token_mean",
        entropy_coef=0.1,
        kl={"coef": 0.1},
    )
    torch.manual_seed(0)
    config = CONFIG.model_copy(update={"algorithm": algorithm})
    policy = CausalLMPolicy(config.policy, "cpu")
    rows = agents_rows([(0.0, 1.0), (1.0, 0.0)])
    mask = rows["loss_mask"]
    noise = 0.01 * torch.randn(2, *mask.shape)
    with torch.no_grad():
        rows["old_log_probs"] = policy.evaluate(rows, 1.0)[0] + noise[0]
        rows["ref_log_probs"] = rows["old_log_probs"] + noise[1]
    rows["advantages"] = torch.where(mask, torch.tensor([1.0, -1.0])[:, None, None], 1e6)
    logits, choose = [], policy_causal_lm.choose

    def recorded(given: torch.Tensor, *arguments: Any) -> Any:
        given.retain_grad()
        logits.append(given)
        return choose(given, *arguments)

    monkeypatch.setattr(policy_causal_lm, "choose", recorded)
    objective = PolicyObjective(policy, config)
    value, _ = objective.loss(objective.prepare(rows, [slice(0, len(rows))], config.full_batch, one_rank))
    value.backward()

    packed = pack(rows, policy.model, "cpu")
    trained = mask[packed.rows, packed.steps, 0]
    moved = logits[0].grad.abs().sum(-1)
    assert torch.equal(moved > 0, trained) and 0 < trained.sum() < len(trained) and moved.isfinite().all()


def test_the_outcome_of_an_agent_takes_the_place_of_the_episodes() -> None:
    rows = agents_rows([(0.0, 1.0), (0.0, 0.0)])
    rows["scores"], rows["success"] = torch.tensor([5.0, 7.0]), torch.tensor([True, True])
    rows["agents_rewarded"][0] = True
    rows["token_agent_reward"][0, 1] = 3.0
    rewards = tasks.compute_reward(rows).batch["rewards"][..., 0]
    last = int(rows["loss_mask"][1].nonzero()[-1, 0])
    assert rewards[0].sum() == 3.0 + 1.0 and rewards[0, 1] == 3.0
    assert rewards[1].sum() == rewards[1, last] == 7.0


def test_an_advantage_per_agent_needs_outcomes_of_agents() -> None:
    rows = agents_rows([(0.0, 1.0), (0.0, 0.0)])
    rows["rewards"], rows["group_id"] = rows["token_turn_reward"], torch.tensor([1, 1])
    rows["agents_rewarded"][0] = True
    config = agent_config("algorithm.per_agent=true", "rollout.agent.agents=[ann]")
    worker: Any = type("Worker", (), {"config": config, "all_reduce": one_rank})
    with pytest.raises(ValueError, match=r"^algorithm.per_agent=true: episode 1 has no agent_rewards; the workflow"):
        tasks.compute_advantage(rows, worker=worker)
    rows["agents_rewarded"][1] = True
    with pytest.raises(ValueError, match="a token inside the mask has no agent"):
        tasks.compute_advantage(rows, worker=worker)
    rows["token_agent"] = rows["loss_mask"].int()
    assert tasks.compute_advantage(rows, worker=worker).batch["advantages"].any()


def test_agents_belong_to_agent_jobs_and_have_names() -> None:
    with pytest.raises(ConfigError, match=r"^algorithm.per_agent=true: only agent jobs have agents, and job is lang"):
        language_config("algorithm.per_agent=true")
    with pytest.raises(ConfigError, match=r"^algorithm.per_agent=true: needs rollout.agent.agents, the names"):
        agent_config("algorithm.per_agent=true")
    with pytest.raises(ConfigError, match=r"agents.*: ann is listed twice; each agent needs a name of its own"):
        agent_config("rollout.agent.agents=[ann, bob, ann]")


def test_turns_belong_to_agent_jobs() -> None:
    assert agent_config("algorithm.turn_discount=0.9").algorithm.turn_discount == 0.9
    message = r"^algorithm.turn_discount=0.9: only agent jobs have turns, and job is language$"
    with pytest.raises(ConfigError, match=message):
        language_config("algorithm.turn_discount=0.9")
