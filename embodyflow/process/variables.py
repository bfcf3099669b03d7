"""Environment variables that hold for a block of code, and those that other programs do not get."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

OF_THE_RUN = ("PREFECT_", "RAY_", "WANDB_", "OTEL_")
"""Beginnings of the names of the variables of the run's own services."""
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "SLURM_JWT")
"""Variables with which the machine's user signs in elsewhere."""
_withheld: set[str] = set()


def withhold(name: str) -> None:
    """Keep a variable of this process, which holds a secret, from the programs that it starts for episodes."""
    _withheld.add(name)


def variables_for_episodes(*, with_tokens: bool = False) -> dict[str, str]:
    """Return the variables of this process without those of the run's own services and without withheld ones.

    A model may choose the commands of an episode. The keys of the services would let it submit code to the Ray cluster
    or change runs, and the user's tokens would let it read and write their repositories.

    Args:
        with_tokens: Whether :data:`TOKENS` are among them, for a process that loads data sets of the user's.
    """
    kept_back = _withheld if with_tokens else {*_withheld, *TOKENS}
    names = (name for name in os.environ if not name.startswith(OF_THE_RUN) and name not in kept_back)
    return {name: os.environ[name] for name in names}


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the block and restore them after it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
