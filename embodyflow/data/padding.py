"""Conversion of language rows between padded (in node functions) and ragged (between ranks).

A node function sees the tokens of responses as ``[N, R, ...]``, where R is the longest response of its rows. R differs
between ranks, so rows travel without padding. Rows of other kinds of jobs stay as they are.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from embodyflow.data.plans.row_plan import RowFacts
from embodyflow.data.ragged import Array, Ragged
from embodyflow.data.tables import Column, Table

PROMPT, RESPONSE = "prompt_length", "response_length"
"""Columns with the number of tokens in a row's prompt and response."""

PER_TOKEN = (
    *("action_tokens", "loss_mask", "log_probs", "old_log_probs", "ref_log_probs", "kl_penalty", "old_entropy"),
    *("rewards", "advantages", "values", "returns"),
)
PER_TOKEN_PREFIX = "token_"
"""Names and name prefix of columns that hold one or more values per response token."""


def to_ragged(columns: Mapping[str, Column]) -> Table:
    """Return language rows without padding: ``prompt_tokens`` and the columns per response token become ragged.

    Columns per response token are recognised by name (:data:`PER_TOKEN`, or the prefix ``token_``). Other columns stay
    as they are, even if their width equals the longest response.
    """
    if RESPONSE not in columns:
        return dict(columns)
    mask = columns["loss_mask"]
    assert isinstance(mask, np.ndarray)
    return {name: _cut(name, column, columns, mask.shape[1]) for name, column in columns.items()}


def to_padded(columns: Mapping[str, Column]) -> Table:
    """Return rows with ragged columns padded with zeros: the inverse of :func:`to_ragged`."""
    return {name: _pad(column) if isinstance(column, Ragged) else column for name, column in columns.items()}


def pad_lists(rows: Sequence[Sequence[Any]], dtype: Any) -> tuple[Array, Array]:
    """Return a mask of the filled positions, bool ``[N, longest]``, and the rows padded with zeros."""
    lengths = np.array([len(row) for row in rows], np.int64)
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    padded = np.zeros(mask.shape, dtype)
    padded[mask] = np.fromiter(chain.from_iterable(rows), dtype, int(lengths.sum()))
    return mask, padded


def facts_of(columns: Mapping[str, Column]) -> RowFacts | None:
    """Return the group of each row and, for language rows, its tokens (prompt and response).

    Rows without groups give ``None``.
    """
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
