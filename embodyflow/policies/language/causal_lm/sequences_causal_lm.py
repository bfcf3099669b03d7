"""The sequences of tokens that a language model sees in rows: a prompt with its response, or an agent's contexts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tensordict import TensorDict

Index = NDArray[np.int64]


@dataclass(frozen=True)
class TokenSequence:
    """Tokens that attend to each other, with positions from 0.

    Attributes:
        row: Index of the row.
        prompt: The row's prompt, int64 ``[P]``; empty for a further context of an agent's row.
        tokens: The row's response or its part in the context, int64 ``[n]``.
        steps: Place of each of these tokens in the row's response, int64 ``[n]``.
    """

    row: int
    prompt: Index
    tokens: Index
    steps: Index

    @property
    def targets(self) -> slice:
        """Slice of the tokens that another one comes before, so that the model gives them a log-prob."""
        return slice(0 if len(self.prompt) else 1, None)

    @property
    def inputs(self) -> Index:
        """The model's inputs, int64: all tokens but the last one of the response, which nothing comes after."""
        return np.concatenate([self.prompt, self.tokens[: max(len(self.tokens) - 1, 0)]])


def sequences_of(batch: TensorDict) -> list[TokenSequence]:
    """Return the sequences of language rows (:mod:`embodyflow.types`), in the order of rows and contexts.

    A row without the column ``token_context`` is one sequence. A prompt that the model never continues is left out.
    """
    prompts, responses = batch["prompt_tokens"].cpu().numpy(), batch["action_tokens"][..., 0].cpu().numpy()
    num_prompt, num_response = batch["prompt_length"].tolist(), batch["response_length"].tolist()
    contexts = None if "token_context" not in set(batch.keys()) else batch["token_context"][..., 0].cpu().numpy()
    sequences = []
    for row, (prompt_length, length) in enumerate(zip(num_prompt, num_response, strict=True)):
        prompt, tokens, places = prompts[row, :prompt_length], responses[row, :length], np.arange(length)
        if contexts is None or not contexts[row, :length].any():
            sequences.append(TokenSequence(row, prompt, tokens, places))
            continue
        mine = contexts[row, :length]
        for context in np.unique(mine).tolist():
            steps = places[mine == context]
            sequences.append(TokenSequence(row, prompt if context == 0 else prompt[:0], tokens[steps], steps))
    return sequences
