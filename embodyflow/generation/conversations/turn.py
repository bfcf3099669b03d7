"""A turn of a conversation that is being sampled."""

from dataclasses import dataclass, field

from embodyflow.generation.interface import Completion, FinishReason, Request, Sampling, max_tokens_of
from embodyflow.generation.stopping import StopStrings


@dataclass(eq=False)
class Turn:
    """A request and its tokens so far.

    Attributes:
        conversation: Index of the conversation.
        request: Request.
        sampling: Sampling parameters.
        recorded: Tokens of an earlier attempt, which the model reads in place of those that it samples; may be empty.
        stop: Search for stop strings, or ``None`` without any.
        is_reading: True until the next token after ``context`` is sampled.
        slot: Slot of the cache; -1 while the turn waits for one.
        unread: Tokens that are not in the cache yet.
        context: Tokens that the turn reads before it samples its next one: the prompt, and those that it sampled before
            it was moved to another cache.
    """

    conversation: int
    request: Request
    sampling: Sampling
    recorded: tuple[int, ...]
    stop: StopStrings | None
    slot: int = -1
    unread: list[int] = field(default_factory=list)
    context: tuple[int, ...] = field(init=False)
    is_reading: bool = field(init=False, default=True)
    _tokens: list[int] = field(default_factory=list)
    _log_probs: list[float] = field(default_factory=list)
    _stopped: bool = False
    _limit: int = field(init=False)

    def __post_init__(self) -> None:
        self.context = self.request.prompt_ids
        self._limit = len(self.recorded) or max_tokens_of(self.request, self.sampling)

    @property
    def num_tokens(self) -> int:
        """Number of tokens that were sampled."""
        return len(self._tokens)

    def read_again(self) -> None:
        """Read the prompt and all tokens so far, in a cache that has none of them."""
        self.slot, self.is_reading = -1, True
        self.context = (*self.request.prompt_ids, *self._tokens)

    def append(self, token: int, log_prob: float) -> bool:
        """Append a sampled token; return True if it ends the turn."""
        self.is_reading = False
        self.unread = [self.recorded[len(self._tokens)] if self.recorded else token]
        self._tokens.append(token)
        self._log_probs.append(log_prob)
        self._stopped = token in self.sampling.stop_token_ids
        if self.stop is not None:
            self._stopped |= self.stop.is_completed_by(token)
        return (self._stopped and not self.recorded) or len(self._tokens) == self._limit

    def completion(self, version: int) -> Completion:
        """Return the finished turn.

        Args:
            version: Version of the weights.
        """
        reason: FinishReason = "stop" if self._stopped else "length"
        return Completion(tuple(self._tokens), tuple(self._log_probs), reason, version)
