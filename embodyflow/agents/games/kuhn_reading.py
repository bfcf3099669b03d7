"""The strategy of a language model in Kuhn poker, read from its log-probs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from embodyflow.agents.games.kuhn_poker import allowed, observation
from embodyflow.agents.games.kuhn_strategy import INFORMATION_SETS, InformationSet, Strategy
from embodyflow.prompts.prompts import Prompt, encode, encode_response

Scored = Callable[[Sequence[tuple[Sequence[int], Sequence[int]]]], list[npt.NDArray[np.float32]]]
"""Log-probs of responses, as :meth:`embodyflow.generation.interface.GenerationEngine.score` returns them."""


@dataclass(frozen=True)
class Reading:
    """A model's strategy.

    Attributes:
        strategy: Probability of each allowed action, given that the model writes one of them.
        legal: Smallest probability in any information set that the model writes an allowed action.
    """

    strategy: Strategy
    legal: float


def read_strategy(score: Scored, tokenizer: Any, message: str = "") -> Reading:
    """Read a model's strategy in all information sets.

    Args:
        score: Returns the log-probs of pairs of prompt and response.
        tokenizer: Tokenizer of the model.
        message: Message before what a player reads, ``data.prompt``.
    """
    asked = [(each, action) for each in INFORMATION_SETS for action in allowed(each[1])]
    prompts = {each: _prompt(each, message) for each in INFORMATION_SETS}
    pairs = [
        (encode(prompts[each], tokenizer, 2**20), encode_response(prompts[each], action, tokenizer))
        for each, action in asked
    ]
    found: dict[InformationSet, dict[str, float]] = {each: {} for each in INFORMATION_SETS}
    for (each, action), log_probs in zip(asked, score(pairs), strict=True):
        found[each][action] = math.exp(float(np.sum(log_probs, dtype=np.float64)))
    sums = {each: sum(chances.values()) for each, chances in found.items()}
    strategy = {each: {action: p / sums[each] for action, p in chances.items()} for each, chances in found.items()}
    return Reading(strategy, min(sums.values()))


def _prompt(information_set: InformationSet, message: str) -> Prompt:
    """Return the chat of the player who acts next, as self-play makes it."""
    card, history = information_set
    seat, messages = len(history) % 2, []
    for number in range(seat, len(history), 2):
        messages.append({"role": "user", "content": observation(seat, card, history[:number])})
        messages.append({"role": "assistant", "content": history[number]})
    messages.append({"role": "user", "content": observation(seat, card, history)})
    messages[0]["content"] = message + messages[0]["content"]
    return Prompt(0, None, messages, None, "kuhn")
