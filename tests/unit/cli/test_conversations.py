"""The tables of ``embodyflow episodes`` and ``embodyflow replay`` for an agent's run."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from agent_jobs import interview_config

import tasks
from embodyflow.agents.chat.transcript import Origin, Transcript
from embodyflow.agents.episode import Counts, Episode
from embodyflow.cli.episodes import episode_list
from embodyflow.cli.episodes.conversations import _segments, conversation, conversation_cells
from embodyflow.cli.episodes.episode_list import EpisodeFilter, show_episodes
from embodyflow.cli.episodes.episode_tables import episode_row
from embodyflow.data.batches import to_batch
from embodyflow.errors import ConfigError
from embodyflow.generation.interface import Completion
from embodyflow.policies.language.causal_lm.tokenizer_causal_lm import build_tokenizer
from embodyflow.record.episodes.episode_record import histogram_values, read_episodes
from embodyflow.record.run_folder import RunFolder
from embodyflow.rollouts.agents.agent_rows import Played, columns_of_episodes

CONFIG = interview_config()
TOKENIZER = build_tokenizer(CONFIG.policy)


def tokens(text):
    return tuple(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def sampled(text):
    return Completion(tokens(text), (-0.5,) * len(tokens(text)), "stop", 1)


def rows_of(uid, *turns):
    transcript = Transcript(tokens("<user>2*3=<end><assistant>"))
    for number, turn in enumerate(turns):
        if number % 2:
            transcript.append_given(tokens(turn), Origin.TOOL)
        else:
            transcript.append_sampled(sampled(turn))
    counts = Counts(turns=(len(turns) + 1) // 2, calls=len(turns) // 2, mistakes=0)
    ids = {name: np.array([uid]) for name in ("uid", "group_id", "prompt_id")}
    return to_batch(ids | columns_of_episodes([Played(Episode(transcript, True), counts, seed=5)]))


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a run whose two ranks played conversations of different lengths; one was trained on."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    unfinished = folder.episodes.begin(1)
    rows = [rows_of(8, "66", "<end><tool>6<end><assistant>", "## 6"), rows_of(9, "5")]
    for rank, batch in enumerate(rows):
        config = {"folder": str(unfinished), "part": "played-rollout", "trained": False}
        tasks.keep_episodes(batch, config, worker=SimpleNamespace(rank=rank))
    trained, mask = rows[1].clone(), rows[1]["loss_mask"]
    trained["success"], trained["scores"] = torch.tensor([True]), torch.tensor([1.0])
    trained["rewards"], trained["advantages"] = mask.float(), 0.25 * mask
    trained["old_log_probs"] = trained["log_probs"]
    config = {"folder": str(unfinished), "part": "trained", "trained": True}
    tasks.keep_episodes(trained, config, worker=SimpleNamespace(rank=0))
    folder.episodes.commit(1, keep=5)
    return folder


def cells(table):
    return [[str(cell) for cell in column.cells] for column in table.columns]


def test_conversations_are_listed_with_what_training_made_of_them(folder):
    listed = conversation_cells(CONFIG)
    [(iteration, episodes)] = read_episodes(folder)
    rows = [listed(iteration, episode_row(episodes, row)) for row in range(2)]

    columns = ([str(cell) for cell in column] for column in zip(*rows, strict=True))
    uids, _, prompts, outcomes, turns, calls, _, lengths, scores, advantages = columns
    assert uids == ["8", "9"] and prompts == ["2*3=", "2*3="] and turns == ["2", "1"] and calls == ["1", "0"]
    assert outcomes == ["dropped", "success"] and scores == ["dropped", "1"] and advantages == ["dropped", "0.25"]
    assert lengths == [str(2 + 5 + 2), "1"]


def test_a_conversation_is_shown_turn_by_turn(folder):
    facts, segments = conversation(folder, CONFIG, 8)

    origins, contexts, counts, trained, log_probs, rewards, *_, texts = cells(segments)
    assert contexts == ["0"] * 3
    assert origins == ["model", "tool", "model"] and texts == ["66", "<end><tool>6<end><assistant>", "## 6"]
    assert trained == ["no"] * 3 and log_probs == ["-1", "–", "-1"] and rewards == ["–"] * 3
    assert counts == ["2", "5", "2"] and "2*3=" in cells(facts)[1]


def test_contexts_and_turns_are_shown_apart():
    transcript = Transcript(tokens("<user>2*3=<end><assistant>"))
    transcript.append_sampled(sampled("66"))
    transcript.append_sampled(sampled("5"))
    second = transcript.begin(tokens("<user>6<end><assistant>"))
    transcript.append_sampled(sampled("7"), second)
    played = Played(Episode(transcript, True), Counts(turns=3), seed=5)
    episode = {name: column[0] for name, column in columns_of_episodes([played]).items()}

    origins, contexts, *_, texts = cells(_segments(CONFIG, episode | {"trained": False}, TOKENIZER))
    assert origins == ["model", "model", "template", "model"] and contexts == ["0", "0", "1", "1"]
    assert texts == ["66", "5", "<user>6<end><assistant>", "7"]


def test_agents_are_shown_by_name():
    config = interview_config("look_up", "rollout.agent.agents=[ann, bob]")
    transcript = Transcript()
    for agent, text in (("bob", "66"), ("ann", "7")):
        context = transcript.begin(tokens("<user>2*3=<end><assistant>"), agent)
        transcript.append_sampled(sampled(text), context)
    played = Played(Episode(transcript, True), Counts(turns=2), seed=5)
    columns = columns_of_episodes([played], config.rollout.agent.agents)
    episode = {name: column[0] for name, column in columns.items()}

    table = _segments(config, episode | {"trained": False}, TOKENIZER)
    assert [str(column.header) for column in table.columns][:3] == ["from", "agent", "context"]
    origins, agents, *_ = cells(table)
    assert origins == ["model", "template", "model"] and agents == ["bob", "ann", "ann"]


def test_a_trained_conversation_has_reward_advantage_and_loss(folder):
    _, segments = conversation(folder, CONFIG, 9)

    assert [column[0] for column in cells(segments)] == ["model", "0", "1", "yes", "-0.5", "1", "0.25", "-0.25", "5"]


def test_trackers_get_turns_and_advantages(folder):
    values = histogram_values(folder.episodes.kept()[1])

    assert {name: column.tolist() for name, column in values.items()} == {
        "rollout/episode_steps": [9, 1],
        "rollout/turns": [2, 1],
        "advantage/token": [0.25],
    }


def test_a_dropped_conversation_is_neither_success_nor_failure(folder, monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)  # full lines
    monkeypatch.setattr(episode_list, "open_episodes", lambda path: (folder, CONFIG))
    for outcome, uids in ((None, ["8", "9"]), ("success", ["9"])):
        assert show_episodes(folder.path, EpisodeFilter(outcome=outcome)) == 0
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == uids
    with pytest.raises(ConfigError, match="0 episodes are chosen"):
        show_episodes(folder.path, EpisodeFilter(outcome="failure"))
