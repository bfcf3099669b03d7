"""Language rows from padded to ragged, and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.data.batches import join_rows, to_batch, to_columns
from embodyflow.data.padding import PER_TOKEN, to_padded, to_ragged
from embodyflow.data.ragged import Ragged
from embodyflow.data.tables import select


def language_rows(lengths: list[tuple[int, int]]) -> dict[str, np.ndarray]:
    num_prompt, num_response = np.array(lengths, np.int64).reshape(-1, 2).T
    prompt = np.arange(num_prompt.max(initial=0)) < num_prompt[:, None]
    response = np.arange(num_response.max(initial=0)) < num_response[:, None]
    numbers = np.arange(1, 1 + response.size).reshape(response.shape)
    return {
        "uid": np.arange(len(lengths)),
        "prompt_tokens": prompt * 7,
        "prompt_length": num_prompt,
        "action_tokens": (numbers * response)[..., None],
        "loss_mask": response[..., None],
        "returns": numbers * response * 0.5,
        "response_length": num_response,
        "token_entropy": numbers * response * 0.25,
        "embedding": np.ones(response.shape, np.float32),  # as wide as the longest response, but not per token
        "position": np.ones((*response.shape, 1), np.float32),
    }


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=6))
def test_rows_come_back_as_they_were(lengths: list[tuple[int, int]]) -> None:
    rows = language_rows(lengths)
    ragged = to_ragged(rows)
    assert {name for name, column in ragged.items() if isinstance(column, Ragged)} == {
        *("prompt_tokens", "action_tokens", "loss_mask", "returns", "token_entropy")
    }
    tokens = ragged["action_tokens"]
    assert isinstance(tokens, Ragged) and tokens.values.shape == (sum(r for _, r in lengths), 1)
    back = to_padded(ragged)
    assert back.keys() == rows.keys()
    for name, column in rows.items():
        assert np.array_equal(back[name], column) and back[name].dtype == column.dtype, name


@pytest.mark.parametrize("name", PER_TOKEN)
def test_columns_per_token_become_ragged(name: str) -> None:
    rows = language_rows([(2, 3), (4, 9)])
    column = to_ragged({**rows, name: rows["action_tokens"]})[name]
    assert isinstance(column, Ragged) and column.lengths.tolist() == [3, 9]


def test_rows_of_other_jobs_are_unchanged() -> None:
    rows = {"loss_mask": np.ones((2, 3, 4), bool), "log_probs": np.ones((2, 3, 4))}
    assert to_ragged(rows) == rows and to_padded(rows) == rows


def test_rows_of_different_padding_are_joined() -> None:
    rows = language_rows([(2, 3), (4, 9), (1, 5)])
    parts = [to_batch(to_padded(select(to_ragged(rows), np.array(chosen)))) for chosen in ([0, 2], [1])]
    assert [part["action_tokens"].shape for part in parts] == [(2, 5, 1), (1, 9, 1)]
    joined = to_columns(join_rows(parts))
    assert all(np.array_equal(joined[name], column[[0, 2, 1]]) for name, column in rows.items())
