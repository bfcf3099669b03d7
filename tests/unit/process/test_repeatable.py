"""What is asked of torch so that a GPU repeats its numbers; no GPU is needed to ask."""

import os
from collections.abc import Iterator

import pytest
import torch

from embodyflow.process.repeatable import repeat_numbers

ASKED = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "FLASH_ATTENTION_DETERMINISTIC": "1"}


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ASKED:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_gpu_is_asked_for_the_same_numbers_each_time(device: str) -> None:
    repeat_numbers(device)
    asked = device == "cuda"
    assert torch.are_deterministic_algorithms_enabled() == asked
    assert torch.is_deterministic_algorithms_warn_only_enabled() == asked
    assert torch.backends.cudnn.allow_tf32 != asked
    assert {name: os.environ.get(name) for name in ASKED} == (ASKED if asked else dict.fromkeys(ASKED))
    assert torch.utils.deterministic.fill_uninitialized_memory != asked
