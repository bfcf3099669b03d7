"""Self-correction: the reward function is the checker, and the last answer counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from agent_jobs import agent_config
from trainers import free_address

from embodyflow.agents.transcript import Origin
from embodyflow.data.batches import to_batch
from embodyflow.rewards.interface import Sample, Score
from embodyflow.rollouts.agent_rollout import AgentRollout
from embodyflow.training.language_trainer import LanguageTrainer
from embodyflow.types import Batch

WORDS = ("experiment=self_correct", "warm_start.num_demos=8")
WRONG, RIGHT = "## 1", "## {}"


@pytest.fixture(scope="module")
def rollout() -> Iterator[AgentRollout]:
    rollout = AgentRollout(agent_config(*WORDS, "rollout.agent.max_turns=3", "rollout.agent.max_turn_tokens=30"), 0, 1)
    yield rollout
    rollout.close()


def play(rollout: AgentRollout, monkeypatch: pytest.MonkeyPatch, *answers: str) -> tuple[Batch, str, dict[str, float]]:
    """Play the demonstrations with these answers in place of theirs; return rows, the first text and metrics."""

    def turns(split: str, index: int) -> tuple[str, ...]:
        truth = rollout._prompts.prompt("demo", index).ground_truth
        return tuple(answer.format(truth) for answer in answers)

    monkeypatch.setattr(rollout._prompts, "demonstration_turns", turns)
    rows = to_batch(rollout.demonstrate())
    text = rollout.tokenizer.decode(rows["action_tokens"][0, : rows["response_length"][0], 0])
    rows["prompt_id"], rows["group_id"] = rows["uid"], rows["uid"]
    rows, metrics, _ = rollout.judge(rows, "demo")
    return rows, text, {name: metric.value for name, metric in metrics.items()}


def test_a_right_answer_ends_the_episode(rollout: AgentRollout, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, text, metrics = play(rollout, monkeypatch, RIGHT)
    assert rows["success"].all() and rows["terminated"].all() and (rows["num_turns"] == 1).all()
    assert "wrong" not in text
    assert [metrics[f"rollout/success_turn_{turn}"] for turn in (1, 2, 3)] == [1, 1, 1]


def test_a_wrong_answer_is_told_and_the_last_one_counts(rollout: AgentRollout, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, text, metrics = play(rollout, monkeypatch, WRONG, WRONG, RIGHT)
    assert rows["success"].all() and (rows["scores"] == 1).all() and (rows["num_turns"] == 3).all()
    assert text.startswith("## 1<end><user>wrong<end><assistant>## 1<end><user>wrong<end><assistant>## ")
    assert [metrics[f"rollout/success_turn_{turn}"] for turn in (1, 2, 3)] == [0, 0, 1]
    feedback = rows["action_tokens"][..., 0] == rollout.tokenizer.convert_tokens_to_ids("wrong")
    assert feedback.sum() == 16 and (rows["token_origin"][..., 0][feedback] == Origin.USER).all()
    assert not rows["loss_mask"][..., 0][feedback].any()


def test_the_turns_end(rollout: AgentRollout, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, text, metrics = play(rollout, monkeypatch, WRONG, WRONG, WRONG)
    assert not rows["success"].any() and (rows["scores"] == 0).all() and text.count("wrong") == 2
    assert rows["terminated"].all() and metrics["rollout/success_turn_3"] == metrics["rollout/success_rate"] == 0


def test_the_checker_grades_the_last_turn_as_the_reward_function_does(
    rollout: AgentRollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen by the judge during the episode, and by the reward function of a workflow that gives no reward."""
    seen = []
    score = rollout._rewards.score
    monkeypatch.setattr(rollout._rewards, "score", lambda samples: seen.extend(samples) or score(samples))
    rows, _, _ = play(rollout, monkeypatch, WRONG, RIGHT)
    during = [sample for sample in seen if sample.response != WRONG]
    rows["rewarded"] = rows["rewarded"] & False
    del rows["success"]
    seen.clear()
    rollout.judge(rows, "demo")
    assert sorted(during, key=lambda sample: sample.uid) == seen


def half_for_anything(sample: Sample) -> Score:
    return Score(0.5, True)


def test_any_reward_function_is_a_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = AgentRollout(
        agent_config(*WORDS, f"reward.function={{name: custom, function: {__name__}:half_for_anything}}"), 0, 1
    )
    rows, _, _ = play(rollout, monkeypatch, WRONG)
    assert rows["success"].all() and (rows["num_turns"] == 1).all() and (rows["scores"] == 0.5).all()
    rollout.close()


def test_sampled_episodes_have_one_or_two_turns_and_never_a_turn_after_a_right_answer() -> None:
    config = agent_config(*WORDS, "rollout.group_size=8")
    trainer = LanguageTrainer(config, 0, 1)
    trainer.connect(free_address())
    rollout = AgentRollout(config, 0, 1)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=0)
    rows = to_batch(rollout.play(rollout.training_episodes(0, 1), "train", (0, 1, "rollout")))
    assert rows["rewarded"].all() and set(rows["num_turns"].tolist()) <= {1, 2}
    assert (rows["own_success"] | (rows["num_turns"] == 2) | ~rows["terminated"]).all()
    rollout.close()
    trainer.close()
