"""Self-play: one model in all seats, each with its own conversation, outcome and advantage."""

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from agent_jobs import agent_config

import tasks
from embodyflow.agents.chat.call_journal import CallJournal
from embodyflow.agents.chat.transcript import Origin
from embodyflow.agents.episode import Episode
from embodyflow.agents.games.kuhn_poker import DEALS, KuhnPoker
from embodyflow.agents.games.kuhn_reading import read_strategy
from embodyflow.agents.games.self_play import SelfPlay
from embodyflow.agents.tools.tool_runner import ToolRunner
from embodyflow.algorithms.masked import one_rank
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.data.batches import to_batch
from embodyflow.errors import ConfigError
from embodyflow.generation.interface import Completion
from embodyflow.prompts.prompts import Prompt
from embodyflow.rollouts.agents.agent_rollout import AgentRollout, Services
from embodyflow.types import Batch

CONFIG = agent_config("experiment=kuhn", "warm_start.num_demos=40", "rollout.max_response_tokens=48")
KING_JACK = next(seed for seed in range(100) if KuhnPoker(seed).deal == ("king", "jack"))


@pytest.fixture(scope="module")
def rollout() -> Iterator[AgentRollout]:
    rollout = AgentRollout(CONFIG, 0, 1)
    yield rollout
    rollout.close()


def play(rollout: AgentRollout, monkeypatch: pytest.MonkeyPatch, *games: tuple[str, ...]) -> Batch:
    """Play demonstrations with these actions, each game with a king for the first player and a jack for the second."""
    rows = []
    for number, actions in enumerate(games):
        prompt = Prompt(number, None, [{"role": "user", "content": ""}], "", "seeds", {"seed": KING_JACK})
        rows.append((prompt, actions))
    monkeypatch.setattr(rollout._prompts, "prompt", lambda split, index: rows[index % len(rows)][0])

    async def demonstrate(row: Prompt) -> tuple[str, ...]:
        return rows[row.prompt_id][1]

    monkeypatch.setattr(rollout._workflow, "demonstrate", demonstrate)
    batch = to_batch(rollout.demonstrate())[: len(games)]
    batch["prompt_id"], batch["group_id"] = batch["uid"], torch.zeros(len(games), dtype=torch.int64)
    batch, _, _ = rollout.judge(batch, "demo")
    return batch


def texts(rollout: AgentRollout, batch: Batch, row: int, agent: int) -> list[str]:
    """Return what an agent wrote, turn by turn."""
    tokens, turns, agents = (batch[f"{name}"][row, :, 0] for name in ("action_tokens", "token_turn", "token_agent"))
    mine = turns[agents == agent].unique().tolist()
    return [rollout.tokenizer.decode(tokens[turns == turn]) for turn in mine]


