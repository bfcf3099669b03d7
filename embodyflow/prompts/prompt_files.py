"""Prompts from files of rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from embodyflow.errors import ConfigError
from embodyflow.prompts.datasets import Row, partition
from embodyflow.prompts.prompt_config import RowsConfig, template_columns
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

    def place(self, split: Split, index: int) -> str:
        """Return the file and the row of a prompt, counted from 1, for messages."""
        number = self.prompt(split, index).prompt_id
        for extent in partition(getattr(self._config, split), 1)[0]:
            if number < extent.stop:
                return _place(extent.path, number + 1)
            number -= extent.stop
        raise AssertionError(f"prompt {number} is in no file of data.{split}")

    def _check_index(self, split: Split, index: int) -> int:
        if not 0 <= index < len(self._rows[split]):
            raise IndexError(f"index={index}: allowed are 0 to {len(self._rows[split]) - 1}, the {split} prompts")
        return index

    def _read(self, split: Split, rank: int, num_ranks: int) -> list[tuple[Prompt, str | None]]:
        paths: Sequence[str] = getattr(self._config, split)
        if not paths:
            return []
        kept: list[tuple[Prompt, str | None]] = []
        for where, prompt_id, row in _rows(paths, self._config.columns, rank, num_ranks):
            prompt = _build_prompt(row, self._config, prompt_id, where)
            if self._fits(prompt, where):
                kept.append((prompt, _response(row, self._config, where) if split == "demo" else None))
            else:
                self.num_skipped[split] += 1
        if not kept:
            raise ConfigError(f"data.{split}: all {self.num_skipped[split]} prompts are too long")
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


def _build_prompt(row: Mapping[str, Any], config: RowsConfig, prompt_id: int, where: str) -> Prompt:
    """Return the prompt of a row.

    Raises:
        ConfigError: A column holds a value of the wrong kind; the message begins with ``where``.
    """
    truth = _answer(row[config.ground_truth_column], config, where)
    if config.messages_column is not None:
        messages = _messages(row[config.messages_column], config.messages_column, where)
    else:
        assert config.template is not None  # checked by RowsConfig
        text = config.template.format_map({name: _text(row, name, where) for name in template_columns(config.template)})
        if not config.chat:
            return Prompt(prompt_id, text, None, truth, config.data_source)
        messages = [{"role": "user", "content": text}]
    if config.system is not None:
        messages = [{"role": "system", "content": config.system}, *messages]
    return Prompt(prompt_id, None, messages, truth, config.data_source)


def _rows(paths: Sequence[str], columns: Sequence[str], rank: int, num_ranks: int) -> Iterator[tuple[str, int, Row]]:
    """Yield, for each row of a rank, its place for error messages, its number over all files, and the row."""
    parts = partition(paths, num_ranks)
    number = sum(extent.stop - extent.start for part in parts[:rank] for extent in part)
    for extent in parts[rank]:
        for position, row in enumerate(extent.read(columns), extent.start + 1):
            yield _place(extent.path, position), number, row
            number += 1


def _place(path: str, row: int) -> str:
    return f"{path}, row {row}"


def _text(row: Mapping[str, Any], column: str, where: str) -> str:
    value = row[column]
    if not isinstance(value, str | int | float):
        raise ConfigError(f"{where}: column {column} is {value!r}; allowed is text")
    return str(value)


def _response(row: Mapping[str, Any], config: RowsConfig, where: str) -> str:
    assert config.response_column is not None  # checked by RowsConfig
    response = _text(row, config.response_column, where)
    if not response.strip():
        raise ConfigError(f"{where}: column {config.response_column} is empty")
    return response


def _messages(value: Any, column: str, where: str) -> list[dict[str, Any]]:
    is_chat = isinstance(value, list) and value and all(isinstance(turn, dict) for turn in value)
    if not is_chat or not all({"role", "content"} <= turn.keys() for turn in value):
        raise ConfigError(
            f"{where}: column {column} is not a chat; allowed is a list of messages with role and content"
        )
    return [dict(turn) for turn in value]


def _answer(value: Any, config: RowsConfig, where: str) -> Any:
    if config.answer == "whole":
        if value is None:
            raise ConfigError(f"{where}: column {config.ground_truth_column} is empty")
        return value
    if isinstance(value, Mapping):
        raise ConfigError(
            f"{where}: column {config.ground_truth_column} is a mapping with {', '.join(map(str, value))}; "
            f"data.answer={config.answer} needs a text"
        )
    _, found, answer = str(value).rpartition(GSM8K_MARKER)
    if not found or not answer.strip():
        raise ConfigError(f"{where}: column {config.ground_truth_column} has no answer after {GSM8K_MARKER}")
    return answer.strip()
