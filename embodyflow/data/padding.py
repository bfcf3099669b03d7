"""Language rows between padded, as node functions see them, and ragged, as they travel.

A node function has a response's tokens as ``[N, R, ...]``, R the longest response of its rows. Another rank's rows
may have another R, so between ranks a row has its own tokens and no padding. Rows of other jobs pass as they are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embodyflow.data.ragged import Array, Ragged
from embodyflow.data.row_plan import RowFacts
from embodyflow.data.tables import Column, Table

PROMPT, RESPONSE = "prompt_length", "response_length"
"""Columns that say how long a row's prompt and response are."""

PER_TOKEN = (
    *("action_tokens", "loss_mask", "log_probs", "old_log_probs", "ref_log_probs", "kl_penalty"),
    *("rewards", "advantages", "values", "returns"),
)
PER_TOKEN_PREFIX = "token_"
"""What columns of one value or more per response token are called: one of these names, or one that begins so."""


def to_ragged(columns: Mapping[str, Column]) -> Table:
    """Return language rows without padding: ``prompt_tokens`` and every column of one value or more per response token.

    What lies after the end of a prompt or response is left out. Names say which columns these are, :data:`PER_TOKEN`
    and what begins with ``token_``; any other is left whole, were it as wide as the longest response is long.
    """
    if RESPONSE not in columns:
        return dict(columns)
    mask = columns["loss_mask"]
    assert isinstance(mask, np.ndarray)
    return {name: _cut(name, column, columns, mask.shape[1]) for name, column in columns.items()}


def to_padded(columns: Mapping[str, Column]) -> Table:
    """Undo :func:`to_ragged`, with zeros after the ends."""
    return {name: _pad(column) if isinstance(column, Ragged) else column for name, column in columns.items()}


def pad_lists(rows: Sequence[Sequence[Any]], dtype: Any) -> tuple[Array, Array]:
    """Return which places are filled, bool ``[N, longest]``, and the rows with zeros after their ends."""
    lengths = np.array([len(row) for row in rows], np.int64)
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    padded = np.zeros(mask.shape, dtype)
    padded[mask] = np.concatenate([np.asarray(row, dtype) for row in rows]) if rows else []
    return mask, padded


def facts_of(columns: Mapping[str, Column]) -> RowFacts | None:
    """Return rows' groups, and the tokens of language rows, prompt and response; ``None`` of rows without groups."""
    if "group_id" not in columns:
        return None
    groups = np.asarray(columns["group_id"], np.int64)
    if RESPONSE not in columns:
        return RowFacts(None, groups)
    prompts, responses = (np.asarray(columns[name], np.int64) for name in (PROMPT, RESPONSE))
    return RowFacts(prompts + responses, groups)


def _cut(name: str, column: Column, columns: Mapping[str, Column], num_steps: int) -> Column:
    if isinstance(column, Ragged) or column.ndim < 2:
        return column
    if name == "prompt_tokens":
        lengths = columns[PROMPT]
    elif column.shape[1] == num_steps and (name in PER_TOKEN or name.startswith(PER_TOKEN_PREFIX)):
        lengths = columns[RESPONSE]
    else:
        return column
    assert isinstance(lengths, np.ndarray)
    inside = np.arange(column.shape[1]) < lengths[:, None]
    return Ragged(column[inside], lengths.astype(np.int64))


def _pad(column: Ragged) -> Array:
    inside = np.arange(column.lengths.max(initial=0)) < column.lengths[:, None]
    padded = np.zeros((*inside.shape, *column.values.shape[1:]), column.values.dtype)
    padded[inside] = column.values
    return padded
