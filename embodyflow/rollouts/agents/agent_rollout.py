"""Rollouts of agents: conversations with tools, as rows of a language model."""

import asyncio
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from embodyflow.agents.chat.call_journal import CallJournal
from embodyflow.agents.chat.chat_memory import ChatMemory
from embodyflow.agents.chat.conversation import Model
from embodyflow.agents.chat.sampled_calls import RecordedModel
from embodyflow.agents.chat.transcript import Origin, Tokens
from embodyflow.agents.conducting.conductor import Conductor
from embodyflow.agents.conducting.conductors import build_conductor
from embodyflow.agents.episode import Episode, EpisodeContext, Faults
from embodyflow.agents.tools.tool_runner import ToolRunner
from embodyflow.agents.workflow import ChatEngine, Closable, Demonstrator, Measured
from embodyflow.agents.workflow_registry import build_workflow
from embodyflow.config.agents.agent import AgentJobConfig
from embodyflow.data.batches import Columns
from embodyflow.data.metrics import Metric, total
from embodyflow.data.rows_file import Journal
from embodyflow.errors import ConfigError, EpisodeError, InfrastructureError
from embodyflow.generation.agent_engines import AgentEngines
from embodyflow.generation.interface import Completion, ConversationEngine, FinishReason, GenerationEngine
from embodyflow.policies.language.agent_arrays import arrays_of
from embodyflow.prompts.prompts import Prompt, encode_response
from embodyflow.rewards.interface import Sample, Score
from embodyflow.rollouts.agents.agent_rows import Played, columns_of_episodes, conversation_metrics
from embodyflow.rollouts.language.language_rollout import SPLITS, LanguageRollout, Question, ids_of
from embodyflow.seeding import derive_seed
from embodyflow.types import Batch

log = logging.getLogger(__name__)

GREEDY_SEED = 0  # greedy decoding draws nothing
Draws = tuple[int | str, ...] | None