def test_each_seat_has_a_conversation_and_an_outcome(rollout: AgentRollout, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = play(rollout, monkeypatch, ("check", "bet", "call"), ("bet", "fold"))
    assert texts(rollout, batch, 0, 1) == ["check<end>", "call<end>"] and texts(rollout, batch, 0, 2) == ["bet<end>"]
    first, second = (
        rollout.tokenizer.decode(batch["action_tokens"][0, batch["token_context"][0, :, 0] == context, 0][:20])
        for context in (0, 1)
    )
    assert first.startswith("check<end><user>bet<end><assistant>call<end>")
    assert second == "<bos><user>second jack check<end><assistant>bet<end>" and "king" not in second
    assert (batch["token_agent"] > 0).equal(batch["loss_mask"])

    rewards = tasks.compute_reward(batch).batch["rewards"][..., 0]
    outcomes = [[rewards[row, batch["token_agent"][row, :, 0] == agent].sum() for agent in (1, 2)] for row in (0, 1)]
    assert outcomes == [[2, -2], [1, -1]] and batch["success"].all() and (batch["scores"] == 1).all()


def test_a_seat_is_compared_with_itself(rollout: AgentRollout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A game's rewards add up to 0, and so would its advantage; each seat has the other's with the opposite sign."""
    batch = play(rollout, monkeypatch, ("check", "bet", "call"), ("bet", "fold"))
    worker: Any = type("Worker", (), {"config": CONFIG, "all_reduce": one_rank})
    batch = tasks.compute_advantage(tasks.compute_reward(batch).batch, worker=worker).batch
    agents, advantages = batch["token_agent"][..., 0], batch["advantages"][..., 0]
    for row, wins in ((0, 0.5), (1, -0.5)):  # the mean of 2 and 1 is 1.5
        assert (advantages[row][agents[row] == 1] == wins).all()
        assert (advantages[row][agents[row] == 2] == -wins).all()


class Answers:
    """A model that writes given texts."""

    def __init__(self, rollout: AgentRollout, *texts: str) -> None:
        self._rollout, self._texts = rollout, list(texts)
        self.asked: list[tuple[int, ...]] = []

    async def generate(self, prompt_ids: tuple[int, ...], max_tokens: int) -> Any:
        self.asked.append(prompt_ids)
        tokens = tuple(self._rollout.tokenizer(self._texts.pop(0))["input_ids"])[:max_tokens]
        ended = tokens[-1] == self._rollout.tokenizer.eos_token_id
        return Completion(tokens, (0.0,) * len(tokens), "stop" if ended else "length", 0)


@pytest.mark.parametrize(
    ("texts", "rewards"),
    [
        (("call<end>",), {"first": -2.0, "second": 2.0}),  # there is no bet to call
        (("checkcheckcheckcheck",), {"first": -2.0, "second": 2.0}),  # it does not end
        (("bet<end>", "bet<end>"), {"first": 2.0, "second": -2.0}),
        (("check<end>", "check<end>"), {"first": 1.0, "second": -1.0}),
    ],
)
def test_who_breaks_the_rules_loses(rollout: AgentRollout, texts: tuple[str, ...], rewards: dict[str, float]) -> None:
    episode = play_with(rollout, Answers(rollout, *texts))
    assert episode.agent_rewards == rewards and episode.finished
    assert episode.success is (texts == ("check<end>", "check<end>"))


def play_with(rollout: AgentRollout, model: Answers) -> Episode:
    """Play one game, with a king for the first player and a jack for the second."""
    row = Prompt(0, None, [{"role": "user", "content": ""}], "", "seeds", {"seed": KING_JACK})
    context = rollout._context(row, 0, 0, "train", 0, Services(ToolRunner(), CallJournal(None)))
    episode = asyncio.run(rollout._run(model, row, context))
    assert episode is not None and context.counts.mistakes == (not episode.success)
    return episode


def test_a_strategy_is_read_with_the_prompts_of_the_game(rollout: AgentRollout) -> None:
    model, read = Answers(rollout, "check<end>", "bet<end>", "call<end>"), set()

    def score(pairs: list[Any]) -> list[Any]:
        read.update(prompt for prompt, _ in pairs)
        return [np.zeros(2, np.float32)] * len(pairs)

    play_with(rollout, model)
    read_strategy(score, rollout.tokenizer)
    assert len(read) == 12 and len(model.asked) == 3 and read.issuperset(model.asked)


def test_demonstrations_are_random_games_by_the_rules(rollout: AgentRollout) -> None:
    batch = to_batch(rollout.demonstrate())
    assert len(batch) == 40 and batch["own_success"].all() and not batch["tool_mistakes"].any()
    opened = {texts(rollout, batch, row, 1)[0] for row in range(40)}
    assert opened == {"check<end>", "bet<end>"} and {2, 3} == set(batch["num_turns"].tolist())
    assert batch["token_origin"].unique().tolist() == [Origin.TEMPLATE, Origin.MODEL, Origin.USER]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"game": None}, "rollout.agent.game: must be set for the workflow SelfPlay"),
        ({"agents": ("second", "first")}, r"rollout.agent.agents=\['second', 'first'\]: must be the players of "),
        ({"game": "embodyflow.agents.games.kuhn_poker:Chess"}, "has no attribute 'Chess'"),
        ({"game": "test_self_play:Moody"}, "two games with seed 0 begin differently; a game must depend on its seed"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused(words: dict[str, Any], message: str) -> None:
    config: AgentConfig = CONFIG.rollout.agent.model_copy(update=words)
    with pytest.raises(ConfigError, match=message):
        SelfPlay(config)


class Moody(KuhnPoker):
    """A game whose deals do not depend on the seed."""

    made = count()

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.deal = DEALS[next(self.made) % 2 * 5]


def test_rows_need_a_seed() -> None:
    row = Prompt(0, None, [{"role": "user", "content": ""}], "", "rows")
    with pytest.raises(ConfigError, match="needs rows with a number seed; allowed is data=seeds"):
        SelfPlay(CONFIG.rollout.agent).check(row)
