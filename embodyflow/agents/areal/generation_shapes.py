"""What workflows of AReaL ask an engine for and get back: the fields and methods of its ``areal/api`` (May 2026)."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

_ANY_TOKEN = int(1e8)
"""AReaL's ``top_k`` for all tokens."""


@dataclass
class GenerationHyperparameters:
    """Parameters of sampling, with AReaL's names and defaults.

    A workflow's constructor gets one as ``gconfig``. The run decides how turns are sampled, so a request with other
    values is refused instead of trained on.
    """

    n_samples: int = 1
    max_new_tokens: int = 16384
    min_new_tokens: int = 0
    max_tokens: int = 32768
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = _ANY_TOKEN
    temperature: float = 1.0
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stop: list[str] | None = None
    frequency_penalty: float = 0.0
    use_beam_search: bool = False

    def new(self, **changes: Any) -> Self:
        """Return a copy with other values."""
        return replace(self, **{"stop_token_ids": list(self.stop_token_ids), **changes})

    def new_with_stop_and_pad_token_ids(self, tokenizer: Any) -> Self:
        """Return a copy that also stops at the tokenizer's padding and end-of-sequence tokens."""
        ids = [token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token not in self.stop_token_ids]
        return self.new(stop_token_ids=[*self.stop_token_ids, *dict.fromkeys(ids)])


@dataclass
class ModelResponse:
    """A completion, with AReaL's names.

    Attributes:
        input_tokens: Tokens that the model continued.
        output_tokens: N tokens that it sampled, with the one that ended the turn.
        output_logprobs: Their N log-probs.
        output_versions: N versions of the weights that sampled them.
        stop_reason: ``stop``, or ``length`` if a limit cut the turn.
        tokenizer: Tokenizer of the request.
    """

    input_tokens: list[int]
    output_tokens: list[int]
    output_logprobs: list[float]
    output_versions: list[int]
    stop_reason: Literal["stop", "length"]
    tokenizer: Any = None

    @property
    def input_len(self) -> int:
        """Number of tokens that the model continued."""
        return len(self.input_tokens)

    @property
    def output_len(self) -> int:
        """Number of sampled tokens."""
        return len(self.output_tokens)

    @property
    def output_tokens_without_stop(self) -> list[int]:
        """Sampled tokens without the one that ended the turn."""
        return self.output_tokens[:-1] if self.stop_reason == "stop" else self.output_tokens


def unsupported(gconfig: Any, temperature: float, tokenizer: Any) -> str | None:
    """Return the first parameter of a request that the run does not sample by, as ``name=value``; ``None`` if none is.

    Args:
        gconfig: Parameters of the request.
        temperature: Temperature of the run.
        tokenizer: Tokenizer of the run.
    """
    ends = {tokenizer.pad_token_id, tokenizer.eos_token_id}
    allowed = {
        "n_samples": lambda value: value == 1,
        "min_new_tokens": lambda value: value <= 1,
        "temperature": lambda value: value == temperature,
        "top_p": lambda value: value == 1,
        "top_k": lambda value: value <= 0 or value >= len(tokenizer),
        "stop_token_ids": lambda value: ends.issuperset(value),
        "stop": lambda value: not value,
    }
    for known in fields(GenerationHyperparameters):
        value = getattr(gconfig, known.name, known.default)
        is_allowed = allowed.get(known.name)
        if known.name in _LIMITS or not hasattr(gconfig, known.name):
            continue
        if not (value == known.default if is_allowed is None else is_allowed(value)):
            return f"{known.name}={value}"
    return None


_LIMITS = ("max_new_tokens", "max_tokens", "skip_special_tokens")
"""Parameters that the engine obeys, or that only concern texts."""
