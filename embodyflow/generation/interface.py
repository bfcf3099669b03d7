"""The interface of generation engines: sample completions, score given responses, load new weights.

An engine has one user and is not thread-safe. It refuses new weights while a :meth:`GenerationEngine.stream` is open,
so all tokens of a completion come from one version of the policy.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from embodyflow.config.generation import MIN_TEMPERATURE

FinishReason = Literal["stop", "length"]


class GenerationError(RuntimeError):
    """A valid request failed; the message names the engine and the reason."""


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters and stop conditions of completions.

    Every engine divides the logits by the temperature, then applies min-p, top-k and top-p, in this order.

    Attributes:
        max_tokens: Maximum number of tokens in a completion.
        temperature: Temperature of the softmax, at least 0.01; 0 means greedy decoding.
        top_p: Nucleus size: the most probable tokens that together reach this probability are kept (Holtzman et al.
            2020).
        top_k: Number of most probable tokens to keep; ``None`` keeps all.
        min_p: Minimum probability of a token as a fraction of the most probable one's (Nguyen et al. 2024).
        stop: Strings that end a completion once its text, including special tokens, contains one of them. The token
            that completes the string is the last one.
        stop_token_ids: Tokens that end a completion and are its last. No other token ends one, not even the
            end-of-sequence token of tokenizer or model.

    Raises:
        ValueError: A value is out of range; the message names it.
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
        """True if the most probable token is always taken."""
        return self.temperature == 0


@dataclass(frozen=True)
class Request:
    """A request for one sample of a prompt; n samples are n requests with different seeds.

    Attributes:
        prompt_ids: Tokens of the prompt, at least one.
        seed: Seed of all draws of the completion, in ``[0, 2**63)``.
        max_tokens: Most tokens of this completion; ``None`` means those of the sampling parameters, which it may not
            exceed.
        drawn: How many tokens at the end of the prompt were drawn with this seed before; the draws go on after them.
            The draw of a token so depends on the seed and the token's index alone. Only the engine ``hf`` accepts any.
        agent: Agent whose weights generate, with ``rollout.agent.weights=own``; empty for the only weights.
    """

    prompt_ids: tuple[int, ...]
    seed: int
    max_tokens: int | None = None
    drawn: int = 0
    agent: str = ""


@dataclass(frozen=True)
class Completion:
    """The sample for a request.

    Attributes:
        token_ids: T tokens, at least one, including the stop token.
        log_probs: T log-probs in float32, each under the distribution that the token was drawn from. With greedy
            decoding they are the model's at temperature 1.
        finish_reason: ``stop`` after a stop string or token, ``length`` after ``max_tokens``.
        policy_version: Version of the weights that generated it, or its first token if several did.
        versions: Version that sampled each token, T numbers; empty means that ``policy_version`` sampled all.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: FinishReason
    policy_version: int
    versions: tuple[int, ...] = ()


class Arrivals(Protocol):
    """Requests that reach an engine while it generates.

    Attributes:
        max_open: Most requests that can be unfinished at a time.
    """

    max_open: int

    def take(self, idle: bool) -> Sequence[tuple[int, Request]]:
        """Return the requests that arrived since the last call, each with its position.

        Args:
            idle: True if the engine has no unfinished request. The call then waits for the next request, and an empty
                answer ends the stream.
        """


