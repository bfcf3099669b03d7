"""What the tests of the engines share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from embodyflow.engines.fsdp_trainer import FSDPTrainer


@pytest.fixture
def close() -> Iterator[list[FSDPTrainer]]:
    """Trainers put in here leave their process group after the test."""
    trainers: list[FSDPTrainer] = []
    yield trainers
    for trainer in trainers:
        trainer.close()
