"""Conversion of instructions to ids, of tokens to actions and back."""

import re
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from embodyflow.policies.embodied.tiny_vla.configuration_tiny_vla import TinyVLAConfig


class TinyVLAProcessor:
    """Converts instructions and actions for the policy.

    Args:
        config: Configuration of the policy.
    """

    def __init__(self, config: TinyVLAConfig) -> None:
        self.config = config

    def instruction_ids(self, instructions: Sequence[str]) -> Tensor:
        """Tokenise instructions: hash each lower-case word to an id in ``[1, vocab_size)``; 0 is padding.

        Returns:
            Ids, int64 [N, I].

        Raises:
            ValueError: An instruction has no word, or more than ``max_instruction_length``.
        """
        length = self.config.max_instruction_length
        ids = torch.zeros(len(instructions), length, dtype=torch.int64)
        for row, instruction in enumerate(instructions):
            words = re.findall(r"\w+", instruction.lower())
            if not 0 < len(words) <= length:
                raise ValueError(f"instruction {instruction!r}: must have 1 to {length} words")
            buckets = [1 + zlib.crc32(word.encode()) % (self.config.vocab_size - 1) for word in words]
            ids[row, : len(words)] = torch.tensor(buckets)
        return ids

    def actions(self, tokens: Tensor) -> Tensor:
        """Return the actions of tokens int64 [N, L], float32 [N, C, A]: centres of bins in (-1, 1), or choices."""
        if self.config.num_choices is not None:
            return tokens.float().unflatten(-1, (self.config.chunk_size, self.config.action_dim))
        centres = (2.0 * tokens + 1.0) / self.config.num_bins - 1.0
        return centres.unflatten(-1, (self.config.chunk_size, self.config.action_dim))

    def tokens(self, actions: Tensor) -> Tensor:
        """Return the tokens, int64 [N, L], of actions float32 [N, C, A]; beyond [-1, 1] the outermost bins."""
        if self.config.num_choices is not None:
            return actions.round().long().flatten(1)
        bins = ((actions + 1.0) * (self.config.num_bins / 2)).floor().long()
        return bins.clamp(0, self.config.num_bins - 1).flatten(1)

    def positions(self, actions: Tensor) -> Tensor:
        """Return actions float32 [N, C, A] in units of bins, float32 [N, L]; bin b has its centre at b.

        Choices are their own positions.
        """
        if self.config.num_choices is not None:
            return actions.flatten(1)
        return ((actions.flatten(1) + 1.0) * self.config.num_bins - 1.0) / 2
