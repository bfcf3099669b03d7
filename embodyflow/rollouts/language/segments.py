"""Responses that are sampled segment by segment, each with newer weights than the one before.

A segment reads all tokens of a response again, so the keys and values are those of its own weights: a token has the
log-prob that its version of the policy gives it after the tokens before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from embodyflow.data.batches import Columns
from embodyflow.data.padding import pad_lists
from embodyflow.generation.interface import Completion, FinishReason, Request

VERSION = "token_version"
"""Column with the version of the policy that sampled each token."""


@dataclass(frozen=True)
class Response:
    """A response so far.

    Attributes:
        prompt: Tokens of the prompt.
        seed: Seed of all draws.
        token_ids, log_probs: Tokens and their log-probs when sampled.
        versions: Version of the policy that sampled each token.
        has_stopped: Whether the last token ends the response.
    """

    prompt: tuple[int, ...]
    seed: int
    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    has_stopped: bool = False

    def request(self, num_tokens: int) -> Request:
        """Return the request for the next tokens, whose draws follow those of the tokens so far."""
        return Request((*self.prompt, *self.token_ids), self.seed, num_tokens, drawn=len(self.token_ids))

    def extended(self, completion: Completion) -> "Response":
        """Return the response with the tokens of a completion."""
        return replace(
            self,
            token_ids=(*self.token_ids, *completion.token_ids),
            log_probs=(*self.log_probs, *completion.log_probs),
            versions=(*self.versions, *[completion.policy_version] * len(completion.token_ids)),
            has_stopped=completion.finish_reason == "stop",
        )

    def completion(self) -> Completion:
        """Return the whole response as one completion, whose version is that of its first token, the oldest."""
        reason: FinishReason = "stop" if self.has_stopped else "length"
        return Completion(self.token_ids, self.log_probs, reason, self.versions[0])


def end_of(index: int, every: int, is_last: bool, max_tokens: int) -> int:
    """Return the number of tokens of a response after segment ``index``, if it does not end before."""
    return max_tokens if is_last else min((index + 1) * every, max_tokens)


def version_column(responses: Sequence[Response] | Sequence[Completion]) -> Columns:
    """Return the column :data:`VERSION`, int32 [N, R, 1]."""
    return {VERSION: pad_lists([response.versions for response in responses], np.int32)[1][..., None]}


def unfinished(rows: Columns) -> list[Response]:
    """Return the responses in padded rows with the column :data:`VERSION`."""
    return [_response_of(rows, row) for row in range(len(rows["seed"]))]


def _response_of(rows: Columns, row: int) -> Response:
    length, asked = rows["response_length"][row], rows["prompt_length"][row]
    names = ("action_tokens", "log_probs", VERSION)
    tokens, log_probs, versions = (tuple(rows[name][row, :length, 0].tolist()) for name in names)
    return Response(
        prompt=tuple(rows["prompt_tokens"][row, :asked].tolist()),
        seed=int(rows["seed"][row]),
        token_ids=tokens,
        log_probs=log_probs,
        versions=versions,
        has_stopped=bool(rows["terminated"][row]),
    )
