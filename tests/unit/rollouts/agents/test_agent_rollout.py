"""Rollouts of agents with a real engine, tools and trainer in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import agent_jobs
import numpy as np
import pytest
import torch
from agent_jobs import TURN_TOKENS, agent_config, forgetful_words, interview_config
from agent_rollouts import assert_trained_as_sampled, give_other_weights, play, rollout_of
from language_jobs import connected_trainer

import tasks
from embodyflow.agents.chat.transcript import Origin
from embodyflow.agents.conducting.conductor import Conductor
from embodyflow.agents.episode import ToolFailedError
from embodyflow.config.agents.agent import AgentJobConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import digest_of
from embodyflow.errors import EpisodeError
from embodyflow.rollouts.agents.agent_rollout import AgentRollout
from embodyflow.training.language_trainer import LanguageTrainer

FAULTS = ("time-out", "connection", "server", "broken answer", "dead sandbox")


@pytest.fixture(scope="module")
def trainer() -> Iterator[LanguageTrainer]:
    with connected_trainer(interview_config()) as trainer:
        yield trainer


@pytest.fixture
def interviews(trainer: LanguageTrainer) -> Iterator[AgentRollout]:
    rollout = rollout_of(interview_config(), trainer)
    yield rollout
    rollout.close()


def test_the_trained_tokens_are_the_sampled_ones_and_no_others(interviews, trainer, monkeypatch) -> None:
    """Eight turns an episode: each continues the tokens before it, and the trainer computes the sampler's log-probs."""
    turns, generate = [], Conductor.generate

    async def recorded(self, episode, prompt_ids, max_tokens, seed, agent):
        completion = await generate(self, episode, prompt_ids, max_tokens, seed, agent)
        turns.append((prompt_ids, completion))
        return completion

    monkeypatch.setattr(Conductor, "generate", recorded)
    rows = to_batch(play(interviews))

    origins, mask = rows["token_origin"][..., 0], rows["loss_mask"][..., 0]
    assert rows["num_turns"].tolist() == [8] * 4 and len(turns) == 32
    whole = [
        (*row["prompt_tokens"][: row["prompt_length"]].tolist(), *row["action_tokens"][:, 0].tolist()) for row in rows
    ]
    log_probs = [[] for _ in rows]
    for prompt, completion in sorted(turns, key=lambda turn: len(turn[0])):
        tokens = (*prompt, *completion.token_ids)
        [row] = [number for number, each in enumerate(whole) if each[: len(tokens)] == tokens]
        log_probs[row] += completion.log_probs
    assert torch.equal(rows["log_probs"][rows["loss_mask"]], torch.tensor([each for row in log_probs for each in row]))
    inside = torch.arange(mask.shape[1]) < rows["response_length"][:, None]
    assert torch.equal(mask, inside & (origins == Origin.MODEL))
    assert mask.sum() == sum(len(completion.token_ids) for _, completion in turns) <= 32 * TURN_TOKENS
    assert set(origins[inside].tolist()) == {Origin.MODEL, Origin.TOOL, Origin.TEMPLATE}

    with torch.no_grad():
        theirs, entropy = trainer.policy.evaluate(rows, 1.0)
    assert (theirs - rows["log_probs"]).abs().max() < 1e-5
    assert (theirs[~rows["loss_mask"]] == 0).all() and (entropy[~rows["loss_mask"]] == 0).all()


def test_the_trainer_computes_the_samplers_log_probs_in_each_context(trainer) -> None:
    """Two agents, whose template cuts earlier turns short, write ten turns in several contexts."""
    forgetful = compose_config(forgetful_words())
    assert isinstance(forgetful, AgentJobConfig)
    rollout = rollout_of(forgetful, trainer)
    rows = to_batch(play(rollout))
    rollout.close()

    assert rows["num_turns"].tolist() == [10] * 4
    num_contexts = rows["token_context"].flatten(1).amax(1) + 1  # a turn of one character is not cut
    assert num_contexts.min() >= 4 and num_contexts.max() == 6
    assert torch.equal(rows["loss_mask"], rows["token_turn"] > 0)
    assert_trained_as_sampled(rows, trainer)

    batch, metrics, _ = rollout.judge(rows, "train")
    assert metrics["rollout/contexts"].value == num_contexts.double().mean()
    rewards = tasks.compute_reward(batch, worker=rollout).batch["rewards"].flatten(1)
    assert torch.equal(rewards.sum(1), batch["token_turn_reward"].flatten(1).sum(1) + 0.5)


def test_a_turn_that_was_cut_is_closed_before_the_next_message(interviews) -> None:
    rows = to_batch(play(interviews))
    end, tool = interviews.tokenizer.eos_token_id, interviews.tokenizer.convert_tokens_to_ids("<tool>")
    for row in rows:
        tokens = row["action_tokens"][: row["response_length"], 0].tolist()
        starts = [place for place, token in enumerate(tokens) if token == tool and row["token_origin"][place] != 1]
        assert len(starts) == 7 and all(tokens[place - 1] == end for place in starts)


def test_rewards_of_the_workflow_take_the_place_of_the_reward_function(interviews) -> None:
    batch, metrics, shown = interviews.judge(to_batch(play(interviews)), "train")

    assert torch.equal(batch["scores"], batch["own_reward"]) and batch["own_reward"].max() > 0
    assert torch.equal(batch["success"], batch["own_reward"] % 2 == 0)
    assert metrics["rollout/turns"].value == 8 and shown[0]["response"].count("<tool>") >= 7


