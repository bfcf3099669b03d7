"""The settings for deterministic computation on a GPU; testing them needs no GPU."""

import os
from collections.abc import Iterator

import pytest
import torch

from embodyflow.process.determinism import use_deterministic_kernels

SETTINGS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "FLASH_ATTENTION_DETERMINISTIC": "1"}


@pytest.fixture(autouse=True)
def restore_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in SETTINGS:
        monkeypatch.setenv(name, "")  # so that monkeypatch restores it afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_only_a_gpu_needs_deterministic_settings(device: str) -> None:
    use_deterministic_kernels(device)
    is_set = device == "cuda"
    assert torch.are_deterministic_algorithms_enabled() == is_set
    assert torch.is_deterministic_algorithms_warn_only_enabled() == is_set
    assert torch.backends.cudnn.allow_tf32 != is_set
    assert {name: os.environ.get(name) for name in SETTINGS} == (SETTINGS if is_set else dict.fromkeys(SETTINGS))
    assert torch.utils.deterministic.fill_uninitialized_memory != is_set