class GenerationEngine(Protocol):
    """A causal language model that generates.

    The same request gives the same tokens whatever the rest of the batch and its order, because draws come from the
    request's own seed. Rounding is the exception: another batch size may change a log-prob by 1e-6, and with it about
    one token in a million. Engines differ in their draws, not in the distribution.

    Attributes:
        version: Version of the current weights.
    """

    version: int

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield ``(position of the request, completion)`` as completions finish.

        Closing the iterator early abandons the remaining requests.

        Raises:
            ValueError: The model cannot take one of the requests; the message names its position. Nothing is generated.
            GenerationError: Another stream is still open, or the engine failed.
        """

    def serve(self, arrivals: Arrivals, sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield ``(position of the request, completion)`` as completions finish, while further requests arrive.

        The engine asks for arrivals before each step of decoding, so the requests that share a step depend on nothing
        but the answers of ``arrivals``. Closing the iterator early abandons the unfinished requests.

        Raises:
            ValueError: The model cannot take a request; the message names its position.
            GenerationError: Another stream is still open, or the engine failed.
        """

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return the completions in the order of the requests."""

    def score(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[npt.NDArray[np.float32]]:
        """Return the log-probs of given responses at temperature 1.

        Args:
            sequences: Pairs of prompt and response, each of at least one token.

        Returns:
            One float32 array [T] per sequence, with T the length of its response.
        """

    def update_weights(self, weights: Mapping[str, npt.NDArray[Any]], version: int) -> None:
        """Load new weights and drop everything computed with the old ones, such as a prefix cache.

        Args:
            weights: All weights under the names in the transformers model's ``state_dict``. Tied weights may have
                either name.
            version: Version of the weights, recorded in completions from now on.

        Raises:
            ValueError: A name or shape is not the model's, or a weight is missing. The old weights stay.
            GenerationError: A stream is open, or the engine failed.
        """

    def close(self) -> None:
        """Release the model and end all processes and connections of the engine; further calls do nothing."""


@dataclass
class TokenCounts:
    """Tokens of conversations.

    Attributes:
        read: Tokens of prompts, messages and tool answers that went through the model.
        copied: Tokens of prompts whose keys and values another conversation had.
        sampled: Tokens that were sampled.
    """

    read: int = 0
    copied: int = 0
    sampled: int = 0


class Conversations(Protocol):
    """Conversations whose keys and values an engine keeps between turns.

    Attributes:
        counts: Tokens so far.
    """

    counts: TokenCounts

    @property
    def num_open(self) -> int:
        """Number of turns that are not finished."""

    def ask(self, conversation: int, request: Request, recorded: tuple[int, ...] = ()) -> None:
        """Begin a turn; a conversation may have one at a time.

        Only tokens of the prompt after its longest prefix in the cache go through the model.

        Args:
            conversation: Index of the conversation.
            request: Request, with all tokens of the conversation so far as its prompt.
            recorded: Tokens of the same turn in an earlier attempt. The turn takes as many steps as they are. At each,
                the model samples a token for the completion, and reads the recorded one.

        Raises:
            ValueError: The model cannot take the request; the message names the conversation.
        """

    def step(self) -> list[tuple[int, Completion]]:
        """Compute one pass over the open turns, of which there is one at least.

        Returns:
            The turns that it finished, each with its conversation, in order of conversations.
        """

    def end(self, conversation: int) -> None:
        """Abandon the turn of a conversation, if it has one, and give up its place in the cache."""


class Conversing(Protocol):
    """Whatever opens conversations."""

    def converse(self, num_conversations: int, sampling: Sampling) -> AbstractContextManager[Conversations]:
        """Open conversations; until they are closed, nothing else may use what they are opened on.

        Args:
            num_conversations: Number of conversations.
            sampling: Sampling parameters of all turns.

        Raises:
            GenerationError: A stream or other conversations are open.
        """


@runtime_checkable
class ConversationEngine(Conversing, GenerationEngine, Protocol):
    """An engine that may be batch-invariant, and then keeps conversations.

    A batch-invariant engine gives a token a log-prob that depends on nothing but the tokens before it, in every bit.
    So it does not matter at which step a turn begins, nor which others share its steps.
    """

    def is_batch_invariant(self) -> bool:
        """Return True if this model on this device is batch-invariant; the first call checks it with random tokens."""


def max_tokens_of(request: Request, sampling: Sampling) -> int:
    """Return the most tokens of a request's completion."""
    return sampling.max_tokens if request.max_tokens is None else request.max_tokens


def check_requests(
    requests: Iterable[tuple[int, Request]],
    sampling: Sampling,
    vocab_size: int,
    max_model_len: int,
    *,
    continues: bool = False,
) -> None:
    """Check that the model can take the requests, each given with its position.

    Args:
        requests: Requests, each with its position.
        sampling: Sampling parameters.
        vocab_size: Size of the model's vocabulary.
        max_model_len: Most tokens of prompt and completion together.
        continues: Whether the engine goes on with the draws of an earlier completion (``Request.drawn``).

    Raises:
        ValueError: A request is not valid; the message names the position of the first one.
    """
    for position, request in requests:
        if request.drawn and not (continues and not sampling.stop and 0 < request.drawn < len(request.prompt_ids)):
            raise ValueError(
                f"request {position}: drawn={request.drawn}: must be 0, or with the engine hf and without stop strings "
                f"less than the {len(request.prompt_ids)} tokens of the prompt"
            )
        if not 0 <= request.seed < 2**63:
            raise ValueError(f"request {position}: seed={request.seed}: must be in [0, 2**63)")
        max_tokens = max_tokens_of(request, sampling)
        if not 1 <= max_tokens <= sampling.max_tokens:
            raise ValueError(f"request {position}: max_tokens={max_tokens}: must be in [1, {sampling.max_tokens}]")
        if len(request.prompt_ids) + max_tokens > max_model_len:
            raise ValueError(
                f"request {position}: {len(request.prompt_ids)} prompt tokens plus max_tokens={max_tokens} "
                f"exceed the model's {max_model_len}"
            )
        _check_tokens(f"request {position}: prompt_ids", request.prompt_ids, vocab_size)


def check_sequences(
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]], vocab_size: int, max_model_len: int
) -> None:
    """Check that the model can score the pairs of prompt and response.

    Raises:
        ValueError: A pair is not valid; the message names the position of the first one.
    """
    for position, (prompt, response) in enumerate(sequences):
        if len(prompt) + len(response) > max_model_len:
            raise ValueError(
                f"sequence {position}: {len(prompt) + len(response)} tokens exceed the model's {max_model_len}"
            )
        _check_tokens(f"sequence {position}: prompt", prompt, vocab_size)
        _check_tokens(f"sequence {position}: response", response, vocab_size)


def _check_tokens(name: str, tokens: Sequence[int], vocab_size: int) -> None:
    if not tokens:
        raise ValueError(f"{name}: needs at least one token")
    if not 0 <= min(tokens) <= max(tokens) < vocab_size:
        raise ValueError(f"{name}: tokens must be in [0, {vocab_size}), are in [{min(tokens)}, {max(tokens)}]")
