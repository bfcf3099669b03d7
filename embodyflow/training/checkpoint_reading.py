"""Reading of checkpoints without running code that they may hold.

torch.distributed.checkpoint reads the file ``.metadata`` and every value that is not a tensor by ``pickle``, which
calls any function that the file names. Here only the classes that torch itself writes are constructed.
"""

import io
import pickle
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from embodyflow.errors import DamageError

_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES = {
    *((_METADATA, name) for name in ("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex")),
    *((_METADATA, name) for name in ("StorageMeta", "TensorProperties", "TensorStorageMetadata")),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
}
"""Everything that torch's writer names in ``.metadata``, except dtypes."""


def load_checkpoint(state: dict[str, Any], folder: str) -> None:
    """Load a checkpoint into the tensors of a state dict, in place; a collective.

    Args:
        state: State dict, as :func:`torch.distributed.checkpoint.load` takes it.
        folder: Folder that :func:`torch.distributed.checkpoint.save` wrote.

    Raises:
        DamageError: ``.metadata`` is not what torch writes: it is cut, names other classes, or files elsewhere.
        CheckpointException: A value does not fit the state dict, or holds other objects than tensors and numbers.
    """
    load(state, storage_reader=_Reader(folder), planner=_Planner())


class _Reader(FileSystemReader):
    """Reads the metadata on every rank before the collective, so that all ranks raise the same error."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._metadata = _read_metadata(Path(folder) / ".metadata")
        self._metadata.storage_meta = StorageMeta(load_id=self.load_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        """Keep the folder, whose metadata is already read."""
        super().reset(None)


class _Planner(DefaultLoadPlanner):
    """Reads values that are not tensors, such as learning rates, with torch's restricted unpickler."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        loaded = io.BytesIO()
        torch.save(torch.load(value, weights_only=True), loaded)
        loaded.seek(0)
        super().load_bytes(read_item, loaded)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is not part of a checkpoint")


def _read_metadata(path: Path) -> Metadata:
    with path.open("rb") as file:
        try:
            metadata = _Unpickler(file).load()
        except Exception as error:  # a damaged pickle raises nearly anything
            raise DamageError(f"{path}: cannot be read: {error or repr(error)}") from error
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        raise DamageError(f"{path}: holds no metadata of a checkpoint")
    for info in metadata.storage_data.values():
        name = getattr(info, "relative_path", None)
        if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name:
            raise DamageError(f"{path}: names the file {name!r} outside its folder")
    return metadata
