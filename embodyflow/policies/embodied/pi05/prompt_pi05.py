"""Prompts of π0.5, which hold the state as text: ``Task: …, State: 12 255 …;`` and, in a new line, ``Action: ``.

The state is normalised by quantiles and padded, and each feature becomes the number of one of 256 bins of [-1, 1]; -1
stands for all values below. Rows of one task share the first part. The rest is put together here from the tokens of the
numbers, on the model's device and without a tokenizer.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.flow_vla.tokenizer_flow_vla import begun

NUM_BINS = 256
ENDING = ";\nAction: "


class StatePrompt(nn.Module):
    """Writes states into prompts. Its buffers are the tokenizer's, so they are in no checkpoint.

    Args:
        tokenizer: Tokenizer of ``transformers``.

    Raises:
        ConfigError: The tokenizer joins numbers to their neighbours, so that a prompt is not the sum of its parts.
    """

    edges: Tensor
    numbers: Tensor
    ending: Tensor

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        texts = [f" {number}" for number in range(-1, NUM_BINS)]
        parts, ending = [self._tokens(text) for text in texts], self._tokens(ENDING)
        start = first_part(tokenizer, "a")
        if sum(parts, start) + ending != first_part(tokenizer, "a", "".join(texts) + ENDING):
            raise ConfigError("policy.tokenizer: must make tokens of each digit and each space, as PaliGemma's does")
        longest = max(map(len, parts))
        table = [part + [0] * (longest - len(part)) for part in parts]
        self.register_buffer("edges", torch.arange(NUM_BINS) * (2.0 / NUM_BINS) - 1.0, persistent=False)
        self.register_buffer("numbers", torch.tensor(table), persistent=False)
        self.register_buffer("ending", torch.tensor(ending), persistent=False)

    def begin(self, instruction: str, num_features: int, length: int) -> np.ndarray:
        """Return the tokens before the state, int64 ``[length]``, padded by 0.

        Args:
            instruction: Instruction.
            num_features: Smax, features of a padded state.
            length: I, tokens of the longest prompt.

        Raises:
            ConfigError: A whole prompt may be longer.
        """
        ids = first_part(self._tokenizer, instruction)
        whole = len(ids) + num_features * self.numbers.shape[1] + len(self.ending)
        if whole > length:
            raise ConfigError(
                f"policy.max_prompt_tokens={length}: must be at least {whole} for {instruction!r} and a state of "
                f"{num_features} features"
            )
        return np.array(ids + [0] * (length - len(ids)), np.int64)

    def forward(self, beginnings: Tensor, state: Tensor) -> Tensor:
        """Return the tokens of whole prompts, int64 [N, I]; 0 is padding.

        Args:
            beginnings: Tokens before the state, int64 [N, I], of :meth:`begin`.
            state: Normalised and padded state, float32 [N, Smax].
        """
        numbers = self.numbers[torch.bucketize(state, self.edges, right=True)].flatten(1)
        parts = torch.cat([beginnings, numbers, self.ending.expand(len(state), -1)], dim=1)
        order = (parts == 0).int().argsort(dim=1, stable=True)  # padding to the end
        return parts.gather(1, order)[:, : beginnings.shape[1]]

    def _tokens(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def first_part(tokenizer: Any, instruction: str, rest: str = "") -> list[int]:
    """Return the tokens of a prompt up to the state, or with the rest that follows."""
    cleaned = instruction.strip().replace("_", " ").replace("\n", " ")
    return begun(tokenizer, f"Task: {cleaned}, State:{rest}", tokenizer.bos_token_id)
