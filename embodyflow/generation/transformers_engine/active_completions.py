"""Unfinished completions, one in each of the first slots, stored as arrays because every step updates all of them."""

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from embodyflow.generation.interface import Completion, Request, Sampling, max_tokens_of
from embodyflow.generation.noise import build_noise
from embodyflow.generation.stopping import StopStrings

GROWTH = 64  # initial number of tokens that the arrays hold; they double when full


class ActiveCompletions:
    """Tokens, log-probs and random streams of the unfinished completions.

    Args:
        num_slots: Maximum number of completions at a time.
        sampling: Sampling parameters and stop conditions.
        vocab_size: Size of the model's vocabulary.
        device: Device of the model's logits.
        tokenizer: Tokenizer of the model, or ``None`` without stop strings.
    """

    def __init__(
        self, num_slots: int, sampling: Sampling, vocab_size: int, device: torch.device, tokenizer: Tokenizer | None
    ) -> None:
        self._sampling, self._tokenizer = sampling, tokenizer
        self._stop_tokens = np.array(sampling.stop_token_ids, np.int64)
        self._positions: list[int] = []  # position of each slot's request
        self._stop_strings: list[StopStrings] = []
        self._prompt_lengths, self._lengths, self._limits = np.zeros((3, num_slots), np.int64)
        self._stopped = np.zeros(num_slots, np.bool_)
        self._tokens = np.zeros((num_slots, GROWTH), np.int64)
        self._log_probs = np.zeros((num_slots, GROWTH), np.float32)
        self._noise = None if sampling.is_greedy else build_noise(num_slots, vocab_size, device)

    def __len__(self) -> int:
        """Return the number of unfinished completions."""
        return len(self._positions)

    def add(self, position: int, request: Request) -> None:
        """Start the completion of the request at ``position`` in the next free slot."""
        slot = len(self)
        self._positions.append(position)
        self._prompt_lengths[slot], self._lengths[slot] = len(request.prompt_ids), 0
        self._limits[slot] = max_tokens_of(request, self._sampling)
        if self._tokenizer is not None:
            self._stop_strings.append(StopStrings(self._sampling.stop, self._tokenizer))
        if self._noise is not None:
            self._noise.start(slot, request.seed, request.drawn)

    def last_tokens(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the last token of each completion, which is not in the cache yet, and its position, int64 [n] each."""
        slots = np.arange(len(self))
        last = self._lengths[slots] - 1
        return self._tokens[slots, last], self._prompt_lengths[slots] + last

    def noise(self, first: int) -> torch.Tensor | None:
        """Return random numbers for the next tokens from slot ``first`` on; ``None`` for greedy decoding."""
        return None if self._noise is None else self._noise.next(np.arange(first, len(self)))

    def append(self, first: int, tokens: npt.NDArray[np.int64], log_probs: npt.NDArray[np.float32]) -> list[int]:
        """Append the next token to each completion from slot ``first`` on; return the slots that end with it.

        Args:
            first: First of n slots.
            tokens: Next token of each slot, [n].
            log_probs: Log-probs of the tokens, [n].
        """
        slots = np.arange(first, len(self))
        lengths = self._lengths[slots]
        if lengths.max(initial=0) == self._tokens.shape[1]:
            self._tokens = np.hstack([self._tokens, np.zeros_like(self._tokens)])
            self._log_probs = np.hstack([self._log_probs, np.zeros_like(self._log_probs)])
        self._tokens[slots, lengths], self._log_probs[slots, lengths] = tokens, log_probs
        self._lengths[slots] += 1
        self._stopped[slots] = (tokens[:, None] == self._stop_tokens).any(1)
        for slot, stop in enumerate(self._stop_strings[first:], first):
            self._stopped[slot] |= stop.is_completed_by(int(tokens[slot - first]))
        ended: list[int] = slots[self._stopped[slots] | (lengths + 1 == self._limits[slots])].tolist()
        return ended

    def pop(self, slot: int, version: int) -> tuple[int, Completion]:
        """Remove a finished completion; the completion in the last slot moves into its slot.

        Args:
            slot: Slot of the finished completion.
            version: Version of the weights that generated it.

        Returns:
            The position of its request, and the completion.
        """
        length, last = self._lengths[slot], len(self) - 1
        completion = Completion(
            tuple(self._tokens[slot, :length].tolist()),
            tuple(self._log_probs[slot, :length].tolist()),
            "stop" if self._stopped[slot] else "length",
            version,
        )
        position = self._positions[slot]
        columns = (self._prompt_lengths, self._lengths, self._limits, self._stopped, self._tokens, self._log_probs)
        for column in columns:
            column[slot] = column[last]
        self._positions[slot] = self._positions[last]
        self._positions.pop()
        if self._stop_strings:
            self._stop_strings[slot] = self._stop_strings[last]
            self._stop_strings.pop()
        if self._noise is not None:
            self._noise.move(last, slot)
        return position, completion
