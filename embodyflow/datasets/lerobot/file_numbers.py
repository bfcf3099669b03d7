"""Numbering of the files of a LeRobot data set."""

from pathlib import Path


class FileNumbers:
    """The number of the current file and of its folder.

    Args:
        pattern: Path with ``{chunk_index}``, the number of the folder, and ``{file_index}``.
        max_megabytes: Size at which a file is followed by another, in MB (2^20 bytes).
        per_folder: Number of files in a folder.
    """

    def __init__(self, pattern: Path, max_megabytes: int, per_folder: int) -> None:
        self._pattern, self._max_bytes, self._per_folder, self._number = pattern, max_megabytes * 2**20, per_folder, 0

    @property
    def place(self) -> dict[str, int]:
        """Numbers of the folder and of the file in it."""
        chunk, file = divmod(self._number, self._per_folder)
        return {"chunk_index": chunk, "file_index": file}

    def path(self) -> Path:
        """Return the path of the current file; its folder exists then."""
        path = Path(str(self._pattern).format(**self.place))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def is_full(self) -> bool:
        """Return True if the current file has its size; an encoder creates it only after some frames."""
        file = self.path()
        return file.exists() and file.stat().st_size >= self._max_bytes

    def advance(self) -> None:
        """Go on to the next file."""
        self._number += 1
