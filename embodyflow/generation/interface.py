"""What every generation engine does: sample completions, score given ones, take new weights.

An engine has one user and is not thread-safe. It refuses new weights while a :meth:`GenerationEngine.stream` is open,
so all tokens of a completion come from one version of the policy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from embodyflow.config.generation import MIN_TEMPERATURE

FinishReason = Literal["stop", "length"]


class GenerationError(RuntimeError):
    """An engine could not do what a valid request asked for; the message says which engine and why."""


@dataclass(frozen=True)
class Sampling:
    """The distribution that tokens are drawn from, and when a completion ends.

    Logits are divided by the temperature, then cut by min-p, top-k and top-p, in this order, in every engine.

    Attributes:
        max_tokens: of one completion.
        temperature: of the softmax, at least 0.01; 0 is greedy.
        top_p: keep the most probable tokens that together reach this probability (Holtzman et al. 2020).
        top_k: keep so many of the most probable tokens; ``None`` keeps all.
        min_p: drop tokens less probable than this share of the most probable one (Nguyen et al. 2024).
        stop: strings that end a completion once its text, special tokens included, has one of them; the token that
            completed it is the last.
        stop_token_ids: tokens that end a completion and are its last. No token does so by itself, also not the one the
            tokenizer or the model calls the end of a sequence.

    Raises:
        ValueError: a value out of its range; the message names it.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rules = {
            "max_tokens": (self.max_tokens >= 1, "at least 1"),
            "temperature": (
                self.temperature == 0 or MIN_TEMPERATURE <= self.temperature < float("inf"),
                f"0, or at least {MIN_TEMPERATURE}",
            ),
            "top_p": (0 < self.top_p <= 1, "in (0, 1]"),
            "top_k": (self.top_k is None or self.top_k >= 1, "at least 1, or null"),
            "min_p": (0 <= self.min_p < 1, "in [0, 1)"),
            "stop": (all(self.stop), "strings of at least one character"),
        }
        for name, (holds, allowed) in rules.items():
            if not holds:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be {allowed}")

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is taken."""
        return self.temperature == 0


@dataclass(frozen=True)
class Request:
    """One sample of a prompt; n samples are n requests, each with a seed of its own.

    Attributes:
        prompt_ids: tokens, at least one.
        seed: of every draw of the completion, in ``[0, 2**63)``.
    """

    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Completion:
    """What was sampled for a request.

    Attributes:
        token_ids: T tokens, at least one; the one that ended it included.
        log_probs: T numbers, float32: each token's under the distribution it was drawn from. Greedy ones: under the
            model's at temperature 1.
        finish_reason: ``stop`` by a stop string or token, ``length`` after ``max_tokens``.
        policy_version: of the weights that made it.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: FinishReason
    policy_version: int


class GenerationEngine(Protocol):
    """A causal language model that generates.

    The same request gives the same tokens whatever else is in the batch, in any order: draws come from the request's
    own seed. (To the rounding of the logits: a batch of another size may move a log-prob by 1e-6, and with it a token
    about once in a million.) Engines differ in their draws, not in the distribution.
    """

    version: int

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield ``(position of the request, completion)`` as completions finish.

        Closing the iterator early abandons the rest.

        Raises:
            ValueError: a request that the model cannot take; the message names its position. Nothing is generated.
            GenerationError: another stream is still open, or the engine failed.
        """

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return the completions in the order of the requests."""

    def score(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[npt.NDArray[np.float32]]:
        """Return the log-probs at temperature 1 of given responses.

        Args:
            sequences: ``(prompt, response)`` in tokens, at least one each.

        Returns:
            For each sequence float32 [T], T the length of its response.
        """

    def update_weights(self, weights: Mapping[str, npt.NDArray[Any]], version: int) -> None:
        """Take new weights; nothing computed with the old ones (a prefix cache) is used afterwards.

        Args:
            weights: all of them, by the names of the transformers model's ``state_dict``. Of tied ones either name
                will do.
            version: stamped on completions from now on.

        Raises:
            ValueError: a name or a shape that is not the model's, or a missing weight. The old weights stay.
            GenerationError: a stream is open, or the engine failed.
        """

    def close(self) -> None:
        """Release the model and end every process and connection of the engine; further calls do nothing."""


def check_requests(requests: Sequence[Request], sampling: Sampling, vocab_size: int, max_model_len: int) -> None:
    """Raise ``ValueError`` that names the first request the model cannot take."""
    for position, request in enumerate(requests):
        if not 0 <= request.seed < 2**63:
            raise ValueError(f"request {position}: seed={request.seed}: must be in [0, 2**63)")
        num_tokens = len(request.prompt_ids) + sampling.max_tokens
        if num_tokens > max_model_len:
            raise ValueError(
                f"request {position}: a prompt of {len(request.prompt_ids)} tokens and "
                f"max_tokens={sampling.max_tokens} exceed the model's {max_model_len}"
            )
        _check_tokens(f"request {position}: prompt_ids", request.prompt_ids, vocab_size)


def check_sequences(
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]], vocab_size: int, max_model_len: int
) -> None:
    """Raise ``ValueError`` that names the first sequence the model cannot score."""
    for position, (prompt, response) in enumerate(sequences):
        if len(prompt) + len(response) > max_model_len:
            raise ValueError(
                f"sequence {position}: {len(prompt) + len(response)} tokens exceed the model's {max_model_len}"
            )
        _check_tokens(f"sequence {position}: prompt", prompt, vocab_size)
        _check_tokens(f"sequence {position}: response", response, vocab_size)


def _check_tokens(what: str, tokens: Sequence[int], vocab_size: int) -> None:
    if not tokens:
        raise ValueError(f"{what}: needs at least one token")
    if not 0 <= min(tokens) <= max(tokens) < vocab_size:
        raise ValueError(f"{what}: tokens must be in [0, {vocab_size}), are {min(tokens)} to {max(tokens)}")
