"""Rollouts of a language model: responses of a generation engine to prompts, and their rewards."""

import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from embodyflow.config.language import LanguageConfig
from embodyflow.data.batches import Columns
from embodyflow.data.metrics import Metric, mean
from embodyflow.data.padding import pad_lists, to_padded, to_ragged
from embodyflow.data.plans.partition import Share
from embodyflow.data.rows_file import Journal
from embodyflow.data.segment import Segment
from embodyflow.data.tables import concatenate
from embodyflow.errors import ConfigError, InfrastructureError
from embodyflow.generation.engines import build_generation_engine
from embodyflow.generation.interface import Completion, ConversationEngine, GenerationEngine, Request, Sampling
from embodyflow.generation.probe import PREFIX, compare, probe_sequences
from embodyflow.policies.language.causal_lm.modeling_causal_lm import (
    build_model,
    folder_of,
    save_folder,
    stop_tokens_of,
)
from embodyflow.policies.language.causal_lm.tokenizer_causal_lm import build_tokenizer
from embodyflow.process.heap import collect_rarely, keep_freed_memory
from embodyflow.process.tracing import span
from embodyflow.prompts.epochs import shuffled_rows
from embodyflow.prompts.prompt_registry import build_prompt_source
from embodyflow.prompts.prompts import Prompt, Split, encode, encode_response, end_of_response
from embodyflow.prompts.validation_scores import Answers, score_metrics
from embodyflow.rewards.interface import RewardManager, Sample, Score
from embodyflow.rewards.reward_registry import build_reward_manager
from embodyflow.rollouts.group_rollout import GroupRollout, GroupRow, first_rows, places
from embodyflow.rollouts.language.gold_selection import select_gradable, skips_ungradable
from embodyflow.rollouts.language.language_checks import check_prompts
from embodyflow.rollouts.language.segments import Response, end_of, unfinished, version_column
from embodyflow.rollouts.language.stop_tokens import named_stop_tokens
from embodyflow.seeding import derive_rng, derive_seed
from embodyflow.types import Batch

SPLITS: dict[str, Split] = {"train": "train", "eval": "validation", "demo": "demo"}
Tokens = tuple[int, ...]
_BUILDING = threading.Lock()
"""Held while an engine is built: transformers builds models by defaults of the whole process, not of a thread."""


@dataclass(frozen=True)
class Question(GroupRow):
    """A response to sample.

    Attributes:
        index: Index of the prompt in its split.
    """

    index: int


