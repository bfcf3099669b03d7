"""Prompts from files of rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from embodyflow.errors import ConfigError
from embodyflow.prompts.files.columns import abbreviate, is_missing, top_column, value_of
from embodyflow.prompts.files.conversations import Message, read_messages, split_last_answer
from embodyflow.prompts.files.datasets import Row, partition
from embodyflow.prompts.prompt_config import RowsConfig, template_parts
from embodyflow.prompts.prompts import Prompt, PromptTooLongError, Split, encode

GSM8K_MARKER = "####"


class RowPrompts:
    """Prompts from files; each rank reads its own slice of the rows.

    The id of a prompt is the number of its row within the split and does not depend on the number of ranks.

    Args:
        config: Files of each split and the meaning of their columns.
        tokenizer: Tokenizer of ``transformers`` that measures prompts; ``None`` skips all checks of length.
        max_prompt_tokens: Maximum number of tokens of a prompt.
        rank, num_ranks: Slice of each split to read; the defaults read all rows.

    Attributes:
        num_skipped: Number of prompts of each split that ``too_long=skip`` left out.

    Raises:
        ConfigError: A file cannot be read, a row lacks a column, an answer or a demonstration, or a prompt is too long
            or has no tokens; the message names file and row.
    """

    def __init__(
        self, config: RowsConfig, tokenizer: Any, max_prompt_tokens: int, rank: int = 0, num_ranks: int = 1
    ) -> None:
        self._config, self._tokenizer, self._max_tokens = config, tokenizer, max_prompt_tokens
        self.num_skipped: dict[Split, int] = dict.fromkeys(get_args(Split), 0)
        self._rows = {split: self._read(split, rank, num_ranks) for split in self.num_skipped}

    def num_prompts(self, split: Split) -> int:
        """Return the number of prompts in this rank's slice of a split."""
        return len(self._rows[split])

    def prompt(self, split: Split, index: int) -> Prompt:
        """Return a prompt."""
        return self._rows[split][self._check_index(split, index)][0]

    def demonstration(self, split: Split, index: int) -> str:
        """Return the response to imitate; only the split ``demo`` has responses.

        Raises:
            ConfigError: The split is not ``demo``.
        """
        response = self._rows[split][self._check_index(split, index)][1]
        if response is None:
            raise ConfigError(
                f"data.{split}: has no demonstrations; the warm start imitates the responses of data.demo"
            )
        return response

    def demonstration_turns(self, split: Split, index: int) -> tuple[str, ...]:
        """Return the response as the only turn."""
        return (self.demonstration(split, index),)

    def place(self, split: Split, index: int) -> str:
        """Return the file and the row of a prompt, counted from 1, for messages."""
        number = self.prompt(split, index).prompt_id
        for extent in partition(self._config.files(split), 1)[0]:
            if number < extent.stop:
                return _place(extent.path, number + 1)
            number -= extent.stop
        raise AssertionError(f"prompt {number} is in no file of data.{split}")

    def _check_index(self, split: Split, index: int) -> int:
        if not 0 <= index < len(self._rows[split]):
            raise IndexError(f"index={index}: allowed are 0 to {len(self._rows[split]) - 1}, the {split} prompts")
        return index

    def _read(self, split: Split, rank: int, num_ranks: int) -> list[tuple[Prompt, str | None]]:
        paths = self._config.files(split)
        if not paths:
            return []
        kept: list[tuple[Prompt, str | None]] = []
        for where, prompt_id, row in _rows(paths, self._config, split, rank, num_ranks):
            reader = _RowReader(self._config, split, row, where)
            prompt, response = reader.prompt(prompt_id)
            if self._fits(prompt, where):
                kept.append((prompt, response))
            else:
                self.num_skipped[split] += 1
        if not kept:
            raise ConfigError(
                f"data.{split}: all {self.num_skipped[split]} prompts are too long; allowed are at most "
                f"rollout.max_prompt_tokens={self._max_tokens} tokens"
            )
        return kept

    def _fits(self, prompt: Prompt, where: str) -> bool:
        if self._tokenizer is None:
            return True
        try:
            tokens = encode(prompt, self._tokenizer, self._max_tokens)
        except PromptTooLongError as error:
            if self._config.too_long == "error":
                raise ConfigError(f"{where}: {error}, or data.too_long=skip") from error
            return False
        if not tokens:  # the first token of a response needs one before it
            raise ConfigError(f"{where}: the prompt has no tokens; needs at least one")
        return True


def _rows(
    paths: Sequence[str], config: RowsConfig, split: Split, rank: int, num_ranks: int
) -> Iterator[tuple[str, int, Row]]:
    """Yield, for each row of a rank, its place for error messages, its number over all files, and the row."""
    columns, others = config.columns(split), config.reward_columns is None
    parts = partition(paths, num_ranks)
    number = sum(extent.stop - extent.start for part in parts[:rank] for extent in part)
    for extent in parts[rank]:
        for position, row in enumerate(extent.read(columns, others=others or split == "demo"), extent.start + 1):
            yield _place(extent.path, position), number, row
            number += 1


