"""Rollouts of agents: conversations with tools, as rows of a language model."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from embodyflow.agents.answers import AnswerJournal
from embodyflow.agents.conductor import Conductor
from embodyflow.agents.episode import Counts, Episode, EpisodeContext, Model, ToolFailedError, redrawn
from embodyflow.agents.transcript import Origin, Tokens
from embodyflow.agents.workflow import ChatEngine, RolloutWorkflow
from embodyflow.config.agent import AgentJobConfig
from embodyflow.data.batches import Columns
from embodyflow.data.metrics import Metric, mean, total
from embodyflow.data.padding import pad_lists
from embodyflow.data.rows_file import Journal
from embodyflow.generation.interface import Completion, Sampling
from embodyflow.prompts.prompts import Prompt, encode_response
from embodyflow.references import resolve
from embodyflow.rollouts.language_rollout import SPLITS, LanguageRollout, Question, ids_of
from embodyflow.seeding import derive_seed
from embodyflow.types import Batch

GREEDY_SEED = 0  # greedy decoding draws nothing


@dataclass(frozen=True)
class Played:
    """An episode with its prompt's seed and its counts."""

    episode: Episode
    counts: Counts
    seed: int


class AgentRollout(LanguageRollout):
    """The rollout engine of agents.

    Args:
        config: Run configuration.
        rank: Rank of this worker in its group.
        world_size: Number of workers in the group.
    """

    config: AgentJobConfig

    def __init__(self, config: AgentJobConfig, rank: int, world_size: int) -> None:
        super().__init__(config, rank, world_size)
        self._agent = config.rollout.agent
        self._workflow: RolloutWorkflow = resolve(self._agent.workflow)(self._agent)
        self._answers = AnswerJournal(None)

    def play(
        self,
        questions: Sequence[Question],
        split: str,
        draws: tuple[int | str, ...] | None,
        journal: Journal | None = None,
    ) -> Columns:
        """Play an episode for each question; arguments and result as in :meth:`LanguageRollout.play`.

        The answers of tools are kept beside the journal. A later attempt reads them instead of calling the tools.
        """
        self._answers = AnswerJournal(None if journal is None else journal.beside(".answers"))
        return super().play(questions, split, draws, journal)

    def demonstrate(self) -> Columns:
        """Return this rank's share of the prompt source's demonstrations, played with the real tools."""
        assert self.config.warm_start is not None
        numbers = range(self.rank, self.config.warm_start.num_demos, self.world_size)
        played = asyncio.run(self._demonstrate(numbers))
        return {"uid": np.array(numbers, np.int64), **_columns_of(played)}

    async def _demonstrate(self, numbers: Sequence[int]) -> list[Played]:
        played = []
        for number in numbers:
            prompt = self._prompts.prompt("demo", number)
            turns = self._prompts.demonstration_turns("demo", number)
            model = _Script([encode_response(prompt, turn, self.tokenizer) for turn in turns])
            context = EpisodeContext(number, 0, "demo", 0, self._agent, AnswerJournal(None))
            played.append(Played(await self._run(model, prompt, context), context.counts, context.seed))
        return played

    def _sample(self, questions: Sequence[Question], split: str, draws: tuple[int | str, ...] | None) -> Columns:
        assert self._engine is not None, "update_weights must be called first"
        rollout = self.config.rollout
        sampling = Sampling(
            max_tokens=rollout.max_response_tokens,
            temperature=0.0 if draws is None else rollout.temperature,
            stop_token_ids=self._stop_tokens,
        )
        conductor: Conductor[Played] = Conductor(self._engine, sampling)
        played = conductor.run(
            [
                partial(self._play, conductor, number, question, split, draws)
                for number, question in enumerate(questions)
            ]
        )
        return {
            **ids_of(questions),
            "seed": np.array([each.seed for each in played], np.int64),
            **_columns_of(played),
        }

    async def _play(
        self,
        conductor: Conductor[Played],
        number: int,
        question: Question,
        split: str,
        draws: tuple[int | str, ...] | None,
    ) -> Played:
        """Play an episode; draw it again if a tool fails in all attempts."""
        prompt = self._prompts.prompt(SPLITS[split], question.index)
        context = EpisodeContext(question.uid, _seed(draws, question, 0), split, 0, self._agent, self._answers)
        while True:
            try:
                episode = await self._run(_Sampled(conductor, number, context.seed), prompt, context)
                return Played(episode, context.counts, context.seed)
            except ToolFailedError as error:
                if context.draw == self._agent.max_redraws:
                    error.add_note(f"episode {question.uid}, drawn {context.draw + 1} times")
                    raise
                context = redrawn(context, _seed(draws, question, context.draw + 1))

    async def _run(self, model: Model, prompt: Prompt, context: EpisodeContext) -> Episode:
        rollout = self.config.rollout
        engine = ChatEngine(model, self.tokenizer, rollout.max_prompt_tokens, rollout.max_response_tokens)
        return await self._workflow.run(engine, prompt, context)

    def _graded(self, batch: Batch, row: int) -> torch.Tensor:
        """Return the tokens of the model's last turn."""
        tokens = super()._graded(batch, row)
        others = (batch["token_origin"][row].flatten()[: len(tokens)] != Origin.MODEL).nonzero()
        return tokens[int(others[-1]) + 1 if len(others) else 0 :]


