"""A transformers model that generates with continuous refilling: no library beside transformers is needed."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig
from transformers.cache_utils import DynamicCache

from embodyflow.config.generation import HFConfig
from embodyflow.engines.generation import attention
from embodyflow.engines.generation.interface import (
    Completion,
    FinishReason,
    Request,
    Sampling,
    check_requests,
    check_sequences,
)
from embodyflow.engines.generation.sampler import Noise, Sampler
from embodyflow.engines.generation.slot_cache import SlotCache
from embodyflow.engines.generation.stopping import StopCheck
from embodyflow.engines.generation.streams import OneStream, in_order
from embodyflow.engines.generation.weights import ModelWeights
from embodyflow.errors import ConfigError


@dataclass
class _Row:
    """A completion under way."""

    position: int  # of its request
    prompt_ids: tuple[int, ...]
    noise: Noise
    stop: StopCheck
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def take(self, token: int, log_prob: float) -> None:
        self.token_ids.append(token)
        self.log_probs.append(log_prob)
        self.finish_reason = self.stop.finish_reason(token)

    @property
    def last_position(self) -> int:
        """Of its last token, which the cache does not have yet."""
        return len(self.prompt_ids) + len(self.token_ids) - 1


class HFEngine:
    """Implements :class:`~embodyflow.engines.generation.interface.GenerationEngine`.

    Up to ``max_num_seqs`` completions take a step together. One that ends leaves its slot of the cache to the next
    request, so a long completion holds up no others, and siblings of a prompt share one pass over it.

    Args:
        config: sizes and dtype.
        model_path: Hugging Face folder; its tokenizer is read when a stop string is asked for.
        device: ``cpu`` or ``cuda``.

    Raises:
        ConfigError: not every layer of the model attends to all positions.
    """

    def __init__(self, config: HFConfig, model_path: Path, device: str) -> None:
        model_config: PreTrainedConfig = AutoConfig.from_pretrained(model_path)
        _check_attention(model_config)
        self.version = 0
        self._config, self._model_path, self._device = config, model_path, torch.device(device)
        model = AutoModelForCausalLM.from_pretrained(model_path, dtype=getattr(torch, config.dtype))
        self._model: Any = model.to(self._device).eval()
        attention.use_in(self._model)
        self._weights = ModelWeights.of_model(self._model)
        self._vocab_size = self._weights.vocab_size
        self._max_model_len = config.max_model_len or self._weights.max_positions
        self._open = OneStream()

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield completions as they finish."""
        check_requests(requests, sampling, self._vocab_size, self._max_model_len)
        tokenizer = self._tokenizer if sampling.stop else None
        rows = deque(
            _Row(position, request.prompt_ids, Noise(request.seed, self._vocab_size), StopCheck(sampling, tokenizer))
            for position, request in enumerate(requests)
        )
        return self._run(rows, Sampler(sampling))

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return the completions in the order of the requests."""
        return in_order(self.stream(requests, sampling))

    @torch.inference_mode()
    def score(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[npt.NDArray[np.float32]]:
        """Return the responses' log-probs at temperature 1."""
        check_sequences(sequences, self._vocab_size, self._max_model_len)
        self._open.refuse("score")
        scores: dict[int, npt.NDArray[np.float32]] = {}
        for group in self._groups_of_length([len(prompt) + len(response) for prompt, response in sequences]):
            scores |= zip(group, self._score([sequences[index] for index in group]), strict=True)
        return [scores[index] for index in range(len(sequences))]

    def update_weights(self, weights: Mapping[str, npt.NDArray[Any]], version: int) -> None:
        """Copy the weights into the model; there is no cache between calls."""
        self._open.refuse("update_weights")
        self._weights.load(self._model, weights)
        self.version = version

    def close(self) -> None:
        """Drop the model; there are no processes."""
        self._model = None

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return AutoTokenizer.from_pretrained(self._model_path).backend_tokenizer

    def _run(self, waiting: deque[_Row], sampler: Sampler) -> Iterator[tuple[int, Completion]]:
        with self._open.opened():
            num_slots = min(self._config.max_num_seqs, max(len(waiting), 1))
            cache = SlotCache(self._model.config.num_hidden_layers, num_slots)
            rows: list[_Row] = []
            while waiting or rows:
                # A pass over new prompts costs as much as a step of all rows where the model is small, so a few slots
                # are let run empty for each.
                if waiting and (not rows or num_slots - len(rows) >= max(num_slots // 8, 1)):
                    new = [waiting.popleft() for _ in range(min(num_slots - len(rows), len(waiting)))]
                    self._start(new, cache, sampler, first_slot=len(rows))
                    rows += new
                else:
                    self._step(rows, cache, sampler)
                for row in _drop_finished(rows, cache):
                    yield row.position, self._completion(row)

    def _completion(self, row: _Row) -> Completion:
        assert row.finish_reason is not None
        return Completion(tuple(row.token_ids), tuple(row.log_probs), row.finish_reason, self.version)

    @torch.inference_mode()
    def _start(self, rows: list[_Row], cache: SlotCache, sampler: Sampler, first_slot: int) -> None:
        """Read the prompts of new rows into the cache, each different one once, and draw their first tokens."""
        rows_of: dict[tuple[int, ...], list[int]] = {}
        for index, row in enumerate(rows):
            rows_of.setdefault(row.prompt_ids, []).append(index)
        prompts = list(rows_of)
        logits = torch.empty(len(rows), self._vocab_size, device=self._device)
        for group in self._groups_of_length([len(prompt) for prompt in prompts]):
            prefilled, last_logits = self._prefill([prompts[index] for index in group])
            pairs = [(source, row) for source, index in enumerate(group) for row in rows_of[prompts[index]]]
            sources, targets = self._tensor(pairs).unbind(1)
            cache.insert(prefilled, sources, targets + first_slot)
            logits[targets] = last_logits[sources].float()
        _advance(rows, logits, sampler)

    def _prefill(self, prompts: list[tuple[int, ...]]) -> tuple[DynamicCache, torch.Tensor]:
        """Return the keys and values of n prompts and the logits [n, V] after each."""
        cache = DynamicCache()
        last = self._tensor([len(prompt) - 1 for prompt in prompts])
        kept, where = last.unique(return_inverse=True)
        # Padding comes last, so no real token sees it, and what it leaves in the cache is written over.
        logits = self._forward(_padded(prompts), past_key_values=cache, logits_to_keep=kept)
        return cache, logits[torch.arange(len(prompts), device=self._device), where]

    @torch.inference_mode()
    def _step(self, rows: list[_Row], cache: SlotCache, sampler: Sampler) -> None:
        """Draw the next token of every row."""
        last_positions = [row.last_position for row in rows]
        positions = self._tensor(last_positions)[:, None]
        mask = cache.expect(positions, max(last_positions) + 1)
        logits = self._forward(
            [row.token_ids[-1:] for row in rows], attention_mask=mask, position_ids=positions, past_key_values=cache
        )
        _advance(rows, logits[:, -1], sampler)

    def _score(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[npt.NDArray[np.float32]]:
        tokens = self._tensor(_padded([[*prompt, *response] for prompt, response in sequences]))
        first = min(len(prompt) for prompt, _ in sequences)  # of the positions that are scored
        logits = self._forward(tokens[:, :-1], use_cache=False, logits_to_keep=tokens.shape[1] - first).float()
        targets = tokens[:, first:, None]
        log_probs = (logits.gather(-1, targets) - logits.logsumexp(-1, keepdim=True))[..., 0].cpu().numpy()
        return [
            row[len(prompt) - first :][: len(response)].copy()
            for row, (prompt, response) in zip(log_probs, sequences, strict=True)
        ]

    def _groups_of_length(self, lengths: list[int]) -> Iterator[list[int]]:
        """Yield the indices of sequences for one pass each, similar lengths together, within the limit of tokens."""
        group: list[int] = []
        for index in sorted(range(len(lengths)), key=lengths.__getitem__):
            if group and (len(group) + 1) * lengths[index] > self._config.max_num_batched_tokens:
                yield group
                group = []
            group.append(index)
        if group:
            yield group

    def _forward(self, tokens: Any, **arguments: Any) -> torch.Tensor:
        """Return the logits of tokens [n, t]."""
        return self._model(input_ids=self._tensor(tokens), **({"use_cache": True} | arguments)).logits

    def _tensor(self, values: Any) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.long, device=self._device)


def _advance(rows: list[_Row], logits: torch.Tensor, sampler: Sampler) -> None:
    tokens, log_probs = sampler.draw(logits, [row.noise for row in rows])
    for row, token, log_prob in zip(rows, tokens, log_probs, strict=True):
        row.take(token, log_prob)


def _drop_finished(rows: list[_Row], cache: SlotCache) -> list[_Row]:
    """Take finished rows out, the last ones moving into their slots; return them."""
    finished = []
    for slot in reversed(range(len(rows))):
        if rows[slot].finish_reason is not None:
            finished.append(rows[slot])
            last = rows.pop()
            if slot < len(rows):
                rows[slot] = last
                cache.move(len(rows), slot)
    return finished


def _padded(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the sequences with zeros behind, all as long as the longest."""
    longest = max(map(len, sequences))
    return [[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences]


def _check_attention(config: PreTrainedConfig) -> None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or (getattr(config, "sliding_window", None) and not hasattr(config, "layer_types")):
        raise ConfigError(
            f"name=hf: {config.model_type} has layers that do not attend to all positions; allowed here are models "
            "with full attention in every layer, name=vllm serves others"
        )
