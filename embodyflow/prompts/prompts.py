"""Prompts: what a language model is asked, and the one path from there to its tokens."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

Split: TypeAlias = Literal["train", "validation", "demo"]
"""``demo`` has responses to imitate, for the warm start."""


@dataclass(frozen=True)
class Prompt:
    """One prompt: a text or a chat.

    Attributes:
        prompt_id: unique within its source and split, the same in every run.
        text: plain text, or ``None``.
        messages: of a chat, ``{"role": …, "content": …}`` each, or ``None``; rendered by the tokenizer's chat template.
        ground_truth: whatever its reward function compares with.
        data_source: names the dataset, for scores by source.
    """

    prompt_id: int
    text: str | None
    messages: list[dict[str, Any]] | None
    ground_truth: Any
    data_source: str

    def __post_init__(self) -> None:
        if (self.text is None) == (self.messages is None):
            raise ValueError(f"prompt {self.prompt_id} of {self.data_source}: has either a text or messages")


class PromptSource(Protocol):
    """Prompts by split and index; the same index always means the same prompt."""

    def num_prompts(self, split: Split) -> int:
        """Return the number of prompts of a split."""

    def prompt(self, split: Split, index: int) -> Prompt:
        """Return a prompt; ``index`` is from 0 to the number of prompts, exclusive."""

    def demonstration(self, split: Split, index: int) -> str:
        """Return the response to imitate, without a token that ends it."""


class PromptTooLongError(ValueError):
    """A prompt has more tokens than fit."""


def encode(prompt: Prompt, tokenizer: Any, max_prompt_tokens: int) -> tuple[int, ...]:
    """Return the prompt's token ids: the path that training and validation share.

    A text gets the special tokens that its tokenizer puts around one; a chat gets its template's, up to where the
    assistant begins.

    Args:
        prompt: a text or a chat.
        tokenizer: of ``transformers``.
        max_prompt_tokens: limit; a prompt is never cut.

    Raises:
        PromptTooLongError: the prompt has more tokens; the message names it.
    """
    if prompt.messages is not None:
        ids = tokenizer.apply_chat_template(prompt.messages, add_generation_prompt=True, return_dict=False)
    else:
        ids = tokenizer(prompt.text)["input_ids"]
    if len(ids) > max_prompt_tokens:
        raise PromptTooLongError(
            f"prompt {prompt.prompt_id} of {prompt.data_source} has {len(ids)} tokens; "
            f"allowed are at most max_prompt_tokens={max_prompt_tokens}"
        )
    return tuple(ids)


def encode_response(response: str, tokenizer: Any) -> tuple[int, ...]:
    """Return the token ids of a response to imitate, the end-of-sequence token last."""
    return (*tokenizer(response, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