def agent_metrics(rows: Batch) -> dict[str, Metric]:
    """Return how often the model and its tools took turns, and what went wrong."""
    count = len(rows)
    return {
        "agent/turns": mean(float(rows["num_turns"].float().mean()), count),
        "agent/tool_calls": mean(float(rows["tool_calls"].float().mean()), count),
        "agent/tool_mistakes": total(int(rows["tool_mistakes"].sum())),
        "agent/tool_retries": total(int(rows["tool_retries"].sum())),
        "agent/redraws": total(int(rows["redraws"].sum())),
    }


@dataclass(frozen=True)
class _Sampled:
    """The policy, sampled together with other episodes' turns."""

    conductor: Conductor[Played]
    episode: int
    seed: int
    turns: list[int] = field(default_factory=list)

    async def generate(self, prompt_ids: Tokens, max_tokens: int) -> Completion:
        """Sample the next turn."""
        seed = derive_seed(self.seed, "turn", len(self.turns))
        self.turns.append(seed)
        return await self.conductor.generate(self.episode, prompt_ids, max_tokens, seed)


@dataclass
class _Script:
    """Turns that are known before."""

    turns: list[Tokens]
    num_written: int = 0

    async def generate(self, prompt_ids: Tokens, max_tokens: int) -> Completion:
        """Return the next turn."""
        tokens = self.turns[self.num_written]
        self.num_written += 1
        return Completion(tokens, (0.0,) * len(tokens), "stop", -1)


def _seed(draws: tuple[int | str, ...] | None, question: Question, draw: int) -> int:
    return GREEDY_SEED if draws is None else derive_seed(*draws, question.row, "draw", draw)


def _columns_of(played: Sequence[Played]) -> Columns:
    responses = [each.episode.transcript.response() for each in played]
    inside, tokens = pad_lists([response.tokens for response in responses], np.int64)
    _, log_probs = pad_lists([response.log_probs for response in responses], np.float32)
    _, origins = pad_lists([response.origins for response in responses], np.uint8)
    lengths = inside.sum(1)
    finished = np.array([each.episode.finished for each in played], np.bool_)
    prompts = [each.episode.transcript.prompt for each in played]
    counts: dict[str, Any] = {
        "num_turns": [each.counts.turns for each in played],
        "tool_calls": [each.counts.calls for each in played],
        "tool_mistakes": [each.counts.mistakes for each in played],
        "tool_retries": [each.counts.retries for each in played],
        "redraws": [each.counts.draws for each in played],
    }
    return {
        "policy_version": np.array([response.policy_version for response in responses], np.int64),
        "prompt_tokens": pad_lists(prompts, np.int64)[1],
        "prompt_length": np.array([len(prompt) for prompt in prompts], np.int64),
        "action_tokens": tokens[..., None],
        "log_probs": log_probs[..., None],
        "loss_mask": (inside & (origins == Origin.MODEL))[..., None],
        "token_origin": origins[..., None],
        "response_length": lengths,
        "num_steps": lengths.copy(),
        "terminated": finished,
        "truncated": ~finished,
        **{name: np.array(values, np.int64) for name, values in counts.items()},
    }
