"""Prompts of language models, and their encoding as tokens, which training and validation share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
        row: Further columns of the row, for the reward function.
        template_kwargs: Keyword arguments of the chat template.
    """

    prompt_id: int
    text: str | None
    messages: list[dict[str, Any]] | None
    ground_truth: Any
    data_source: str
    row: Mapping[str, Any] = field(default_factory=dict)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

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

    def demonstration_turns(self, split: Split, index: int) -> tuple[str, ...]:
        """Return the turns of an agent to imitate, each without the token that ends it; a single response is one."""

    def place(self, split: Split, index: int) -> str:
        """Return the place of a prompt's row, for messages."""


class PromptTooLongError(ValueError):
    """A prompt has more tokens than allowed."""


def consecutive_splits(num_validation: int, num_demos: int, num_train: int, first: int = 0) -> dict[Split, range]:
    """Return the numbers of each split: validation's first, then demonstrations', then training's.

    So more rows to train on leave those of the other splits as they are.

    Args:
        num_validation: Size of the validation split.
        num_demos: Size of the split of demonstrations.
        num_train: Size of the training split.
        first: First number.
    """
    demos = first + num_validation
    train = demos + num_demos
    return {
        "validation": range(first, demos),
        "demo": range(demos, train),
        "train": range(train, train + num_train),
    }


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
        options = {**prompt.template_kwargs, "add_generation_prompt": True, "return_dict": False}
        ids = tokenizer.apply_chat_template(prompt.messages, **options)
    else:
        ids = tokenizer(prompt.text)["input_ids"]
    return checked_length(prompt, tuple(ids), max_prompt_tokens)


def checked_length(prompt: Prompt, tokens: tuple[int, ...], max_prompt_tokens: int) -> tuple[int, ...]:
    """Return the tokens of a prompt.

    Raises:
        PromptTooLongError: They are more than ``max_prompt_tokens``; the message names the prompt.
    """
    if len(tokens) > max_prompt_tokens:
        raise PromptTooLongError(
            f"prompt {prompt.prompt_id} of {prompt.data_source} has {len(tokens)} tokens; "
            f"allowed are at most max_prompt_tokens={max_prompt_tokens}"
        )
    return tokens


def encode_response(prompt: Prompt, response: str, tokenizer: Any) -> tuple[int, ...]:
    """Return the token ids of a response to imitate, followed by the tokens that end it."""
    return (*tokenizer(response, add_special_tokens=False)["input_ids"], *end_of_response(prompt, tokenizer))


def end_of_response(prompt: Prompt, tokenizer: Any) -> tuple[int, ...]:
    """Return the token ids that end a response to a prompt.

    A response to a text ends with the tokenizer's end of a sequence. In a chat the chat template ends the assistant's
    turn: the tokens are those that it puts after the message, up to the first special token. A template without one
    ends a turn with the end of a sequence.
    """
    if prompt.messages is None:
        return (tokenizer.eos_token_id,)
    answered = [*prompt.messages, {"role": "assistant", "content": _ANSWER}]
    options = {**prompt.template_kwargs, "add_generation_prompt": False, "tokenize": False}
    _, found, rest = tokenizer.apply_chat_template(answered, **options).rpartition(_ANSWER)
    ids = tokenizer(rest, add_special_tokens=False)["input_ids"] if found else []
    special = [place for place, token in enumerate(ids) if _is_special(token, tokenizer)]
    return tuple(ids[: special[0] + 1]) if special else (tokenizer.eos_token_id,)


_ANSWER = "The-answer-of-the-assistant"
"""Message that stands for a response, so that what the template puts after it can be found."""


def _is_special(token: int, tokenizer: Any) -> bool:
    added = tokenizer.added_tokens_decoder.get(token)
    return token in tokenizer.all_special_ids or (added is not None and added.special)
