"""Rows of prompts and responses for language policies, and what one pass over each row alone gives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.data.batches import to_batch
from embodyflow.data.padding import pad_lists

LENGTHS = [(7, 30), (3, 4), (5, 1), (9, 12), (2, 2), (8, 25), (1, 9)]
GROUPS = [0, 0, 2, 3, 3, 3, 0]
GROUPED = [(7, 30), (7, 4), (5, 1), (9, 12), (9, 2), (9, 25), (3, 9)]  # the last prompt is the beginning of another
Row = tuple[list[int], list[tuple[int, list[int], list[int]]]]
"""A prompt, and segments: context, given tokens, tokens of the model."""

CONTEXTS: list[Row] = [
    # The second context repeats the prompt and a part of the first; the third is another agent's, amid the first.
    (
        [4, 5, 6],
        [(0, [], [7, 8, 9]), (2, [12, 13], [14]), (0, [10], [11, 7]), (1, [4, 5, 6, 8, 9, 15], [16, 4]), (2, [5], [6])],
    ),
    ([4, 5, 6], [(0, [], [7, 9])]),
    ([9, 8], [(1, [9, 8, 7], [6, 5]), (2, [9, 8, 7, 4], [5])]),  # the model does not continue the prompt
    ([5] * 9, [(0, [], [6] * 12), (1, [5], [6])]),
]


def rows(lengths: list[tuple[int, int]], seed: int = 0) -> TensorDict:
    """Make rows of prompts and responses of these lengths; the padding is not zero, so that reading it shows."""
    rng, count = np.random.default_rng(seed), len(lengths)
    num_prompt, num_response = np.array(lengths, np.int64).reshape(-1, 2).T
    longest = int(num_response.max(initial=1))
    mask = np.arange(longest) < num_response[:, None]
    return to_batch(
        {
            "prompt_tokens": rng.integers(4, 19, (count, int(num_prompt.max(initial=1)))),
            "action_tokens": rng.integers(4, 19, (count, longest, 1)),
            "prompt_length": num_prompt,
            "response_length": num_response,
            "loss_mask": mask[..., None],
        }
    )


def one_by_one(model: Any, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probs and entropy by the textbook: one row at a time, nothing packed."""
    shape = batch["loss_mask"].shape
    log_probs, entropy = torch.zeros(shape), torch.zeros(shape)
    for row in range(len(batch)):
        prompt = batch["prompt_tokens"][row, : batch["prompt_length"][row]]
        response = batch["action_tokens"][row, : batch["response_length"][row], 0]
        logits = model(input_ids=torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
        distribution = torch.distributions.Categorical(logits=logits / temperature)
        log_probs[row, : len(response), 0] = distribution.log_prob(response)
        entropy[row, : len(response), 0] = distribution.entropy()
    return log_probs, entropy


def siblings(of: list[int], lengths: list[tuple[int, int]], seed: int = 0) -> TensorDict:
    """Make rows of these lengths with the prompts of other rows, which may be cut short."""
    batch = rows(lengths, seed)
    batch["prompt_tokens"] = batch["prompt_tokens"][of]
    return batch


def batch_of(rows: list[Row]) -> TensorDict:
    """Return the columns of rows that the forward passes read; what is padded is not zero, so that reading it shows."""
    tokens = [[token for _, given, own in turns for token in (*given, *own)] for _, turns in rows]
    contexts = [[context for context, given, own in turns for _ in (*given, *own)] for _, turns in rows]
    mask = [
        [trained for _, given, own in turns for trained in (*[False] * len(given), *[True] * len(own))]
        for _, turns in rows
    ]
    inside, padded = pad_lists(tokens, np.int64)
    _, prompts = pad_lists([prompt for prompt, _ in rows], np.int64)
    return to_batch(
        {
            "prompt_tokens": np.where(prompts, prompts, 17),
            "prompt_length": np.array([len(prompt) for prompt, _ in rows], np.int64),
            "action_tokens": np.where(inside, padded, 18)[..., None],
            "token_context": np.where(inside, pad_lists(contexts, np.int32)[1], 3)[..., None].astype(np.int32),
            "response_length": inside.sum(1),
            "loss_mask": pad_lists(mask, np.bool_)[1][..., None],
        }
    )


def alone(batch: TensorDict, evaluate: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return a number before each of the model's tokens, [N, R, 1], by one pass over the tokens before it."""
    numbers = torch.zeros(batch["loss_mask"].shape)
    for row, step in batch["loss_mask"][..., 0].nonzero().tolist():
        tokens, contexts = batch["action_tokens"][row, :, 0], batch["token_context"][row, :, 0]
        before = tokens[:step][contexts[:step] == contexts[step]]
        prompt = batch["prompt_tokens"][row, : batch["prompt_length"][row] if contexts[step] == 0 else 0]
        numbers[row, step] = evaluate(torch.cat([prompt, before, tokens[step : step + 1]]))
    return numbers
