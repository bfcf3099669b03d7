"""Sums for a model that checks itself: a quick answer that forgets the carries, and after it an answer worked out."""

from typing import Any

from embodyflow.prompts.arithmetic import MARKER, ArithmeticPrompts
from embodyflow.prompts.prompts import Prompt, Split
from embodyflow.prompts.word_tokenizer import chat_tokenizer

FEEDBACK = "wrong"
"""What the checker says about a wrong answer, a word of the tokenizer."""

_WORDS = (*"0123456789+=,", " is ", f" {MARKER} ", f"{MARKER} ", FEEDBACK)


class SelfCorrectPrompts(ArithmeticPrompts):
    """The sums of :class:`~embodyflow.prompts.arithmetic.ArithmeticPrompts` as chats.

    Demonstrations answer at once and forget the carries. Where that is wrong, a second turn works the sum out column by
    column. So the first turn stays wrong for most sums, and what is left to learn is the correction.
    """

    def prompt(self, split: Split, index: int) -> Prompt:
        """Return the chat that asks for a sum."""
        left, right = self.pair(split, index)
        messages = [{"role": "user", "content": f"{left}+{right}="}]
        return Prompt(left * 10**self.num_digits + right, None, messages, str(left + right), "self_correct")

    def demonstration_turns(self, split: Split, index: int) -> tuple[str, ...]:
        """Return the quick answer, and the answer worked out unless the quick one is right."""
        left, right = self.pair(split, index)
        quick = add_without_carries(left, right)
        turns = (f"{MARKER} {quick}", self.demonstration(split, index))
        return turns[:1] if quick == str(left + right) else turns


def add_without_carries(left: int, right: int) -> str:
    """Return the digits of a sum that forgets all carries: ``add_without_carries(27, 95) == "12"``.

    Both numbers have the same number of digits, and so has the result.
    """
    return "".join(str((int(a) + int(b)) % 10) for a, b in zip(str(left), str(right), strict=True))


def build_tokenizer() -> Any:
    """Build the tokenizer of the sums, a ``transformers.PreTrainedTokenizerFast`` with a chat template."""
    return chat_tokenizer(_WORDS)
