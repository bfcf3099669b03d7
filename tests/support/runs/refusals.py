"""Configurations that are refused."""

import pytest

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError


def refusal(*words: str) -> str:
    """Return the message with which a configuration is refused, which must be one line."""
    with pytest.raises(ConfigError) as caught:
        compose_config(words)
    message = str(caught.value)
    assert "\n" not in message
    return message