def test_a_hundred_tool_faults_of_five_kinds_do_not_change_the_rows(trainer) -> None:
    rollout = rollout_of(interview_config("look_up", "rollout.group_size=13"), trainer)
    expected, questions = play(rollout), rollout.training_episodes(0, 1)
    places = [(question.uid, turn) for question in questions for turn in range(8)][:100]
    agent_jobs.FAULTS.update({f"{uid}/{turn}": [FAULTS[turn % 5]] for uid, turn in places})

    rows = play(rollout)

    assert digest_of(rows) == digest_of(expected) and not any(agent_jobs.FAULTS.values())
    faults = {name: metric.value for name, metric in rollout.fault_metrics().items()}
    assert faults.pop("perf/tokens_read") > 0
    assert faults == {"perf/tool_retries": 100, "perf/redrawn_episodes": 0, "perf/rejected_episodes": 0}
    rollout.close()


def test_an_episode_whose_tool_stays_broken_is_drawn_again_and_counted(interviews) -> None:
    expected = play(interviews)
    broken = f"{expected['uid'][1]}/2"
    agent_jobs.FAULTS[broken] = ["connection"] * 3

    rows = play(interviews)

    assert (rows["seed"] != expected["seed"]).tolist() == [False, True, False, False]
    assert rows["num_turns"].tolist() == [8] * 4 and rows["tool_calls"].tolist() == [8] * 4
    faults = {name: metric.value for name, metric in interviews.fault_metrics().items()}
    assert faults.pop("perf/tokens_read") > 0
    assert faults == {"perf/tool_retries": 2, "perf/redrawn_episodes": 1, "perf/rejected_episodes": 0}


def test_a_tool_that_is_broken_for_good_ends_the_node_and_a_retry_calls_it_again(interviews, tmp_path) -> None:
    uid, journal = int(play(interviews)["uid"][1]), Journal(tmp_path / "stage" / "0.0.parts")
    agent_jobs.FAULTS[f"{uid}/2"] = ["connection"] * 9
    with pytest.raises(ToolFailedError, match="tool look_up: ConnectionResetError: reset by peer") as failure:
        play(interviews, journal)
    assert failure.value.__notes__ == [f"episode {uid}, drawn 3 times"]

    rows = play(interviews, journal)

    assert Counter(rows["num_turns"].tolist()) == {8: 4}


def test_a_workflow_that_raises_ends_the_run_with_the_episode_named(interviews, monkeypatch) -> None:
    async def broken(self, engine, row, context):
        raise KeyError("score")

    monkeypatch.setattr(agent_jobs.Interview, "run", broken)
    with pytest.raises(EpisodeError, match=r"workflow of episode \d+: KeyError: 'score'"):
        play(interviews)


def test_a_lost_worker_replays_its_calls(trainer, tmp_path: Path, monkeypatch) -> None:
    """The tool answers differently each time that it is called, so a call made twice would show."""
    rollout = rollout_of(interview_config("ask_again"), trainer)
    monkeypatch.setenv("ASKED", str(tmp_path / "undisturbed"))
    expected = play(rollout, Journal(tmp_path / "one" / "0.0.parts"))
    monkeypatch.setenv("ASKED", str(tmp_path / "disturbed"))
    monkeypatch.setenv("KILL_AT", "13")
    monkeypatch.setenv("KILL_BY", "interrupt")
    journal = Journal(tmp_path / "two" / "0.0.parts")
    with pytest.raises(KeyboardInterrupt):
        play(rollout, journal)
    recorded = (tmp_path / "two" / "0.0.calls.parts").read_text().splitlines()
    assert sum('"tool"' in line for line in recorded) == 13

    rows = play(rollout_of(interview_config("ask_again"), trainer), journal)

    assert digest_of(rows) == digest_of(expected)
    assert [len((tmp_path / name).read_text().splitlines()) for name in ("undisturbed", "disturbed")] == [32, 32]


def test_recorded_turns_count_even_if_sampling_differs(trainer, tmp_path: Path) -> None:
    """Another machine may sample another token; what tools answered belongs to the recorded one."""
    rollout = rollout_of(interview_config(), trainer)
    journal = Journal(tmp_path / "stage" / "0.0.parts")
    expected = play(rollout, journal)
    (tmp_path / "stage" / "0.0.parts").unlink()  # lost before the rows were complete
    give_other_weights(rollout, trainer)

    rows = play(rollout, journal)

    assert all(np.array_equal(rows[name], expected[name]) for name in expected)


def test_demonstrations_are_played_with_the_tools(trainer) -> None:
    rollout = AgentRollout(agent_config("warm_start.num_demos=2"), 0, 1)
    rows = to_batch(rollout.demonstrate())
    texts = [
        rollout.tokenizer.decode(row["action_tokens"][: row["response_length"], 0], skip_special_tokens=False)
        for row in rows
    ]
    for number, text in enumerate(texts):
        product = rollout._prompts.prompt("demo", number).ground_truth
        assert f"<tool>{product}<end><assistant>## {product}<end>" in text
    own = [rollout.tokenizer.decode(row["action_tokens"][:, 0][row["loss_mask"][:, 0]]) for row in rows]
    assert all("<tool>" not in text and text.endswith("<end>") for text in own) and rows["terminated"].all()
    rollout.close()