def _place(path: str, row: int) -> str:
    return f"{path}, row {row}"


class _RowReader:
    """Reads a prompt from a row; the message of each error begins with ``where``."""

    def __init__(self, config: RowsConfig, split: Split, row: Row, where: str) -> None:
        self._config, self._split, self._row, self._where = config, split, row, where

    def prompt(self, prompt_id: int) -> tuple[Prompt, str | None]:
        """Return the prompt, and in the split ``demo`` the response to imitate.

        Raises:
            ConfigError: A column holds a value of the wrong kind.
        """
        config = self._config
        text, messages, response = self._asked()
        if messages is not None and config.system is not None and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": config.system}, *messages]
        kwargs = config.chat_template_kwargs if messages is not None else {}
        prompt = Prompt(prompt_id, text, messages, self._truth(), self._source(), self._reward_row(), kwargs)
        return prompt, self._check_response(response) if self._split == "demo" else None

    def _asked(self) -> tuple[str | None, list[Message] | None, str | None]:
        """Return the prompt as text or messages, and the response where it is the last message of the chat."""
        config, is_demo = self._config, self._split == "demo"
        if is_demo and config.demo_messages_column is not None:
            messages = read_messages(self._value(config.demo_messages_column), config.demo_messages_column, self._where)
            return None, *split_last_answer(messages, config.demo_messages_column, self._where)
        column = config.messages_column
        if column is None:
            text = self._filled_template()
            return (None, [{"role": "user", "content": text}], None) if config.chat else (text, None, None)
        messages = read_messages(self._value(column), column, self._where)
        if config.response_column is None and (is_demo or messages[-1]["role"] == "assistant"):
            return None, *split_last_answer(messages, column, self._where)
        return None, messages, None

    def _filled_template(self) -> str:
        assert self._config.template is not None  # checked by RowsConfig
        parts = [(text, name, name and self._text(name)) for text, name in template_parts(self._config.template)]
        if not any(value and value.strip() for _, _, value in parts):
            columns = ", ".join(name for _, name, _ in parts if name is not None)
            raise ConfigError(f"{self._where}: column {columns} is empty, so the prompt asks nothing")
        return "".join(text + (value or "") for text, _, value in parts)

    def _value(self, column: str) -> Any:
        return value_of(self._row, column, self._where)

    def _text(self, column: str) -> str:
        value = self._value(column)
        if not isinstance(value, str | int | float) or is_missing(value):
            raise ConfigError(f"{self._where}: column {column} is {value!r}; allowed is text")
        return str(value)

    def _check_response(self, response: str | None) -> str:
        """Return the response to imitate: the last message of the chat, or a column with a text or a message."""
        config = self._config
        column = config.demo_messages_column or config.response_column or config.messages_column
        assert column is not None  # checked by RowsConfig
        if response is None:
            value = self._value(column)
            if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
                response = read_messages(value, column, self._where)[0]["content"]
            else:
                response = self._text(column)
        if not isinstance(response, str) or not response.strip():
            raise ConfigError(f"{self._where}: column {column} is empty")
        return response

    def _source(self) -> str:
        column = self._config.data_source_column
        if column is None or (self._split == "demo" and top_column(column, self._row) is None):
            return self._config.data_source or "demo"
        source = self._value(column)
        if not isinstance(source, str) or not source:
            raise ConfigError(f"{self._where}: column {column} is {source!r}; allowed is the name of a dataset")
        return source

    def _reward_row(self) -> Row:
        config = self._config
        if self._split == "demo":
            return {}
        if config.reward_columns is not None:
            return {name: self._value(name) for name in config.reward_columns}
        chat = None if config.messages_column is None else top_column(config.messages_column, self._row)
        return {name: value for name, value in self._row.items() if name != chat}

    def _truth(self) -> Any:
        """Return the ground truth; a row of the split ``demo`` may have none."""
        column = self._config.ground_truth_column
        if self._split == "demo" and top_column(column, self._row) is None:
            return None
        value = self._value(column)
        if isinstance(value, Mapping) and "ground_truth" in value:
            raise ConfigError(
                f"{self._where}: column {column} is {abbreviate(value)}; set data.ground_truth_column="
                f"{column}.ground_truth"
            )
        if self._config.answer == "whole":
            if is_missing(value):
                raise ConfigError(f"{self._where}: column {column} is empty")
            return value
        if isinstance(value, Mapping):
            raise ConfigError(
                f"{self._where}: column {column} is a mapping with {', '.join(map(str, value))}; "
                f"data.answer={self._config.answer} needs a text"
            )
        _, found, answer = str(value).rpartition(GSM8K_MARKER)
        if not found or not answer.strip():
            raise ConfigError(f"{self._where}: column {column} has no answer after {GSM8K_MARKER}")
        return answer.strip()
