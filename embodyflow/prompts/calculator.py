"""Products that are too large for a small model alone: chats, an agent's turns with a calculator, and a tokenizer."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodyflow.prompts.arithmetic import MARKER, ArithmeticPrompts
from embodyflow.prompts.prompt_config import CalculatorConfig
from embodyflow.prompts.prompts import Prompt, Split
from embodyflow.prompts.word_tokenizer import chat_tokenizer

_CALL, _NAME = '<tool_call>{"name": "', "calculate"
_ARGUMENT, _CALLED = '", "arguments": {"expression": "', '"}}</tool_call>'
_WORDS = (*"0123456789+-*/().= ", f"{MARKER} ", _CALL, _NAME, _ARGUMENT, _CALLED, "error: ", "…")


class CalculatorPrompts(ArithmeticPrompts):
    """Products of two numbers with a given number of digits, as chats.

    All products have twice as many digits. Those with one digit less are left out: a warm start that has seen few of
    them writes the missing digit, and no sample shows otherwise.

    Args:
        config: Number of digits, sizes of the splits, and what demonstrations do.
    """

    def __init__(self, config: CalculatorConfig) -> None:
        super().__init__(config)
        self._calls = config.demonstrate_calls

    def prompt(self, split: Split, index: int) -> Prompt:
        """Return the chat that asks for a product."""
        left, right = self.pair(split, index)
        prompt_id = left * 10**self.num_digits + right
        messages = [{"role": "user", "content": f"{left}*{right}="}]
        return Prompt(prompt_id, None, messages, str(left * right), "calculator")

    def demonstration(self, split: Split, index: int) -> str:
        """Return the final answer."""
        left, right = self.pair(split, index)
        return f"{MARKER} {left * right}"

    def demonstration_turns(self, split: Split, index: int) -> tuple[str, ...]:
        """Return the call of the calculator, unless the configuration leaves it out, and the final answer."""
        left, right = self.pair(split, index)
        if not self._calls:
            return (self.demonstration(split, index),)
        return f"{_CALL}{_NAME}{_ARGUMENT}{left}*{right}{_CALLED}", self.demonstration(split, index)

    def _unordered_pairs(self) -> NDArray[np.int64]:
        pairs = super()._unordered_pairs()
        return pairs[pairs.prod(axis=1) >= 10 ** (2 * self.num_digits - 1)]

    def place(self, split: Split, index: int) -> str:
        """Return the product, for messages."""
        left, right = self.pair(split, index)
        return f"{left}*{right}"


def build_tokenizer() -> Any:
    """Build the tokenizer of the products, a ``transformers.PreTrainedTokenizerFast`` with a chat template."""
    return chat_tokenizer(_WORDS)
