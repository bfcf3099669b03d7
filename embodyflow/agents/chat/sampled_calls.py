"""Every completion that the model sampled in an episode, and transcripts that are checked against them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from embodyflow.agents.chat.conversation import Model
from embodyflow.agents.chat.transcript import Origin, Segment, Tokens, Transcript
from embodyflow.generation.interface import Completion

_TOLERANCE = 1e-5
"""Largest difference of a log-prob that a workflow returns; it may have gone through float32."""


@dataclass
class RecordedModel:
    """A model that keeps what it sampled. Implements :class:`~embodyflow.agents.chat.conversation.Model`.

    Attributes:
        model: Model that samples.
        calls: Tokens that it continued, each with the completion, in order.
    """

    model: Model
    calls: list[tuple[Tokens, Completion]] = field(default_factory=list)

    async def generate(self, prompt_ids: Tokens, max_tokens: int) -> Completion:
        """Sample a completion of at most ``max_tokens`` tokens."""
        completion = await self.model.generate(prompt_ids, max_tokens)
        self.calls.append((prompt_ids, completion))
        return completion

    def transcript(self, tokens: Tokens, trained: Sequence[bool], log_probs: Sequence[float]) -> Transcript:
        """Return the transcript of an episode that a workflow put together itself.

        Args:
            tokens: T tokens of the episode, with its prompt.
            trained: Loss mask, T values.
            log_probs: Log-prob of each trained token, T values; others are ignored.

        Raises:
            ValueError: No token is trained on, one was not sampled after exactly the tokens before it, or its log-prob
                is another one.
        """
        owners = self._owners(tokens)
        for place in (place for place, train in enumerate(trained) if train):
            owner = owners[place]
            if owner is None:
                raise ValueError(f"loss_mask: the model did not sample token {place} after the tokens before it")
            prompt, completion = self.calls[owner]
            if not abs(completion.log_probs[place - len(prompt)] - log_probs[place]) <= _TOLERANCE:  # NaN is another
                raise ValueError(f"logprobs: token {place} was sampled with another log-prob")
        if not any(trained):
            raise ValueError("loss_mask: trains on no token")
        kept = [owner if train else None for owner, train in zip(owners, trained, strict=True)]
        first = kept.index(next(owner for owner in kept if owner is not None))
        transcript, place = Transcript(tokens[:first]), first
        for owner, run in groupby(kept[first:]):
            end = place + len(list(run))
            if owner is None:
                transcript.append_given(tokens[place:end], Origin.USER)
            else:
                transcript.segments.append(self._segment(owner, place, end))
            place = end
        return transcript

    def longest(self) -> Transcript:
        """Return the longest conversation that the model took part in.

        Raises:
            ValueError: The model has sampled nothing.
        """
        if not self.calls:
            raise ValueError("the model has written nothing; an episode needs at least one turn of the model")
        prompt, completion = max(self.calls, key=lambda call: len(call[0]) + len(call[1].token_ids))
        tokens = (*prompt, *completion.token_ids)
        owners = self._owners(tokens)
        log_probs = [
            0.0 if owner is None else self.calls[owner][1].log_probs[place - len(self.calls[owner][0])]
            for place, owner in enumerate(owners)
        ]
        return self.transcript(tokens, [owner is not None for owner in owners], log_probs)

    def _owners(self, tokens: Tokens) -> list[int | None]:
        """Return the call that sampled each token after exactly the tokens before it, if one did."""
        owners: list[int | None] = [None] * len(tokens)
        for number, (prompt, completion) in enumerate(self.calls):
            end = len(prompt) + len(completion.token_ids)
            if tokens[:end] == (*prompt, *completion.token_ids):
                owners[len(prompt) : end] = [number] * len(completion.token_ids)
        return owners

    def _segment(self, owner: int, start: int, end: int) -> Segment:
        prompt, completion = self.calls[owner]
        part = slice(start - len(prompt), end - len(prompt))
        return Segment(
            completion.token_ids[part],
            Origin.MODEL,
            completion.log_probs[part],
            min(completion.versions[part], default=completion.policy_version),
            versions=completion.versions[part],
        )
