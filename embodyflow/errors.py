"""Errors that a user can mend, told in one line."""


class ConfigError(ValueError):
    """A configuration is wrong: the message names the key and what is allowed."""


class ParityError(RuntimeError):
    """Two computations that must agree (rollout and trainer, two ranks) do not."""
