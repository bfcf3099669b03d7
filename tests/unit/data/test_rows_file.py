"""Rows read from disk equal the rows written, or reading fails."""

from pathlib import Path

import numpy as np
import pytest

from embodyflow.data.ragged import Ragged
from embodyflow.data.rows_file import Journal, read_rows, write_rows
from embodyflow.data.tables import Table, digest_of
from embodyflow.errors import DamageError


def rows(start: int, stop: int) -> Table:
    uid = np.arange(start, stop)
    lengths = uid % 3
    return {"uid": uid, "tokens": Ragged(np.arange(lengths.sum(), dtype=np.float32), lengths)}


def test_a_shard_comes_back_with_its_ragged_column(tmp_path: Path) -> None:
    write_rows(tmp_path / "new" / "0.rows", rows(0, 7))
    again = read_rows(tmp_path / "new" / "0.rows", digest_of(rows(0, 7)))
    assert again["uid"].tolist() == list(range(7)) and again["tokens"].lengths.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_no_damage_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "0.rows"
    write_rows(path, rows(0, 7))
    content, digest = path.read_bytes(), digest_of(rows(0, 7))
    values = [place for place in range(len(content)) if not _is_padding(content, place, path, digest)]
    assert len(values) > 150
    path.write_bytes(content[:40])
    with pytest.raises(DamageError, match=r"0\.rows does not hold the rows with digest"):
        read_rows(path, digest)
    with pytest.raises(FileNotFoundError):
        read_rows(tmp_path / "1.rows", digest)


def _is_padding(content: bytes, place: int, path: Path, digest: str) -> bool:
    """Return True if the byte at ``place`` does not affect the rows: it is in the key or in a gap before a column."""
    changed = bytearray(content)
    changed[place] ^= 1
    path.write_bytes(changed)
    try:
        assert digest_of(read_rows(path, digest)) == digest
    except DamageError:
        return False
    return True


def test_a_truncated_last_piece_does_not_affect_the_others(tmp_path: Path) -> None:
    path = tmp_path / "0.0.parts"
    journal = Journal(path)
    assert journal.read() == []
    journal.append(rows(0, 3))
    first = path.stat().st_size
    journal.append(rows(3, 7))
    content = path.read_bytes()
    for end in range(first, len(content)):
        path.write_bytes(content[:end])
        assert [piece["uid"].tolist() for piece in journal.read()] == [[0, 1, 2]]
        assert path.stat().st_size == first
    journal.append(rows(3, 7))
    assert path.read_bytes() == content
    assert [piece["uid"].tolist() for piece in journal.read()] == [[0, 1, 2], [3, 4, 5, 6]]
