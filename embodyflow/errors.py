"""Errors that a user can mend, told in one line."""


class ConfigError(ValueError):
    """A configuration is wrong: the message names the key and what is allowed."""


class ParityError(RuntimeError):
    """Two computations that must agree (rollout and trainer, two ranks) do not."""


class SamplingError(RuntimeError):
    """An iteration did not find enough rows worth training on; the message says what to change."""
