"""Durations in a configuration."""

from typing import Annotated

from pydantic import Field

MOST_SECONDS = 1_000_000
"""Longest timeout, some eleven days. ``poll`` of the C library takes at most twice as much."""

Seconds = Annotated[float, Field(gt=0, le=MOST_SECONDS)]
"""A timeout in seconds."""
