"""Prompts of language models, and their encoding as tokens, which training and validation share."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

Split: TypeAlias = Literal["train", "validation", "demo"]
"""Splits of a dataset; ``demo`` has responses that the warm start imitates."""


@dataclass(frozen=True)
class Prompt:
    """One prompt: a text or a chat.

    Attributes:
        prompt_id: Id of the prompt, unique within its source and split, and the same in every run.
        text: Plain text; ``None`` for a chat.
        messages: Messages of a chat, each ``{"role": …, "content": …}``, rendered by the tokenizer's chat template;
            ``None`` for a text.
        ground_truth: Value that the reward function compares responses with.
        data_source: Name of the dataset.
    """

    prompt_id: int
    text: str | None
    messages: list[dict[str, Any]] | None
    ground_truth: Any
    data_source: str

    def __post_init__(self) -> None:
        if (self.text is None) == (self.messages is None):
            raise ValueError(f"prompt {self.prompt_id} of {self.data_source}: needs either a text or messages")


class PromptSource(Protocol):
    """Source of prompts by split and index; an index always gives the same prompt."""

    def num_prompts(self, split: Split) -> int:
        """Return the number of prompts in a split."""

    def prompt(self, split: Split, index: int) -> Prompt:
        """Return a prompt; ``index`` ranges from 0 to the number of prompts, exclusive."""

    def demonstration(self, split: Split, index: int) -> str:
        """Return the response to imitate, without an end-of-sequence token."""

    def place(self, split: Split, index: int) -> str:
        """Return the place of a prompt's row, for messages."""


class PromptTooLongError(ValueError):
    """A prompt has more tokens than allowed."""


def encode(prompt: Prompt, tokenizer: Any, max_prompt_tokens: int) -> tuple[int, ...]:
    """Return the token ids of a prompt.

    A text gets the special tokens that the tokenizer adds around a text; a chat gets those of the chat template, up to
    the start of the assistant's turn.

    Args:
        prompt: Text or chat.
        tokenizer: Tokenizer of ``transformers``.
        max_prompt_tokens: Maximum number of tokens; a longer prompt is never truncated.

    Raises:
        PromptTooLongError: The prompt has more tokens; the message names the prompt.
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
    """Return the token ids of a response to imitate, followed by the end-of-sequence token."""
    return (*tokenizer(response, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