class LanguageRollout(GroupRollout):
    """The rollout engine of language models.

    Args:
        config: Run configuration.
        rank: Rank of this worker in its group.
        world_size: Number of workers in the group.
    """

    def __init__(self, config: LanguageConfig, rank: int, world_size: int) -> None:
        super().__init__(config, rank, world_size)
        keep_freed_memory()
        collect_rarely()
        self.config = config
        self.tokenizer = build_tokenizer(config.policy)
        self._prompts = build_prompt_source(config.data, self.tokenizer, config.rollout.max_prompt_tokens)
        ends = {*stop_tokens_of(config.policy, self.tokenizer), *self._ends_of_turns()}
        self._stop_tokens = tuple(sorted({*ends, *named_stop_tokens(config.rollout.stop_tokens, self.tokenizer)}))
        self._left_out: dict[Split, int] = {}
        if skips_ungradable(config):
            self._prompts, self._left_out = select_gradable(config, self._prompts)
        check_prompts(config, self._prompts)
        self._rewards: RewardManager = build_reward_manager(config.reward)
        self._engine: GenerationEngine | None = None

    def update_weights(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Load the weights that the engine generates with from now on.

        Args:
            weights: Weights by name, together with the trainer's log-probs of the probe.
            version: Version of the weights.

        Raises:
            ParityError: The engine's log-probs of the probe differ from the trainer's.
        """
        if self._engine is None:
            self._engine = self._build_engine()
        self._load(self._engine, weights, version)

    def _build_engine(self) -> GenerationEngine:
        with _BUILDING, self._model_folder() as folder:
            return build_generation_engine(self.config.rollout.generation, folder, self.config.cluster.device)

    def _load(self, engine: GenerationEngine, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Load weights into an engine and compare its log-probs of the probe with the trainer's."""
        probe = {name: array for name, array in weights.items() if name.startswith(PREFIX)}
        engine.update_weights({name: weights[name] for name in weights.keys() - probe.keys()}, version)
        scores = engine.score(probe_sequences(self.config.seed, len(self.tokenizer)))
        compare(probe, scores, self.config.rollout.probe_tolerance, version, self.rank)

    def training_episodes(self, seed: int, iteration: int, reroll: int = 0) -> list[Question]:
        """Return this rank's responses of an iteration: whole groups, whose siblings share a prompt.

        Args:
            seed: Seed of the run.
            iteration: Index of the iteration, from 1.
            reroll: 0 for the iteration's own responses, which visit all prompts in a new order per epoch. From 1 for
                further rounds of the same size, with prompts drawn at random.
        """
        rollout, num_prompts = self.config.rollout, self._prompts.num_prompts("train")
        if reroll:
            chosen = derive_rng(seed, iteration, "prompts", reroll).integers(num_prompts, size=rollout.num_groups)
        else:
            chosen = shuffled_rows(seed, num_prompts, (iteration - 1) * rollout.num_groups, rollout.num_groups)
        return [
            Question(place.row, place.uid, place.group_id, int(chosen[place.group]))
            for place in places(self.config, self.rank, self.world_size, iteration, reroll)
        ]

    def first_of_groups(self, batch: Batch) -> list[Question]:
        """Return a question for the first row of each group, with the group's prompt."""
        columns = (batch[name].tolist() for name in ("uid", "group_id", "prompt_id"))
        rows = list(zip(*columns, strict=True))
        return [Question(row, *rows[row]) for row in first_rows(batch["group_id"])]

    def is_divisible(self) -> bool:
        """Return True if a response does not depend on the responses beside it, to the last bit of its log-probs."""
        return isinstance(self._engine, ConversationEngine) and self._engine.is_batch_invariant()

    def evaluation_episodes(self, mode: str = "greedy", *, share: Share | None = None) -> list[Question]:
        """Return a share of the first ``evaluation.num_prompts`` validation prompts; the default is this rank's own.

        In the mode ``sampled`` each prompt occurs ``evaluation.num_samples`` times.
        """
        evaluation, share = self.config.evaluation, share or self.own_share
        times = evaluation.num_samples if mode == "sampled" else 1
        indices = range(share.index, evaluation.num_prompts, share.count)
        rows = [(index * times + sibling, index) for index in indices for sibling in range(times)]
        return [Question(row, row, index, index) for row, index in rows]

    def held_out_episodes(self) -> list[Question]:
        """Return this rank's share of the last ``warm_start.until.num_held_out`` prompts of the demo split."""
        assert self.config.warm_start is not None
        number, end = self.config.warm_start.num_held_out, self._prompts.num_prompts("demo")
        return [Question(row, row, row, end - number + row) for row in range(self.rank, number, self.world_size)]

    def play(
        self,
        questions: Sequence[Question],
        split: str,
        draws: tuple[int | str, ...] | None,
        journal: Journal | None = None,
    ) -> Columns:
        """Sample a response to each question.

        The last bit of a log-prob may depend on the other responses of the same engine call. So the journal stores
        whole calls, and a later attempt makes the remaining calls with the same questions in each.

        Args:
            questions: Responses to sample.
            split: Split of the prompts, ``train``, ``eval`` or ``demo``.
            draws: Parts of a response's seed; the question's row is appended. ``None`` decodes greedily.
            journal: Journal that stores the responses of ``rollout.groups_per_call`` groups per call and returns those
                of an earlier attempt. Without one, a single call samples all responses.

        Returns:
            Columns of language rows (:mod:`embodyflow.types`), in the order of ``questions``.
        """
        if journal is None:
            return self._sample(questions, split, draws)
        calls, pieces = self._calls(questions), journal.read()
        for call in calls[len(pieces) :]:
            pieces.append(to_ragged(self._sample(call, split, draws)))
            journal.append(pieces[-1])
        return cast(Columns, to_padded(concatenate(pieces)))

    def play_segment(
        self,
        questions: Sequence[Question],
        draws: tuple[int | str, ...],
        segment: Segment,
        journals: tuple[Journal | None, Journal],
    ) -> tuple[Columns, int]:
        """Sample a segment of training responses with the present weights.

        Token t of a response belongs to segment ⌊t / ``rollout.interrupt.every``⌋, and the last segment has all that
        are left. The journals store whole calls of the engine, as in :meth:`play`.

        Args:
            questions: Responses to sample.
            draws: Parts of a response's seed; the question's row is appended.
            segment: Segment to sample.
            journals: Journal of the segment before, ``None`` for the first one, and of this one.

        Returns:
            The language rows so far, with the column ``token_version``, and the number of tokens that were sampled.

        Raises:
            InfrastructureError: The journal of the segment before lacks calls. A retry begins with the first segment.
        """
        before, here = journals
        calls, pieces, sampled = self._calls(questions), here.read(), 0
        earlier = before.read() if before is not None else [None] * len(calls)
        if len(earlier) < len(calls):
            raise InfrastructureError(f"segment {segment.index}: the rows of the segment before are gone")
        for call, piece in list(zip(calls, earlier, strict=True))[len(pieces) :]:
            begun = self._begin(call, draws) if piece is None else unfinished(cast(Columns, to_padded(piece)))
            responses = self._continue(begun, segment)
            sampled += sum(len(new.token_ids) - len(old.token_ids) for new, old in zip(responses, begun, strict=True))
            pieces.append(to_ragged(self._rows_of(call, responses)))
            here.append(pieces[-1])
        return cast(Columns, to_padded(concatenate(pieces))), sampled

    def _begin(self, questions: Sequence[Question], draws: tuple[int | str, ...]) -> list[Response]:
        return [Response(each.prompt_ids, each.seed) for each in self._requests(questions, "train", draws)]

    def _continue(self, responses: Sequence[Response], segment: Segment) -> list[Response]:
        """Return the responses at the end of a segment."""
        rollout = self.config.rollout
        assert rollout.interrupt.every is not None
        end = end_of(segment.index, rollout.interrupt.every, segment.is_last, rollout.max_response_tokens)
        is_open = [not each.has_stopped and len(each.token_ids) < end for each in responses]
        requests = [each.request(end - len(each.token_ids)) for each in compress(responses, is_open)]
        new = iter(self._generate(requests, is_greedy=False))
        return [each.extended(next(new)) if more else each for each, more in zip(responses, is_open, strict=True)]

    def _rows_of(self, questions: Sequence[Question], responses: Sequence[Response]) -> Columns:
        requests = [Request(each.prompt, each.seed) for each in responses]
        return responses_of(questions, requests, [each.completion() for each in responses]) | version_column(responses)

    def _calls(self, questions: Sequence[Question]) -> list[Sequence[Question]]:
        """Split the questions into engine calls; siblings of a group are in the same call."""
        rollout = self.config.rollout
        size = (rollout.groups_per_call or rollout.num_groups) * rollout.group_size
        return [questions[start : start + size] for start in range(0, len(questions), size)]

    def _sample(self, questions: Sequence[Question], split: str, draws: tuple[int | str, ...] | None) -> Columns:
        requests = self._requests(questions, split, draws)
        return responses_of(questions, requests, self._generate(requests, is_greedy=draws is None))

    def _generate(self, requests: Sequence[Request], *, is_greedy: bool) -> list[Completion]:
        assert self._engine is not None, "update_weights must be called first"
        with span("generate responses", "policy", rows=len(requests)):
            return self._engine.generate(requests, self._sampling(is_greedy=is_greedy))

    def _requests(
        self, questions: Sequence[Question], split: str, draws: tuple[int | str, ...] | None
    ) -> list[Request]:
        seeds = [0 if draws is None else derive_seed(*draws, question.row) for question in questions]
        distinct = {question.index for question in questions}  # siblings share a prompt
        tokens_of = {index: self._encode(self._prompts.prompt(SPLITS[split], index)) for index in distinct}
        return [Request(tokens_of[each.index], seed) for each, seed in zip(questions, seeds, strict=True)]

    def _sampling(self, *, is_greedy: bool) -> Sampling:
        """Return how responses, or the turns of agents, are sampled."""
        rollout = self.config.rollout
        return Sampling(
            max_tokens=rollout.max_response_tokens,
            temperature=0.0 if is_greedy else rollout.temperature,
            stop_token_ids=self._stop_tokens,
        )

    def judge(self, batch: Batch, split: str) -> tuple[Batch, dict[str, Metric], list[dict[str, Any]]]:
        """Score responses with the reward function.

        Args:
            batch: Language rows.
            split: Split of their prompts.

        Returns:
            The rows with ``success`` and ``scores``, metrics, and the first few responses as readable text.

        Raises:
            RewardError: The reward function failed; the message names the row's uid.
        """
        samples = self._samples(batch, SPLITS[split])
        with span("score responses", "call", rows=len(samples)):
            scores = self._score(batch, samples)
        batch["success"] = torch.tensor([score.correct for score in scores], dtype=torch.bool)
        batch["scores"] = torch.tensor([score.reward for score in scores], dtype=torch.float32)
        metrics = reward_metrics(scores) | score_metrics(
            Answers(
                [sample.data_source for sample in samples],
                batch["prompt_id"].numpy(),
                batch["scores"].numpy(),
                batch["success"].numpy(),
            ),
            sorted({1, min_samples(batch["prompt_id"].numpy())}) if samples else (),
            "scores",
        )
        metrics |= {f"prompts/ungradable_{name}": mean(float(number), 1) for name, number in self._left_out.items()}
        shown = zip(samples[: self.config.evaluation.num_shown], scores, strict=False)
        return batch, metrics, [_as_text(sample, score) for sample, score in shown]

    def demonstrate(self) -> Columns:
        """Return this rank's share of the prompt source's demonstrations, as language rows.

        Raises:
            ConfigError: A demonstration is longer than ``rollout.max_response_tokens``.
        """
        assert self.config.warm_start is not None
        numbers = range(self.rank, self.config.warm_start.num_demos, self.world_size)
        limit = self.config.rollout.max_response_tokens
        prompts = [self._encode(self._prompts.prompt("demo", number)) for number in numbers]
        responses = [self._encode_demonstration(number) for number in numbers]
        longest = max(map(len, responses))
        if longest > limit:
            raise ConfigError(f"rollout.max_response_tokens={limit}: a demonstration has {longest} tokens")
        completions = [Completion(response, (0.0,) * len(response), "stop", -1) for response in responses]
        return {"uid": np.array(numbers, np.int64), **columns_of(prompts, completions)}

    def close(self) -> None:
        """Close the generation engine and the reward manager."""
        if self._engine is not None:
            self._engine.close()
        self._rewards.close()

    def _encode(self, prompt: Prompt) -> Tokens:
        return encode(prompt, self.tokenizer, self.config.rollout.max_prompt_tokens)

    def _ends_of_turns(self) -> set[int]:
        """Return the last tokens of responses that are trained on or imitated."""
        splits: tuple[Split, ...] = ("train", "demo")
        prompts = [self._prompts.prompt(split, 0) for split in splits if self._prompts.num_prompts(split)]
        return {end_of_response(prompt, self.tokenizer)[-1] for prompt in prompts}

    def _encode_demonstration(self, number: int) -> Tokens:
        prompt, response = self._prompts.prompt("demo", number), self._prompts.demonstration("demo", number)
        return encode_response(prompt, response, self.tokenizer)

    def _samples(self, batch: Batch, split: Split) -> list[Sample]:
        samples = []
        for row in range(len(batch)):
            prompt = self._prompts.prompt(split, int(batch["prompt_id"][row]))
            asked, answer = batch["prompt_tokens"][row, : batch["prompt_length"][row]], self._graded(batch, row)
            finished = bool(batch["terminated"][row])
            sample = self._sample_of(int(batch["uid"][row]), prompt, asked.tolist(), tuple(answer.tolist()), finished)
            samples.append(replace(sample, num_tokens=self._num_written(batch, row)))
        return samples

    def _sample_of(self, uid: int, prompt: Prompt, asked: Sequence[int], answer: Tokens, finished: bool) -> Sample:
        """Return an answer as the reward function gets it."""
        return Sample(
            uid=uid,
            prompt=self.tokenizer.decode(asked, skip_special_tokens=True),
            response=self.tokenizer.decode(answer, skip_special_tokens=True),
            ground_truth=prompt.ground_truth,
            data_source=prompt.data_source,
            num_tokens=len(answer),
            finished=finished,
            row=prompt.row,
            messages=prompt.messages,
            token_ids=answer,
        )

    def _score(self, batch: Batch, samples: Sequence[Sample]) -> list[Score]:
        """Return the score of each row."""
        return self._rewards.score(samples)

    def _graded(self, batch: Batch, row: int) -> torch.Tensor:
        """Return the tokens that the reward function grades, int64 [n]."""
        tokens: torch.Tensor = batch["action_tokens"][row].flatten()[: batch["response_length"][row]]
        return tokens

    def _num_written(self, batch: Batch, row: int) -> int:
        """Return the number of tokens that the model wrote."""
        return int(batch["response_length"][row])

    @contextmanager
    def _model_folder(self) -> Iterator[Path]:
        """Provide a folder with the model's architecture; its weights do not matter, as they are replaced at once.

        An engine reads the folder only while it is built, except for stop strings, which are not used here.
        """
        policy = self.config.policy
        if policy.path is not None:
            yield folder_of(policy.path)
            return
        # The folder is removed here, because a worker ends by a kill and would leave it behind.
        with tempfile.TemporaryDirectory(prefix="embodyflow-model-") as folder:
            save_folder(build_model(policy, self.tokenizer), self.tokenizer, Path(folder))
            yield Path(folder)


def ids_of(questions: Sequence[Question]) -> Columns:
    """Return the columns that name rows and their prompts."""
    return {
        "uid": np.array([question.uid for question in questions], np.int64),
        "group_id": np.array([question.group_id for question in questions], np.int64),
        "prompt_id": np.array([question.index for question in questions], np.int64),
    }


def responses_of(
    questions: Sequence[Question], requests: Sequence[Request], completions: Sequence[Completion]
) -> Columns:
    """Return the columns of sampled responses."""
    return {
        **ids_of(questions),
        "seed": np.array([request.seed for request in requests], np.int64),
        **columns_of([request.prompt_ids for request in requests], completions),
    }


def columns_of(prompts: Sequence[Tokens], completions: Sequence[Completion]) -> Columns:
    """Return the columns of prompts and their completions, each padded to the longest."""
    mask, tokens = pad_lists([completion.token_ids for completion in completions], np.int64)
    _, log_probs = pad_lists([completion.log_probs for completion in completions], np.float32)
    lengths = mask.sum(1)
    stopped = np.array([completion.finish_reason == "stop" for completion in completions], np.bool_)
    return {
        "policy_version": np.array([completion.policy_version for completion in completions], np.int64),
        "prompt_tokens": pad_lists(prompts, np.int64)[1],
        "prompt_length": np.array([len(prompt) for prompt in prompts], np.int64),
        "action_tokens": tokens[..., None],
        "log_probs": log_probs[..., None],
        "loss_mask": mask[..., None],
        "response_length": lengths,
        "num_steps": lengths.copy(),
        "terminated": stopped,
        "truncated": ~stopped,
    }


def min_samples(prompt_ids: np.ndarray) -> int:
    """Return the smallest number of samples of any prompt."""
    return int(np.unique(prompt_ids, return_counts=True)[1].min())


def reward_metrics(scores: Sequence[Score]) -> dict[str, Metric]:
    """Return the mean success, the mean reward and the means of the rewards' parts."""
    values: dict[str, list[float]] = {"rollout/success_rate": [], "rollout/reward": []}
    for score in scores:
        values["rollout/success_rate"].append(score.correct)
        values["rollout/reward"].append(score.reward)
        for name, part in score.parts.items():
            values.setdefault(f"reward/{name}", []).append(part)
    return {name: mean(float(np.mean(each)) if each else 0.0, len(each)) for name, each in values.items()}


def _as_text(sample: Sample, score: Score) -> dict[str, Any]:
    return {
        "prompt": sample.prompt,
        "response": sample.response,
        "ground_truth": str(sample.ground_truth),
        "reward": score.reward,
        "correct": score.correct,
        "num_tokens": sample.num_tokens,
    }
