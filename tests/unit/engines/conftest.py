"""What the tests of the engines share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from embodyflow.engines.fsdp_trainer import FSDPTrainer


@pytest.fixture
def close() -> Iterator[list[FSDPTrainer]]:
    """Trainers put in here leave their process group after the test."""
    trainers: list[FSDPTrainer] = []
    yield trainers
    for trainer in trainers:
        trainer.close()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small matrices are not worth the time that a second thread takes to be there."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
