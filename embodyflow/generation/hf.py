"""A transformers model that generates with continuous refilling: no library beside transformers is needed."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
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
from embodyflow.errors import ConfigError
from embodyflow.generation import attention
from embodyflow.generation.decoder import Decoder, is_known
from embodyflow.generation.interface import (
    Completion,
    Request,
    Sampling,
    check_requests,
    check_sequences,
)
from embodyflow.generation.sampler import Sampler
from embodyflow.generation.slot_cache import SlotCache
from embodyflow.generation.streams import OneStream, in_order
from embodyflow.generation.under_way import UnderWay
from embodyflow.generation.weights import ModelWeights
from embodyflow.policies import onednn_linear, rms_norm
from embodyflow.policies.causal_lm.shared_prompts_causal_lm import attends_to_all


class HFEngine:
    """Implements :class:`~embodyflow.generation.interface.GenerationEngine`.

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
        onednn_linear.use_in(self._model)
        rms_norm.use_in(self._model)
        self._decoder = Decoder(self._model) if is_known(self._model) else None
        self._weights = ModelWeights.of_model(self._model)
        self._vocab_size = self._weights.vocab_size
        self._max_model_len = config.max_model_len or self._weights.max_positions
        self._open = OneStream()

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield completions as they finish."""
        check_requests(requests, sampling, self._vocab_size, self._max_model_len)
        return self._run(requests, sampling)

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
        self._model = self._decoder = None

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return AutoTokenizer.from_pretrained(self._model_path).backend_tokenizer

    def _run(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        with self._open.opened():
            num_slots = min(self._config.max_num_seqs, max(len(requests), 1))
            waiting, sampler = deque(enumerate(requests)), Sampler(sampling)
            cache = SlotCache(self._model.config.num_hidden_layers, num_slots)
            tokenizer = self._tokenizer if sampling.stop else None
            rows = UnderWay(num_slots, sampling, self._vocab_size, tokenizer)
            while waiting or len(rows):
                # A pass over new prompts costs as much as a step of all rows where the model is small, so a few slots
                # are let run empty for each.
                if waiting and (not len(rows) or num_slots - len(rows) >= max(num_slots // 8, 1)):
                    new = [waiting.popleft() for _ in range(min(num_slots - len(rows), len(waiting)))]
                    ended = self._start(new, rows, cache, sampler)
                else:
                    ended = self._step(rows, cache, sampler)
                for slot in reversed(ended):  # so that who moves has not ended
                    cache.move(len(rows) - 1, slot)
                    yield rows.drop(slot, self.version)

    @torch.inference_mode()
    def _start(self, new: list[tuple[int, Request]], rows: UnderWay, cache: SlotCache, sampler: Sampler) -> list[int]:
        """Read prompts into the cache, each different one once, and draw their first tokens; return who has ended."""
        first = len(rows)
        slots_of: dict[tuple[int, ...], list[int]] = {}
        for slot, (position, request) in enumerate(new, first):
            rows.add(position, request)
            slots_of.setdefault(request.prompt_ids, []).append(slot)
        prompts = list(slots_of)
        logits = torch.empty(len(new), self._vocab_size, device=self._device)
        for group in self._groups_of_length([len(prompt) for prompt in prompts]):
            prefilled, last_logits = self._prefill([prompts[index] for index in group])
            pairs = [(source, slot) for source, index in enumerate(group) for slot in slots_of[prompts[index]]]
            sources, slots = self._tensor(pairs).unbind(1)
            cache.insert(prefilled, sources, slots)
            logits[slots - first] = last_logits[sources].float()
        return rows.take(first, *sampler.draw(logits, rows.noise(first)))

    @torch.inference_mode()
    def _step(self, rows: UnderWay, cache: SlotCache, sampler: Sampler) -> list[int]:
        """Draw the next token of every row; return which have ended."""
        last, last_positions = rows.last_tokens()
        tokens, positions = self._tensor(last), self._tensor(last_positions)[:, None]
        mask = cache.expect(positions, int(last_positions.max()) + 1)
        if self._decoder is not None:
            logits = self._decoder(tokens, positions, mask, cache)
        else:
            whole = self._forward(tokens[:, None], attention_mask=mask, position_ids=positions, past_key_values=cache)
            logits = whole[:, -1]
        return rows.take(0, *sampler.draw(logits, rows.noise(0)))

    def _prefill(self, prompts: list[tuple[int, ...]]) -> tuple[DynamicCache, torch.Tensor]:
        """Return the keys and values of n prompts and the logits [n, V] after each."""
        cache = DynamicCache()
        last = self._tensor([len(prompt) - 1 for prompt in prompts])
        kept, where = last.unique(return_inverse=True)
        # Padding comes last, so no real token sees it, and what it leaves in the cache is written over.
        logits = self._forward(_padded(prompts), past_key_values=cache, logits_to_keep=kept)
        return cache, logits[torch.arange(len(prompts), device=self._device), where]

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


def _padded(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the sequences with zeros behind, all as long as the longest."""
    longest = max(map(len, sequences))
    return [[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences]


def _check_attention(config: PreTrainedConfig) -> None:
    if not attends_to_all(config):
        raise ConfigError(
            f"name=hf: {config.model_type} has layers that do not attend to all positions; allowed here are models "
            "with full attention in every layer, name=vllm serves others"
        )
