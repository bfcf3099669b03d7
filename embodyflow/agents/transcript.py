"""The tokens of a conversation, exactly as they were sampled and given; text is only a view of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain

from embodyflow.generation.interface import Completion

Tokens = tuple[int, ...]


class Origin(IntEnum):
    """Writer of a token. Only the model's own tokens are trained on."""

    TEMPLATE = 0
    MODEL = 1
    TOOL = 2
    USER = 3


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of one origin.

    Attributes:
        tokens: T token ids, at least one.
        origin: Who wrote them.
        log_probs: Log-probs of the model's tokens, T floats; empty for other origins.
        policy_version: Version of the weights that sampled them; -1 for other origins.
    """

    tokens: Tokens
    origin: Origin
    log_probs: tuple[float, ...] = ()
    policy_version: int = -1


@dataclass
class Transcript:
    """A conversation that only grows at its end.

    Attributes:
        prompt: Tokens before the model's first turn.
        segments: Segments after the prompt, in order.
    """

    prompt: Tokens
    segments: list[Segment] = field(default_factory=list)

    @property
    def tokens(self) -> Tokens:
        """All tokens so far; the model's next turn continues them."""
        return tuple(chain(self.prompt, *(segment.tokens for segment in self.segments)))

    @property
    def num_new_tokens(self) -> int:
        """Number of tokens after the prompt."""
        return sum(len(segment.tokens) for segment in self.segments)

    def append_sampled(self, completion: Completion) -> None:
        """Append a turn of the model."""
        self.segments.append(
            Segment(completion.token_ids, Origin.MODEL, completion.log_probs, completion.policy_version)
        )

    def append_given(self, tokens: Sequence[int], origin: Origin) -> None:
        """Append tokens that the model did not write; none append nothing."""
        if tokens:
            self.segments.append(Segment(tuple(tokens), origin))

    def response(self) -> "Response":
        """Return the tokens after the prompt, up to the model's last token."""
        end = max((n for n, segment in enumerate(self.segments, 1) if segment.origin == Origin.MODEL), default=0)
        if end == 0:
            raise ValueError("the model has written nothing; an episode needs at least one turn of the model")
        tokens: list[int] = []
        origins: list[int] = []
        log_probs: list[float] = []
        for segment in self.segments[:end]:
            tokens += segment.tokens
            origins += [segment.origin] * len(segment.tokens)
            log_probs += segment.log_probs or (0.0,) * len(segment.tokens)
        versions = [segment.policy_version for segment in self.segments[:end] if segment.origin == Origin.MODEL]
        return Response(tuple(tokens), tuple(origins), tuple(log_probs), min(versions))


@dataclass(frozen=True)
class Response:
    """Everything after the prompt, as one row: R tokens.

    Attributes:
        tokens: Token ids; the last one is the model's.
        origins: :class:`Origin` of each token.
        log_probs: Log-prob of each token of the model, 0 for others.
        policy_version: Oldest version of the weights that sampled one of them.
    """

    tokens: Tokens
    origins: tuple[int, ...]
    log_probs: tuple[float, ...]
    policy_version: int
