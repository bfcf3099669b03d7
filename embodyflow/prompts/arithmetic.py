"""Addition problems that need no download: prompts, worked answers and a tokenizer with 19 tokens.

The answer to ``27+95=`` works column by column, units first, writes each carry, and ends with the result after a
marker: ``7+5=12,2+9+1=12 is 122 ## 122``.
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodyflow.prompts.prompt_config import PairsConfig
from embodyflow.prompts.prompts import Prompt, Split
from embodyflow.prompts.word_tokenizer import word_tokenizer
from embodyflow.seeding import derive_rng

MARKER = "##"
"""Marker before the final answer."""

_WORDS = (*"0123456789+=,", " is ", f" {MARKER} ")
# Only assistant turns end with a token, so a chat with one user message has the same tokens as the plain prompt.
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)


class ArithmeticPrompts:
    """All sums of two numbers with a given number of digits.

    ``a + b`` and ``b + a`` are in the same split, so training never sees a validation sum in either order.
    """

    def __init__(self, config: PairsConfig) -> None:
        self._config = config

    def num_prompts(self, split: Split) -> int:
        """Return the number of sums in a split."""
        return len(self._pairs[split])

    @property
    def num_digits(self) -> int:
        """Number of digits of each number."""
        return self._config.num_digits

    def prompt(self, split: Split, index: int) -> Prompt:
        """Return the prompt of a sum."""
        left, right = self.pair(split, index)
        prompt_id = left * 10**self._config.num_digits + right
        return Prompt(prompt_id, f"{left}+{right}=", None, str(left + right), "arithmetic")

    def demonstration(self, split: Split, index: int) -> str:
        """Return the worked answer of a sum, column by column."""
        left, right = self.pair(split, index)
        return f"{work_out(left, right)} is {left + right} {MARKER} {left + right}"

    def demonstration_turns(self, split: Split, index: int) -> tuple[str, ...]:
        """Return the worked answer as the only turn."""
        return (self.demonstration(split, index),)

    def place(self, split: Split, index: int) -> str:
        """Return the sum, for messages."""
        left, right = self.pair(split, index)
        return f"{left}+{right}"

    def pair(self, split: Split, index: int) -> tuple[int, int]:
        """Return the two numbers of a problem."""
        if not 0 <= index < self.num_prompts(split):
            raise IndexError(f"index={index}: allowed are 0 to {self.num_prompts(split) - 1}, the {split} prompts")
        left, right = self._pairs[split][index]
        return int(left), int(right)

    @cached_property
    def _pairs(self) -> dict[Split, NDArray[np.int64]]:
        """Pairs of each split, int64 [N, 2], shuffled, with each pair next to its mirror image."""
        config, pairs = self._config, self._unordered_pairs()
        order = derive_rng(config.split_seed, "arithmetic", config.num_digits).permutation(len(pairs))
        unordered = pairs[order]
        first = round(config.validation_fraction * len(order))
        second = first + round(config.demo_fraction * len(order))
        parts = zip(("validation", "demo", "train"), np.split(unordered, [first, second]), strict=True)
        return {split: _with_mirror_images(part) for split, part in parts}  # type: ignore[misc]

    def _unordered_pairs(self) -> NDArray[np.int64]:
        """Return all pairs, the smaller number first, int64 [N, 2]."""
        numbers = np.arange(10 ** (self.num_digits - 1), 10**self.num_digits)
        grids = np.meshgrid(numbers, numbers, indexing="ij")
        return np.stack([grid[np.triu_indices(len(numbers))] for grid in grids], axis=1)


def _with_mirror_images(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    both = np.stack([pairs, pairs[:, ::-1]], axis=1).reshape(-1, 2)
    doubled = (np.arange(len(both)) % 2 == 1) & (both[:, 0] == both[:, 1])  # the mirror image of a + a
    return both[~doubled]


def work_out(left: int, right: int) -> str:
    """Return the columns of a sum, units first: ``work_out(27, 95) == "7+5=12,2+9+1=12"``.

    The result of a column always has two digits: ``1+8=09``.
    """
    columns, carry = [], 0
    num_digits = max(len(str(left)), len(str(right)))
    for a, b in zip(f"{left:0{num_digits}}"[::-1], f"{right:0{num_digits}}"[::-1], strict=True):
        result = int(a) + int(b) + carry
        columns.append(f"{a}+{b}{'+1' if carry else ''}={result:02}")
        carry = result // 10
    return ",".join(columns)


def build_tokenizer() -> Any:
    """Build the tokenizer of the sums, a ``transformers.PreTrainedTokenizerFast``.

    Digits, signs, and words with their spaces are tokens. The tokenizer puts ``<bos>`` before a text.
    """
    return word_tokenizer(_WORDS, end="<eos>", chat_template=_CHAT_TEMPLATE, begins=True)
