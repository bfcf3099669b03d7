"""Continuous batching with a transformers model; it needs no other library."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig
from transformers.cache_utils import DynamicCache

from embodyflow.config.generation import HFConfig
from embodyflow.generation.conversations.invariant_passes import InvariantPasses
from embodyflow.generation.conversations.slot_conversations import SlotConversations
from embodyflow.generation.head import head_at
from embodyflow.generation.interface import (
    Arrivals,
    Completion,
    Request,
    Sampling,
    check_requests,
    check_sequences,
)
from embodyflow.generation.sampler import Sampler
from embodyflow.generation.stopping import StopStrings
from embodyflow.generation.streams import AllAtOnce, StreamGuard, in_order
from embodyflow.generation.transformers_engine import attention
from embodyflow.generation.transformers_engine.active_completions import ActiveCompletions
from embodyflow.generation.transformers_engine.decoder import Decoder, is_supported
from embodyflow.generation.transformers_engine.slot_cache import SlotCache
from embodyflow.generation.transformers_engine.supported_models import check_model
from embodyflow.generation.weights import ModelWeights
from embodyflow.policies.language.causal_lm.head_causal_lm import choose_in_pieces, is_for_pieces
from embodyflow.policies.language.causal_lm.windows_causal_lm import windows_of
from embodyflow.policies.language.layers import onednn_linear, rms_norm
from embodyflow.policies.pretrained.whole_models import load_whole
from embodyflow.process.tracing import span


class HFEngine:
    """Implements :class:`~embodyflow.generation.interface.ConversationEngine`.

    Up to ``max_num_seqs`` completions take a step together. When one ends, the next request takes its slot of the
    cache, so a long completion does not block others. Requests with the same prompt share one pass over it.

    Args:
        config: Sizes and dtype.
        model_path: Hugging Face folder. Its tokenizer is loaded only for stop strings.
        device: ``cpu`` or ``cuda``.

    Raises:
        ConfigError: The engine cannot generate with this model.
    """

    def __init__(self, config: HFConfig, model_path: Path, device: str) -> None:
        model_config: PreTrainedConfig = AutoConfig.from_pretrained(model_path)
        check_model(model_config)
        self.version = 0
        self._config, self._model_path, self._device = config, model_path, torch.device(device)
        options: dict[str, Any] = {"attn_implementation": attention.implementation_for(model_config)}
        kind, dtype = AutoModelForCausalLM, getattr(torch, config.dtype)
        model = load_whole(kind, model_path, f"policy.path={model_path}", dtype=dtype, **options)
        self._model: Any = model.to(self._device).eval()
        attention.use_in(self._model)
        onednn_linear.use_in(self._model)
        rms_norm.use_in(self._model)
        self._decoder = Decoder(self._model) if is_supported(self._model) else None
        self._windows = windows_of(model_config)
        self._weights = ModelWeights.of_model(self._model)
        self._vocab_size = self._weights.vocab_size
        self._max_model_len = config.max_model_len or self._weights.max_positions
        self._guard = StreamGuard()
        self._invariant_passes = InvariantPasses(self._model, self._decoder, config.max_num_batched_tokens)

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield completions as they finish."""
        check_requests(enumerate(requests), sampling, self._vocab_size, self._max_model_len, continues=True)
        return self._run(AllAtOnce(requests), sampling)

    def serve(self, arrivals: Arrivals, sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield completions as they finish, while further requests arrive."""
        return self._run(arrivals, sampling)

    def is_batch_invariant(self) -> bool:
        """Return True if this model on this device is batch-invariant."""
        return bool(self._invariant_passes.widths)

    @contextmanager
    def converse(self, num_conversations: int, sampling: Sampling) -> Iterator[SlotConversations]:
        """Open conversations."""
        with self._guard.hold():
            num_slots = min(self._config.max_num_seqs, max(num_conversations, 1))
            key_values = self._invariant_passes.key_values(num_slots)
            passes = self._invariant_passes.passes(key_values)
            yield SlotConversations(
                passes,
                key_values,
                sampling,
                self._vocab_size,
                self._max_model_len,
                self.version,
                partial(StopStrings, sampling.stop, self._tokenizer) if sampling.stop else None,
            )

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return the completions in the order of the requests."""
        return in_order(self.stream(requests, sampling))

    @torch.inference_mode()
    def score(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[npt.NDArray[np.float32]]:
        """Return the responses' log-probs at temperature 1."""
        check_sequences(sequences, self._vocab_size, self._max_model_len)
        self._guard.require_closed("score")
        scores: dict[int, npt.NDArray[np.float32]] = {}
        for group in self._group_by_length([len(prompt) + len(response) for prompt, response in sequences]):
            scores |= zip(group, self._score([sequences[index] for index in group]), strict=True)
        return [scores[index] for index in range(len(sequences))]

    def update_weights(self, weights: Mapping[str, npt.NDArray[Any]], version: int) -> None:
        """Copy the weights into the model; no cache outlives a call."""
        self._guard.require_closed("update_weights")
        self._weights.load(self._model, weights)
        self.version = version

    def close(self) -> None:
        """Release the model; this engine has no processes."""
        self._model = self._decoder = None
        self._invariant_passes.close()

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return AutoTokenizer.from_pretrained(self._model_path).backend_tokenizer

    def _run(self, arrivals: Arrivals, sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        with self._guard.hold():
            num_slots = min(self._config.max_num_seqs, max(arrivals.max_open, 1))
            waiting, sampler = deque[tuple[int, Request]](), Sampler(sampling)
            multiplies_keys = self._decoder is not None and self._device.type == "cpu"
            cache = SlotCache(self._model.config.num_hidden_layers, num_slots, features_first=multiplies_keys)
            tokenizer = self._tokenizer if sampling.stop else None
            active = ActiveCompletions(num_slots, sampling, self._vocab_size, self._device, tokenizer)
            while True:
                arrived = arrivals.take(idle=not (waiting or len(active)))
                check_requests(arrived, sampling, self._vocab_size, self._max_model_len, continues=True)
                waiting.extend(arrived)
                if not (waiting or len(active)):
                    return
                # With a small model, a pass over new prompts costs as much as a step of all completions, so it waits
                # until an eighth of the slots is free.
                if waiting and (not len(active) or num_slots - len(active) >= max(num_slots // 8, 1)):
                    new = [waiting.popleft() for _ in range(min(num_slots - len(active), len(waiting)))]
                    ended = self._start(new, active, cache, sampler)
                else:
                    ended = self._step(active, cache, sampler)
                for slot in reversed(ended):  # in this order, the completion in the last slot has not ended
                    cache.move(len(active) - 1, slot)
                    yield active.pop(slot, self.version)

    @torch.inference_mode()
    def _start(
        self, new: list[tuple[int, Request]], active: ActiveCompletions, cache: SlotCache, sampler: Sampler
    ) -> list[int]:
        """Prefill the cache, one pass per distinct prompt, and draw the first tokens; return slots that have ended."""
        first = len(active)
        slots_of: dict[tuple[int, ...], list[int]] = {}
        for slot, (position, request) in enumerate(new, first):
            active.add(position, request)
            slots_of.setdefault(request.prompt_ids, []).append(slot)
        prompts = list(slots_of)
        logits = torch.empty(len(new), self._vocab_size, device=self._device)
        for group in self._group_by_length([len(prompt) for prompt in prompts]):
            prefilled, last_logits = self._prefill([prompts[index] for index in group])
            pairs = [(source, slot) for source, index in enumerate(group) for slot in slots_of[prompts[index]]]
            sources, slots = self._tensor(pairs).unbind(1)
            cache.insert(prefilled, sources, slots)
            logits[slots - first] = last_logits[sources].float()
        return active.append(first, *sampler.draw(logits, active.noise(first)))

    @torch.inference_mode()
    def _step(self, active: ActiveCompletions, cache: SlotCache, sampler: Sampler) -> list[int]:
        """Draw the next token of every completion; return slots that have ended."""
        last, last_positions = active.last_tokens()
        tokens, positions = self._tensor(last), self._tensor(last_positions)[:, None]
        masks = cache.prepare_step(positions, int(last_positions.max()) + 1, self._windows)
        if self._decoder is not None:
            logits = self._decoder(tokens, positions, masks, cache)
        else:
            mask = attention.masks_for(self._model, masks)
            whole = self._forward(tokens[:, None], attention_mask=mask, position_ids=positions, past_key_values=cache)
            logits = whole[:, -1]
        return active.append(0, *sampler.draw(logits, active.noise(0)))

    def _prefill(self, prompts: list[tuple[int, ...]]) -> tuple[DynamicCache, torch.Tensor]:
        """Return the keys and values of n prompts, and the logits [n, V] after each prompt."""
        cache, last = DynamicCache(), [len(prompt) - 1 for prompt in prompts]
        # Padding is on the right, so no real token attends to it, and later tokens overwrite its cache entries.
        with head_at(self._model, self._tensor(range(len(prompts))), self._tensor(last)):
            logits = self._forward(_padded(prompts), past_key_values=cache)
        return cache, logits[0]

    def _score(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[npt.NDArray[np.float32]]:
        tokens = self._tensor(_padded([[*prompt, *response] for prompt, response in sequences]))
        first = min(len(prompt) for prompt, _ in sequences)  # first position to score
        log_probs = self._log_probs(tokens, first).cpu().numpy()
        return [
            row[len(prompt) - first :][: len(response)].copy()
            for row, (prompt, response) in zip(log_probs, sequences, strict=True)
        ]

    def _log_probs(self, tokens: torch.Tensor, first: int) -> torch.Tensor:
        """Return the log-probs of the tokens from position ``first`` on, float32 [n, t - first], of tokens [n, t]."""
        inputs, targets = tokens[:, :-1], tokens[:, first:]
        if is_for_pieces(self._model, targets.numel()):
            rows, positions = torch.ones_like(targets).nonzero(as_tuple=True)
            places, arguments = (rows, positions + first - 1), {"input_ids": inputs, "use_cache": False}
            return choose_in_pieces(self._model, arguments, places, targets.flatten(), 1.0)[0].view_as(targets)
        logits = self._forward(inputs, use_cache=False, logits_to_keep=targets.shape[1]).float()
        return (logits.gather(-1, targets[..., None]) - logits.logsumexp(-1, keepdim=True))[..., 0]

    def _group_by_length(self, lengths: list[int]) -> Iterator[list[int]]:
        """Yield indices of sequences of similar length, as many for one pass as ``max_num_batched_tokens`` allows."""
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
        with span("forward pass", "policy", rows=len(tokens)):
            return self._model(input_ids=self._tensor(tokens), **({"use_cache": True} | arguments)).logits

    def _tensor(self, values: Any) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.long, device=self._device)


def _padded(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the sequences padded with zeros on the right to the longest length."""
    longest = max(map(len, sequences))
    return [[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences]
