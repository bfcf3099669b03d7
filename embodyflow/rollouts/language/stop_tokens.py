"""Tokens that end a response because the configuration names them."""

from collections.abc import Iterator, Sequence
from typing import Any

from embodyflow.config.language import LanguageConfig
from embodyflow.errors import ConfigError


def check_stop_tokens(config: LanguageConfig) -> None:
    """Check that each text of ``rollout.stop_tokens`` is a token; without texts no tokenizer is loaded.

    Raises:
        ConfigError: A text is not, or the tokenizer cannot be loaded.
    """
    if not config.rollout.stop_tokens:
        return
    from embodyflow.policies.language.causal_lm.tokenizer_causal_lm import build_tokenizer

    try:
        tokenizer = build_tokenizer(config.policy)
    except (OSError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(f"rollout.stop_tokens: the tokenizer cannot be loaded: {first}") from error
    list(named_stop_tokens(config.rollout.stop_tokens, tokenizer))


def named_stop_tokens(texts: Sequence[str], tokenizer: Any) -> Iterator[int]:
    """Yield the token of each text of ``rollout.stop_tokens``.

    Raises:
        ConfigError: A text is not a single token of the tokenizer.
    """
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
            raise ConfigError(
                f"rollout.stop_tokens={text!r}: the tokenizer has no such token and reads {len(ids)}; "
                "allowed are texts of one token"
            )
        yield ids[0]