@dataclass(frozen=True)
class Services:
    """What the episodes of an event loop share.

    Attributes:
        runner: Runs their tools.
        journal: Keeps their calls.
    """

    runner: ToolRunner
    journal: CallJournal


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
        self._workflow = build_workflow(self._agent)
        self._memory = ChatMemory()
        self._calls_journal, self._faults, self._tokens_read = CallJournal(None), Faults(), 0

    def play(self, questions: Sequence[Question], split: str, draws: Draws, journal: Journal | None = None) -> Columns:
        """Play an episode for each question; arguments and result as in :meth:`LanguageRollout.play`.

        The turns of the model and the answers of tools are kept beside the journal as they come. A later attempt
        plays the unfinished calls again, turn by turn at the same pace, and takes what is recorded.
        """
        self._calls_journal = CallJournal(None if journal is None else journal.beside("calls"))
        return super().play(questions, split, draws, journal)

    def judge(self, batch: Batch, split: str) -> tuple[Batch, dict[str, Metric], list[dict[str, Any]]]:
        """Score episodes as :meth:`LanguageRollout.judge` scores responses; the texts show whole conversations."""
        batch, metrics, shown = super().judge(batch, split)
        for row, text in enumerate(shown):
            text["response"] = self.tokenizer.decode(super()._graded(batch, row), skip_special_tokens=False)
        return batch, metrics | conversation_metrics(batch, self._agent), shown

    def fault_metrics(self) -> dict[str, Metric]:
        """Return counts since the last call: failures of tools, rejections, tokens read, and the workflow's metrics."""
        faults, self._faults = self._faults, Faults()
        tokens_read, self._tokens_read = self._tokens_read, 0
        return {
            "perf/tool_retries": total(faults.retries),
            "perf/redrawn_episodes": total(faults.redraws),
            "perf/rejected_episodes": total(faults.rejections),
            "perf/tokens_read": total(tokens_read),
            **(self._workflow.metrics() if isinstance(self._workflow, Measured) else {}),
        }

    def demonstrate(self) -> Columns:
        """Return this rank's share of the prompt source's demonstrations, played with the real tools.

        Raises:
            ConfigError: A demonstration does not fit, or a call in it is a mistake.
        """
        assert self.config.warm_start is not None
        numbers = range(self.rank, self.config.warm_start.num_demos, self.world_size)
        played = asyncio.run(self._demonstrate(numbers))
        return {"uid": np.array(numbers, np.int64), **columns_of_episodes(played, self._agent.agents)}

    def close(self) -> None:
        """Close the engine, the reward manager and the workflow."""
        super().close()
        if isinstance(self._workflow, Closable):
            self._workflow.close()

    def _build_engine(self) -> GenerationEngine:
        """Build the engine, or one for each agent with weights of its own."""
        build = super()._build_engine
        if not self._agent.has_own_weights:
            return build()
        return AgentEngines({name: cast(ConversationEngine, build()) for name in self._agent.agents})

    def _load(self, engine: GenerationEngine, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Load weights, and check them with the probe; with weights of their own, those of each agent."""
        if not isinstance(engine, AgentEngines):
            super()._load(engine, weights, version)
            return
        for name, each in engine.engines.items():
            super()._load(each, arrays_of(name, weights), version)
        engine.version = version

    async def _demonstrate(self, numbers: Sequence[int]) -> list[Played]:
        services = Services(ToolRunner(), CallJournal(None))
        return await asyncio.gather(*(self._demonstration(number, services) for number in numbers))

    async def _demonstration(self, number: int, services: Services) -> Played:
        prompt = self._prompts.prompt("demo", number)
        turns = await self._turns_to_imitate(number)
        script = Script([encode_response(prompt, turn, self.tokenizer) for turn in turns])
        context = self._context(prompt, number, GREEDY_SEED, "demo", 0, services)
        episode = await self._run(script, prompt, context)
        place = f"demonstration {number}, {self._prompts.place('demo', number)}"
        if episode is None:
            raise ConfigError(f"rollout.agent: {place}: the workflow rejects it")
        if context.counts.mistakes:
            raise ConfigError(f"rollout.agent: {place}: a call in it is a mistake; its tools must accept all calls")
        if context.counts.turns < len(turns) or not episode.finished:
            raise ConfigError(
                f"rollout.agent: {place}: {context.counts.turns} of {len(turns)} turns were played; allow more with "
                "rollout.agent.max_turns, rollout.agent.max_turn_tokens or rollout.max_response_tokens"
            )
        return Played(episode, context.counts, context.seed)

    async def _turns_to_imitate(self, number: int) -> tuple[str, ...]:
        if isinstance(self._workflow, Demonstrator):
            return await self._workflow.demonstrate(self._prompts.prompt("demo", number))
        return self._prompts.demonstration_turns("demo", number)

    def _sample(self, questions: Sequence[Question], split: str, draws: Draws) -> Columns:
        assert self._engine is not None, "update_weights must be called first"
        conductor: Conductor[Played] = build_conductor(self._engine, self._sampling(is_greedy=draws is None))
        services = Services(ToolRunner(), self._calls_journal)
        played = conductor.run(
            [
                partial(self._play, conductor, number, question, split, draws, services)
                for number, question in enumerate(questions)
            ]
        )
        self._tokens_read += conductor.counts.read
        return {**ids_of(questions), **columns_of_episodes(played, self._agent.agents)}

    async def _play(
        self,
        conductor: Conductor[Played],
        number: int,
        question: Question,
        split: str,
        draws: Draws,
        services: Services,
    ) -> Played:
        """Play an episode; draw it again if the infrastructure fails or the workflow rejects it.

        Raises:
            InfrastructureError: It failed in all draws.
            EpisodeError: The workflow raised, or rejected all draws.
        """
        prompt = self._prompts.prompt(SPLITS[split], question.index)
        draw = 0
        while True:
            context = self._context(prompt, question.uid, _seed(draws, question, draw), split, draw, services)
            sampled = _Sampled(conductor, number, context)
            model = RecordedModel(sampled)
            try:
                episode = await self._run(model, prompt, context, self._models_of_agents(sampled, model))
                if episode is None:
                    episode = self._rejected(model, question.uid, draw, is_greedy=draws is None)
                if episode is not None:
                    return Played(episode, context.counts, context.seed)
            except InfrastructureError as error:
                if draw == self._agent.max_redraws:
                    error.add_note(f"episode {question.uid}, drawn {draw + 1} times")
                    raise
                log.warning("episode %d is drawn again: %s", question.uid, error)
                self._faults.redraws += 1
            except Exception as error:
                raise EpisodeError(question.uid, f"{type(error).__name__}: {error}") from error
            draw += 1

    def _models_of_agents(self, sampled: "_Sampled", recorded: RecordedModel) -> dict[str, Model]:
        """Return the model of each agent with weights of its own; all of them number and keep the episode's turns."""
        if not self._agent.has_own_weights:
            return {}
        return {name: RecordedModel(replace(sampled, agent=name), recorded.calls) for name in self._agent.agents}

    def _rejected(self, model: RecordedModel, uid: int, draw: int, is_greedy: bool) -> Episode | None:
        """Count an episode that the workflow rejected; return one that counts as failed, or ``None`` to draw it again.

        Raises:
            RuntimeError: The workflow rejected all its draws.
        """
        self._faults.rejections += 1
        if is_greedy:  # another draw would be the same
            return Episode(model.longest(), finished=False, reward=0.0, success=False)
        if draw == self._agent.max_redraws:
            raise RuntimeError(f"rejected {draw + 1} times; rollout.agent.max_redraws={draw} allows no more draws")
        log.warning("episode %d is drawn again: the workflow rejected it", uid)
        return None

    async def _run(
        self, model: Model, prompt: Prompt, context: EpisodeContext, models: Mapping[str, Model] | None = None
    ) -> Episode | None:
        rollout = self.config.rollout
        engine = ChatEngine(
            model,
            self.tokenizer,
            rollout.max_prompt_tokens,
            rollout.max_response_tokens,
            rollout.temperature,
            agents=self._agent.agents,
            memory=self._memory,
            models=models or {},
        )
        episode = await self._workflow.run(engine, prompt, context)
        if not isinstance(episode, Episode | None):
            raise TypeError(f"{self._agent.workflow} must return an Episode or None, gave {type(episode).__name__}")
        return episode

    def _context(
        self, prompt: Prompt, uid: int, seed: int, split: str, draw: int, services: Services
    ) -> EpisodeContext:
        grade, journal, runner = partial(self._grade, prompt, uid), services.journal, services.runner
        return EpisodeContext(uid, seed, split, draw, self._agent, journal, runner, self._faults, grade)

    def _grade(self, prompt: Prompt, uid: int, episode: Episode) -> Score:
        """Return the reward function's score of the model's last turn in an episode that may go on."""
        response = episode.transcript.response()
        last = max(response.turns)
        answer = tuple(token for token, turn in zip(response.tokens, response.turns, strict=True) if turn == last)
        sample = self._sample_of(uid, prompt, episode.transcript.prompt, answer, episode.finished)
        written = sum(origin == Origin.MODEL for origin in response.origins)
        return self._rewards.score([replace(sample, num_tokens=written)])[0]

    def _score(self, batch: Batch, samples: Sequence[Sample]) -> list[Score]:
        """Return the workflow's own rewards, and those of the reward function for episodes without one."""
        rows, own = range(len(samples)), batch["rewarded"].tolist()
        judged = iter(self._rewards.score([samples[row] for row in rows if not own[row]]))
        return [
            Score(float(batch["own_reward"][row]), bool(batch["own_success"][row])) if own[row] else next(judged)
            for row in rows
        ]

    def _graded(self, batch: Batch, row: int) -> torch.Tensor:
        """Return the tokens of the model's last turn."""
        tokens, turns = super()._graded(batch, row), batch["token_turn"][row].flatten()
        return tokens[turns[: len(tokens)] == turns.max()]

    def _num_written(self, batch: Batch, row: int) -> int:
        """Return the number of tokens that the model wrote in all its turns."""
        return int((batch["token_origin"][row] == Origin.MODEL).sum())


@dataclass
class _Sampled:
    """The policy of an episode, or of an agent in it, sampled together with other episodes' turns."""

    conductor: Conductor[Played]
    number: int
    context: EpisodeContext
    agent: str = ""
    turns: Iterator[int] = field(default_factory=itertools.count)

    async def generate(self, prompt_ids: Tokens, max_tokens: int) -> Completion:
        """Sample the next turn; a turn that an earlier attempt recorded takes its place."""
        context, turn = self.context, next(self.turns)
        request = (self.number, prompt_ids, max_tokens, derive_seed(context.seed, "turn", turn))
        recorded = context.journal.completion(context.uid, context.draw, turn, prompt_ids)
        if recorded is not None:
            return await self.conductor.replay(*request, recorded, self.agent)
        sampled = await self.conductor.generate(*request, self.agent)
        context.journal.add_completion(context.uid, context.draw, turn, prompt_ids, sampled)
        return sampled


@dataclass
class Script:
    """A model whose turns are known before."""

    turns: Sequence[Tokens]
    num_written: int = 0

    async def generate(self, prompt_ids: Tokens, max_tokens: int) -> Completion:
        """Return the next turn, cut to the limit; after the last turn it is empty of calls."""
        tokens = self.turns[min(self.num_written, len(self.turns) - 1)]
        self.num_written += 1
        reason: FinishReason = "stop" if len(tokens) <= max_tokens else "length"
        return Completion(tokens[:max_tokens], (0.0,) * min(len(tokens), max_tokens), reason, -1)


def _seed(draws: Draws, question: Question, draw: int) -> int:
    return GREEDY_SEED if draws is None else derive_seed(*draws, question.row, "draw", draw)
