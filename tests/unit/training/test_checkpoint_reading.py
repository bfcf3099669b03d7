"""Checkpoints are read without running code that they hold."""

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.state_dict_saver import save

from embodyflow.errors import DamageError
from embodyflow.training.checkpoint_reading import load_checkpoint


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self._path),)


def new_state(value: float) -> dict[str, Any]:
    rates = {"lr": value, "betas": (value, 0.5), "foreach": None, "amsgrad": True}
    return {"policy": {"model": {"weight": torch.full((3, 2), value)}, "optimizer": {"groups": rates}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(new_state(2.0), checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    return tmp_path / "checkpoint"


def rewrite(folder: Path, change: Callable[[Metadata], object]) -> None:
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps(change(metadata) or metadata))


def test_a_checkpoint_is_read_in_place_with_values_that_are_not_tensors(folder: Path) -> None:
    state = new_state(1.0)
    weight = state["policy"]["model"]["weight"]
    load_checkpoint(state, str(folder))
    assert weight.tolist() == [[2.0, 2.0]] * 3
    assert state["policy"]["optimizer"] == new_state(2.0)["policy"]["optimizer"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8])
def test_every_dtype_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    save({"x": torch.ones(4, dtype=dtype)}, checkpoint_id=tmp_path, no_dist=True)
    state = {"x": torch.zeros(4, dtype=dtype)}
    load_checkpoint(state, str(tmp_path))
    assert state["x"].tolist() == torch.ones(4, dtype=dtype).tolist()


def test_code_in_the_metadata_does_not_run(folder: Path, tmp_path: Path) -> None:
    rewrite(folder, lambda metadata: setattr(metadata, "planner_data", Attack(tmp_path / "owned")))
    with pytest.raises(DamageError, match=r"\.metadata: cannot be read: it names posix\.mkdir"):
        load_checkpoint(new_state(1.0), str(folder))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("fqn", ["policy.optimizer.groups.lr", "policy.model.weight"])
def test_code_in_a_value_does_not_run(folder: Path, tmp_path: Path, fqn: str) -> None:
    """The value replaces a number, or a tensor that the metadata then declares to be bytes."""
    value = io.BytesIO()
    torch.save(Attack(tmp_path / "owned"), value)
    (folder / "evil.distcp").write_bytes(value.getvalue())

    def point_to_the_attack(metadata: Metadata) -> None:
        kept = {index: info for index, info in metadata.storage_data.items() if index.fqn != fqn}
        [info, *_] = [info for index, info in metadata.storage_data.items() if index.fqn == fqn]
        info.relative_path, info.offset, info.length = "evil.distcp", 0, len(value.getvalue())
        metadata.state_dict_metadata[fqn] = BytesStorageMetadata()
        metadata.storage_data = {**kept, MetadataIndex(fqn): info}

    rewrite(folder, point_to_the_attack)
    with pytest.raises((CheckpointException, pickle.UnpicklingError), match="Weights only load failed"):
        load_checkpoint(new_state(1.0), str(folder))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("place", ["../secret", "/etc/passwd", "a/../../secret", ".."])
def test_files_outside_the_folder_are_not_read(folder: Path, place: str) -> None:
    def point_elsewhere(metadata: Metadata) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = place

    rewrite(folder, point_elsewhere)
    with pytest.raises(DamageError, match="outside its folder"):
        load_checkpoint(new_state(1.0), str(folder))


@pytest.mark.parametrize("content", [b"", b"\x80\x04", pickle.dumps({"a": 1}), pickle.dumps(Metadata({}))])
def test_damaged_metadata_is_reported_with_its_file(folder: Path, content: bytes) -> None:
    (folder / ".metadata").write_bytes(content)
    with pytest.raises(DamageError, match=r"checkpoint/\.metadata: "):
        load_checkpoint(new_state(1.0), str(folder))
