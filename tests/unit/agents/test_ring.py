"""Agents in a ring: what each one reads and is trained on, rewards, and environments that live for an episode."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import ring_jobs
import torch
from agent_rollouts import assert_trained_as_sampled, give_other_weights, play, rollout_of
from episode_clients import KnownModel
from language_jobs import connected_trainer
from ring_jobs import ring_config, ring_words

import tasks
from benchmarks.control.in_process import InProcessRun
from embodyflow.agents.chat.call_journal import CallJournal
from embodyflow.agents.episode import Episode, EpisodeContext, Faults, ToolFailedError
from embodyflow.agents.ring.ring import Ring
from embodyflow.agents.tools.tool_runner import ToolRunner
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.data.batches import to_batch
from embodyflow.data.rows_file import Journal
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompts import Prompt
from embodyflow.prompts.self_correct import build_tokenizer
from embodyflow.rewards.interface import Score
from embodyflow.rollouts.agents.agent_checks import check_agent
from embodyflow.rollouts.agents.agent_rows import Played, columns_of_episodes

TOKENIZER = build_tokenizer()
ROW = Prompt(7, None, [{"role": "user", "content": "27+95="}], "122", "self_correct")
COUNTED = "ring_jobs:CountedSumCheck"


def play_turns(
    config: AgentConfig, *turns: str, max_tokens: int = 400, journal: Path | None = None
) -> tuple[Episode, KnownModel, EpisodeContext]:
    """Play an episode in which the model writes these turns."""
    model = KnownModel(*turns, tokenizer=TOKENIZER)
    context = EpisodeContext(
        5, 11, "train", 0, config, CallJournal(journal), ToolRunner(), Faults(), lambda episode: Score(0.25, False)
    )
    engine = ChatEngine(model, TOKENIZER, 16, max_tokens, agents=config.agents)
    return asyncio.run(Ring(config).run(engine, ROW, context)), model, context


def agent(environment: str = "examples.ring.sum_check:SumCheck", **ring: Any) -> AgentConfig:
    config = ring_config(environment, **ring).rollout.agent
    return config.model_copy(update={"max_turn_tokens": None})


def text(tokens: tuple[int, ...]) -> str:
    return TOKENIZER.decode(tokens, skip_special_tokens=False)


def test_each_agent_reads_what_the_one_before_it_left() -> None:
    episode, model, _ = play_turns(agent(), "2+9+1=12", "## 21", "7+5=12", "## 122")
    assert [text(prompt) for prompt in model.prompts] == [
        "<bos><user>27+95=<end><assistant>",
        "<bos><user>27+95=,2+9+1=12<end><assistant>",
        "<bos><user>27+95=wrong<end><assistant>",
        "<bos><user>27+95=,7+5=12<end><assistant>",
    ]
    transcript = episode.transcript
    assert transcript.agents == ["reasoner", "actor", "reasoner", "actor"]
    for context, prompt in enumerate(model.prompts):
        assert transcript.tokens_of(context)[: len(prompt)] == prompt, "trained on exactly what was read"
    assert (episode.finished, episode.success) == (True, True)


def test_the_state_of_the_environment_lasts_and_rewards_are_shared() -> None:
    turns = ("2+9+1=12", "## 21", "7+5=12", "## 122")
    episode, _, _ = play_turns(agent(), *turns)
    assert episode.reward == 0.5, "the second try pays half"
    assert episode.turn_rewards == (0.0, 0.0, 0.0, 0.0)
    assert episode.agent_rewards == {"reasoner": 0.5, "actor": 0.5}
    alone, _, _ = play_turns(agent(share_reward="false"), *turns)
    assert alone.agent_rewards == {"reasoner": 0.0, "actor": 0.5}


def test_earlier_rounds_keep_their_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(self: Any, actions: list[str], ground_truth: str) -> Any:
        self.tries += 1
        return ["wrong", self.question], -float(self.tries), False

    monkeypatch.setattr(ring_jobs.CountedSumCheck, "step", step)
    turns = ("1", "2", "3", "4")
    episode, _, _ = play_turns(agent(COUNTED), *turns)
    assert episode.turn_rewards == (-1.0, -1.0, 0.0, 0.0) and episode.agent_rewards == {"reasoner": -2, "actor": -2}
    assert (episode.reward, episode.success, episode.finished) == (-3.0, False, False)


def test_only_the_last_turns_may_be_trained_on() -> None:
    whole, model, _ = play_turns(agent(), "2+9+1=12", "## 21", "7+5=12", "## 122")
    last, _, _ = play_turns(agent(trained_turns="last"), "2+9+1=12", "## 21", "7+5=12", "## 122")
    assert last.transcript.agents == ["reasoner", "actor"] and last.transcript.num_turns == 2
    assert last.transcript.prompt == model.prompts[2]
    assert last.transcript.tokens_of(1) == whole.transcript.tokens_of(3)
    assert last.agent_rewards == whole.agent_rewards and last.turn_rewards == (0.0, 0.0)


def test_an_agent_without_room_ends_the_episode() -> None:
    episode, _, _ = play_turns(agent(), "2+9+1=12", "## 21", max_tokens=12)
    assert episode.transcript.agents == ["reasoner"] and not episode.finished
    assert (episode.reward, episode.agent_rewards) == (0.0, {"reasoner": 0.0})


def test_a_ring_without_an_environment_is_judged_at_its_end() -> None:
    members = "{one: {}, two: {}}"
    episode, model, _ = play_turns(agent("", members=members), "1", "2", "3", "4")
    assert text(model.prompts[3]) == "<bos><user>27+95=<end><assistant>123"
    assert (episode.reward, episode.finished) == (0.25, True)
    assert episode.agent_rewards == {"one": 0.25, "two": 0.25}


def test_a_failed_step_is_repeated_on_a_new_instance_with_the_same_state() -> None:
    ring_jobs.BUILT.clear()
    ring_jobs.FAULTS[:] = ["reset by peer"]
    config = agent("{factory: 'ring_jobs:CountedSumCheck', backoff: 0}")
    episode, _, context = play_turns(config, "2+9+1=12", "## 21", "7+5=12", "## 122")
    assert episode.agent_rewards == {"reasoner": 0.5, "actor": 0.5} and context.faults.retries == 1
    first, second = ring_jobs.BUILT
    assert len(first.steps) == 2 and second.steps == [first.steps[0], first.steps[1]]
    ring_jobs.FAULTS[:] = ["reset by peer"] * 3
    with pytest.raises(ToolFailedError, match="tool step: ConnectionResetError: reset by peer"):
        play_turns(config, "2+9+1=12", "## 21", "7+5=12", "## 122")


def test_recorded_steps_are_taken_again_and_their_answers_count(tmp_path: Path) -> None:
    ring_jobs.BUILT.clear()
    turns = ("2+9+1=12", "## 21", "7+5=12", "## 122")
    first, _, _ = play_turns(agent(COUNTED), *turns, journal=tmp_path / "calls")
    again, _, _ = play_turns(agent(COUNTED), *turns, journal=tmp_path / "calls")
    assert again == first and ring_jobs.BUILT[0].steps == ring_jobs.BUILT[1].steps


def test_what_a_step_returns_is_checked() -> None:
    with pytest.raises(TypeError, match="environment=ring_jobs:Silent: step must return an observation for each of 2"):
        play_turns(agent("ring_jobs:Silent"), "1", "2")


def test_a_lost_worker_plays_the_same_episodes_again(tmp_path: Path) -> None:
    config = ring_config()
    with connected_trainer(config) as trainer:
        rollout, journal = rollout_of(config, trainer), Journal(tmp_path / "stage" / "0.0.parts")
        rows = to_batch(play(rollout, journal))
        assert_trained_as_sampled(rows, trainer)
        assert set(rows["token_agent"].unique().tolist()) == {0, 1, 2}
        (tmp_path / "stage" / "0.0.parts").unlink()  # the rows are lost, their calls are not
        give_other_weights(rollout, trainer)
        again = to_batch(play(rollout, journal))
        assert all(torch.equal(rows[name], again[name]) for name in set(rows.keys()))
        rollout.close()


def test_marft_trains_the_ring_with_one_chain() -> None:
    words = ("algorithm=ppo", "algorithm.advantage=marft", "critic.epochs=1", "rollout.group_size=2")
    run = InProcessRun(ring_jobs.agent_words(*ring_words("ring_jobs:Digits"), *words))
    run.warm_start()
    before = run.trainer.weights()
    metrics = run.iterate(1)
    assert metrics["rollout/turns"] == 4 and metrics["rollout/contexts"] == 4
    assert metrics["rollout/reward_reasoner"] == metrics["rollout/reward_actor"] > 0
    assert metrics["train/optimizer_steps"] == 1 and metrics["train/grad_norm"] > 0
    assert any((before[name] != each).any() for name, each in run.trainer.weights().items())
    run.rollout.close()
    run.trainer.close()


@pytest.mark.parametrize(
    ("ring", "message"),
    [
        (
            {"environment": "examples.ring.nothing:Env"},
            "rollout.agent.ring.environment: examples.ring.nothing:Env: c",
        ),
        ({"environment": "ring_jobs:ring_config"}, "rollout.agent.ring.environment=ring_jobs:ring_config: must be a c"),
        ({"environment": "ring_jobs:Stepless"}, "rollout.agent.ring.environment=ring_jobs:Stepless: has no method st"),
        (
            {"environment": "ring_jobs:OneArgument"},
            "rollout.agent.ring.environment=ring_jobs:OneArgument: is called a",
        ),
        ({"environment": ""}, "reward=workflow: rollout.agent.ring.environment is null, so the reward function must"),
        (
            {"members": "{one: {pre_process: 'examples.ring.process:nothing'}}"},
            "rollout.agent.ring.members.one.pre_process: examples.ring.process:nothing: ",
        ),
        (
            {"members": "{one: {pre_process: 'examples.ring.process:pre_process'}}"},
            "rollout.agent.ring.members.one: TypeError: pre_process() missing 1 required positional argument",
        ),
        (
            {"members": "{one: {pre_process: 'embodyflow.references:resolve'}}"},
            "rollout.agent.ring.members.one: TypeError: ",
        ),
    ],
)
def test_mistakes_are_reported_before_anything_starts(ring: dict[str, str], message: str) -> None:
    config = agent_config_without_checks(**{"environment": "examples.ring.sum_check:SumCheck", **ring})
    with pytest.raises(ConfigError) as refusal:
        check_agent(config)
    assert str(refusal.value).startswith(message)


def agent_config_without_checks(environment: str, members: str = "") -> Any:
    """Compose a ring with mistakes that only the checks before a run find."""
    config = ring_config()
    values = config.rollout.agent.model_dump()
    ring = values["ring"]
    ring["environment"] = environment or None
    if not environment:  # judged by the function of reward=workflow
        ring["members"]["reasoner"]["observes"] = False
    if members:
        name, _, reference = members.strip("{}").partition(": {pre_process: ")
        ring["members"] = {name: {"pre_process": reference.strip("'}")}}
    values["agents"] = ()
    changed = AgentConfig.model_validate(values)
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"agent": changed})})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"members": "{}"}, "rollout.agent.ring.members={}: "),
        (
            {"members": "{one: {observes: true}}"},
            "rollout.agent.ring.members.one: observes=true: only used with pre_",
        ),
        (
            {"members": "{one: {pre_process_kwargs: {a: 1}}}"},
            "rollout.agent.ring.members.one: pre_process_kwargs: onl",
        ),
        ({"trained_turns": "some"}, "rollout.agent.ring.trained_turns='some': "),
    ],
)
def test_a_wrong_key_is_one_line(words: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        ring_config(**words)
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)


def test_names_of_agents_are_those_of_the_members() -> None:
    assert ring_config().agents == ("reasoner", "actor")
    with pytest.raises(ConfigError, match=r"agents=\['other'\]: must be empty or the members of the ring, \['reason"):
        ring_jobs.agent_config(*ring_words(), "rollout.agent.agents=[other]")


def test_the_node_functions_give_each_agent_its_outcome() -> None:
    episode, _, context = play_turns(agent(), "2+9+1=12", "## 21", "7+5=12", "## 122")
    rows = to_batch(columns_of_episodes([Played(episode, context.counts, 0)], ("reasoner", "actor")))
    rows["success"], rows["scores"] = rows["own_success"], rows["own_reward"]
    rewards = tasks.compute_reward(rows).batch["rewards"][0, :, 0]
    agents, turns = rows["token_agent"][0, :, 0], rows["token_turn"][0, :, 0]
    of_turns = [float(rewards[turns == turn].sum()) for turn in (1, 2, 3, 4)]
    assert of_turns == [0, 0, 0.5, 0.5]
    assert [int(agents[turns == turn][0]) for turn in (1, 2, 3, 4)] == [1, 2, 1, 2]
    assert torch.equal(agents > 0, rows["loss_mask"][0, :, 0])
