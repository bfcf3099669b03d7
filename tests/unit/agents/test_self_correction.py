"""Self-correction: the reward function is the checker, and the last answer counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from agent_jobs import agent_config
from trainers import free_address

from embodyflow.agents.chat.transcript import Origin
from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.data.batches import to_batch
from embodyflow.rewards.interface import Sample, Score
from embodyflow.rollouts.agents.agent_rollout import AgentRollout
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


def test_the_penalty_on_length_counts_all_turns_and_no_token_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer has 3 or 4 tokens and its end; with the last alone, no episode would reach the buffer."""
    penalised = AgentRollout(agent_config(*WORDS, "rollout.agent.max_turn_tokens=30", *DAPO), 0, 1)
    rows, _, metrics = play(penalised, monkeypatch, WRONG, RIGHT)
    written, last = rows["loss_mask"].flatten(1).sum(1), (rows["token_turn"] == 2).flatten(1).sum(1)
    expected = -((written - 5) / 4).clamp(0, 1)
    assert torch.equal(rows["scores"], 1 + expected) and rows["success"].all()
    assert (last <= 5).all() and (written < rows["response_length"]).all() and (expected < 0).all()
    rows["rewarded"] = rows["rewarded"] & False
    judged, metrics, _ = penalised.judge(rows, "demo")
    assert torch.equal(judged["scores"], 1 + expected)
    assert metrics["reward/overlong"].value == pytest.approx(expected.mean().item())
    penalised.close()


DAPO = ("reward=dapo", "reward.manager.max_tokens=9", "reward.manager.overlong.buffer=4")


def half_for_anything(sample: Sample) -> Score:
    return Score(0.5, True)


def test_any_reward_function_is_a_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = AgentRollout(
        agent_config(*WORDS, f"reward.function={{name: custom, function: {__name__}:half_for_anything}}"), 0, 1
    )
    rows, _, _ = play(rollout, monkeypatch, WRONG)
    assert rows["success"].all() and (rows["num_turns"] == 1).all() and (rows["scores"] == 0.5).all()
    rollout.close()


GRADING: list[int] = []
NUM_AT_ONCE: list[int] = []


def slowly(sample: Sample) -> Score:
    """Grade by the first token, after a time that differs between episodes."""
    GRADING.append(sample.uid)
    NUM_AT_ONCE.append(len(GRADING))
    time.sleep(0.02 * (sample.uid % 3))
    GRADING.remove(sample.uid)
    return Score(float(sample.token_ids[0] % 2), sample.token_ids[0] % 2 == 0)


def promptly(sample: Sample) -> Score:
    return Score(float(sample.token_ids[0] % 2), sample.token_ids[0] % 2 == 0)


@pytest.mark.parametrize("free", [True, False])
def test_a_slow_checker_changes_no_row(free: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    for function in (slowly, promptly):
        place = f"reward.function={{name: custom, function: {__name__}:{function.__name__}}}"
        config = agent_config(*WORDS, place, "rollout.group_size=4")
        trainer, rollout = LanguageTrainer(config, 0, 1), AgentRollout(config, 0, 1)
        trainer.connect(free_address())
        rollout.update_weights(trainer.weights() | trainer.probe(), version=0)
        if not free:
            monkeypatch.setattr(rollout._engine, "is_batch_invariant", lambda: False)
        rows.append(rollout.play(rollout.training_episodes(0, 1), "train", (0, 1, "rollout")))
        rollout.close()
        trainer.close()
    assert set(rows[0]["num_turns"]) == {1, 2} and len(NUM_AT_ONCE) >= 8 and set(NUM_AT_ONCE) == {1}
    assert rows[0].keys() == rows[1].keys()
    assert all((rows[0][name] == rows[1][name]).all() for name in rows[0])


def test_other_episodes_go_on_while_one_is_graded(rollout: AgentRollout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker waits for the first turn of every episode, so none may wait for the checker before its own."""
    num_demos, answered, score = 8, threading.Semaphore(0), rollout._rewards.score
    original = EpisodeContext.judge

    def wait_and_score(samples: list[Sample]) -> list[Score]:
        for _ in range(num_demos):
            assert answered.acquire(timeout=20), "the checker holds up the other episodes"
        answered.release(num_demos)
        return score(samples)

    async def judge(context: EpisodeContext, episode: Episode) -> Score:
        answered.release()
        return await original(context, episode)

    monkeypatch.setattr(EpisodeContext, "judge", judge)
    monkeypatch.setattr(rollout._rewards, "score", wait_and_score)
    assert len(rollout.demonstrate()["num_turns"]) == num_demos


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
