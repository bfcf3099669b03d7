"""Engines compute in one thread, as every worker of a run does; the bits of a row depend on the number of threads."""

from collections.abc import Iterator

import pytest
import torch

from embodyflow.config import RunConfig
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def rollout(config: RunConfig) -> EmbodiedRollout:
    """The rollout engine of the module's own configuration."""
    return EmbodiedRollout(config, 0, 1)
