import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.errors import ConfigError
from embodyflow.prompts.epochs import shuffled_rows
from embodyflow.prompts.files import datasets
from embodyflow.prompts.files.datasets import Row, partition

ROWS = [{"prompt": f"{i}+{i}=" + "x" * 2000, "answer": 2 * i} for i in range(400)]


def write_parquet(folder: Path, rows: list[Row]) -> str:
    path = folder / "rows.parquet"
    pyarrow.parquet.write_table(
        pa.Table.from_pylist(rows), path, row_group_size=50, compression="none", use_dictionary=False
    )
    return str(path)


def write_jsonl(folder: Path, rows: list[Row]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_json(folder: Path, rows: list[Row]) -> str:
    path = folder / "rows.json"
    path.write_text(json.dumps(rows, indent=1))
    return str(path)


def write_arrow(folder: Path, rows: list[Row]) -> str:
    path = folder / "rows.arrow"
    table = pa.Table.from_pylist(rows)
    with pyarrow.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    return str(path)


def write_hugging_face(folder: Path, rows: list[Row]) -> str:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows).save_to_disk(str(folder / "rows"))
    return str(folder / "rows")


Write = Callable[[Path, list[Row]], str]
FORMATS = [write_parquet, write_jsonl, write_json, write_arrow, write_hugging_face]


def read(paths: Sequence[str], num_ranks: int, columns: Sequence[str] = ("prompt", "answer")) -> list[list[Row]]:
    return [[row for extent in part for row in extent.read(columns)] for part in partition(paths, num_ranks)]


def bytes_read() -> int:
    """Return the number of bytes that this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("write", FORMATS)
def test_the_ranks_share_all_rows_in_order(write: Write, tmp_path: Path) -> None:
    parts = read([write(tmp_path, ROWS[:23])], 4)
    assert [len(part) for part in parts] == [5, 6, 6, 6]
    assert [row for part in parts for row in part] == ROWS[:23]


def test_several_files_are_one_dataset(tmp_path: Path) -> None:
    paths = [write_jsonl(tmp_path, ROWS[:3]), write_parquet(tmp_path, ROWS[3:8])]
    assert read(paths, 3, ["answer"]) == [[{"answer": 2 * i} for i in part] for part in ([0, 1], [2, 3, 4], [5, 6, 7])]


# Parquet also reads 64 KiB for the footer, whatever its size.
@pytest.mark.parametrize(("write", "overhead"), [(write_parquet, 70_000), (write_jsonl, 500)])
def test_a_rank_reads_its_own_slice_and_no_more(write: Write, overhead: int, tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    part = partition([path], 8)[3]  # one of eight row groups
    before = bytes_read()
    rows = [row for extent in part for row in extent.read(["prompt", "answer"])]
    cost, size = bytes_read() - before, Path(path).stat().st_size
    assert rows == ROWS[150:200]
    assert size / 8 - 500 < cost < size / 8 + overhead < size / 4


class ShortReads(io.FileIO):
    """A file whose reads return fewer bytes than requested, as in files of more than 2 GiB."""

    def read(self, size: int = -1, /) -> bytes:
        return super().read(min(size, 1000))


def test_json_lines_are_complete_despite_short_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl(tmp_path, ROWS)
    monkeypatch.setattr(datasets, "open", lambda path, *_, **__: ShortReads(path), raising=False)
    assert [row for part in read([path], 3) for row in part] == ROWS


def mapped_bytes(path: str) -> int:
    """Return the mapped bytes of a file, or of the files in a folder, that this process has touched."""
    blocks = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    touched = [
        re.search(r"^Rss: +(\d+) kB", block, re.MULTILINE) for block in blocks if path in block.partition("\n")[0]
    ]
    return 1024 * sum(int(match[1]) for match in touched if match)


# Touching a page also maps its neighbours: 64 KiB, or 2 MiB if the kernel caches them as one page.
@pytest.mark.parametrize(("write", "opener"), [(write_arrow, "_map_arrow"), (write_hugging_face, "_load_from_disk")])
def test_a_rank_touches_its_own_slice_of_a_map_and_no_more(
    write: Write, opener: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"prompt": str(i % 10) * 1_600_000, "answer": i} for i in range(40)]
    path = write(tmp_path, rows)
    size = sum(file.stat().st_size for file in tmp_path.rglob("*.arrow"))
    open_map, maps = getattr(datasets, opener), []
    monkeypatch.setattr(datasets, opener, lambda path: maps.append(open_map(path)) or maps[-1])  # keeps it mapped
    part = partition([path], 8)[3]
    maps.clear()
    assert [row for extent in part for row in extent.read(["prompt", "answer"])] == rows[15:20]
    assert size / 8 < mapped_bytes(path) < size / 8 + 4 * 2**21 < size / 3.5


@given(st.integers(1, 30), st.data())
def test_line_ends_do_not_depend_on_a_last_line_feed(num_rows: int, data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(write_jsonl(Path(folder), rows := [{"a": "é" * i} for i in range(num_rows)]))
        if data.draw(st.booleans()):
            path.write_bytes(path.read_bytes()[:-1])
        parts = read([str(path)], data.draw(st.integers(1, num_rows)), ["a"])
        assert [row for part in parts for row in part] == rows


NESTED = [{"prompt": "a", "meta": {"index": i, "split": {"name": "x"}}, "image": b"1"} for i in range(4)]


@pytest.mark.parametrize("write", [write_parquet, write_arrow, write_hugging_face])
def test_a_nested_column_comes_whole_and_other_columns_without_binary_ones(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path, NESTED)
    assert read([path], 1, ["meta.index"])[0] == [{"meta": row["meta"]} for row in NESTED]
    [extent] = partition([path], 1)[0]
    expected = [{"meta": row["meta"], "prompt": "a"} for row in NESTED]
    assert extent.read(["meta.split.name"], others=True) == expected
    assert extent.read(["image"]) == [{"image": b"1"}] * 4
    with pytest.raises(ConfigError, match=rf"^{path}: has no column mata.index; it has prompt, meta, image$"):
        extent.read(["mata.index"])


def test_blank_lines_of_json_lines_are_not_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('\n \t\r\n{"a": 0}\n\n\n  {"a": 1}\r\n{"a": 2}\n\n{"b": 3}\n \n\n')
    assert [len(part) for part in partition([str(path)], 4)] == [1] * 4
    parts = partition([str(path)], 2)
    assert parts[0][0].read(["a"]) == [{"a": 0}, {"a": 1}]
    with pytest.raises(ConfigError, match=rf"^{path}:9: has no column a; it has b$"):
        parts[1][0].read(["a"])


def test_json_lines_may_be_called_json(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"a": 0}\n{"a": 1}\n')
    assert read([str(path)], 2, ["a"]) == [[{"a": 0}], [{"a": 1}]]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[{"a": 1}, {"b": 2}]', ", row 2: has no column a; it has b"),
        ('[{"a": 1}, 2]', ", row 2: is not a JSON object"),
        ('[{"a": 1}', ": is not JSON: "),
    ],
)
def test_a_broken_json_list_is_named_with_the_row(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"^{path}{complaint}"):
        read([str(path)], 1, ["a"])


def test_csv_values_are_text_and_may_hold_commas_quotes_and_line_feeds(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes('\ufeffquestion,answer\r\n"a, ""b""\nc",007\r\n\r\né,1.50\r\n'.encode())
    rows = [{"question": 'a, "b"\nc', "answer": "007"}, {"question": "é", "answer": "1.50"}]
    assert read([str(path)], 2, ["question", "answer"]) == [[rows[0]], [rows[1]]]
    (tmp_path / "rows.tsv").write_text("question\tanswer\na, b\t3\n")
    assert read([str(tmp_path / "rows.tsv")], 1, ["question"]) == [[{"question": "a, b"}]]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n1,2\n3\n", ", row 2: has 1 values; its header names 2 columns"),
        ("a,b\n1,2,3\n", ", row 1: has 3 values; its header names 2 columns"),
        ("a,a\n1,2\n", ": its header names a column twice: a, a"),
        ('a,b\n"1,2\n', ": is not a CSV file: "),
        ("a,b\n", ": 0 rows for 1 ranks"),
        ("", ": 0 rows for 1 ranks"),
    ],
)
def test_a_broken_csv_file_is_named_with_the_row(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"^{path}{complaint}"):
        read([str(path)], 1, ["a"])


@pytest.mark.parametrize("write", FORMATS)
def test_fewer_rows_than_ranks_are_refused(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path, ROWS[:3])
    with pytest.raises(ConfigError, match=rf"^{path}: 3 rows for 4 ranks; needs at least one row per rank$"):
        partition([path], 4)


@pytest.mark.parametrize("write", FORMATS)
def test_a_missing_column_is_named_with_those_that_are_there(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path, ROWS[:3])
    with pytest.raises(ConfigError, match=rf"^{path}(:1|, row 1)?: has no column question; it has prompt, answer$"):
        read([path], 1, ["question"])


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"prompt": 1', "is not JSON: Expecting"),
        ("[1]", "is not a JSON object"),
        ("{}", "has no"),
    ],
)
def test_a_broken_line_is_named_with_its_number_also_by_the_last_rank(
    line: str, complaint: str, tmp_path: Path
) -> None:
    path = Path(write_jsonl(tmp_path, [{"prompt": i} for i in range(9)]))
    lines = path.read_text().splitlines()
    lines[7] = line
    path.write_text("\n".join(lines) + "\n")
    first, last = partition([str(path)], 2)
    assert len(first[0].read(["prompt"])) == 4
    with pytest.raises(ConfigError, match=rf"^{path}:8: {complaint}"):
        last[0].read(["prompt"])


@pytest.mark.parametrize(
    "name", ["none.parquet", "none.jsonl", "none.arrow", "broken.parquet", "broken.arrow", "folder"]
)
def test_a_file_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for broken in ("broken.parquet", "broken.arrow"):
        (tmp_path / broken).write_bytes(b"no such format")
    with pytest.raises(ConfigError, match=rf"^{tmp_path / name}: cannot be read: "):
        partition([str(tmp_path / name)], 1)


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"rows.xlsx: allowed are .parquet, .arrow, .jsonl, .json, .csv, .tsv and folders"
    ):
        partition([str(tmp_path / "rows.xlsx")], 1)


def test_a_folder_of_splits_asks_for_one_of_them(tmp_path: Path) -> None:
    import datasets

    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS[:2])}).save_to_disk(str(tmp_path / "all"))
    with pytest.raises(ConfigError, match=rf"holds several splits; allowed are {tmp_path}/all/train$"):
        partition([str(tmp_path / "all")], 1)


@given(st.integers(1, 9), st.lists(st.integers(1, 25), min_size=1, max_size=5))
def test_rows_depend_on_their_positions_alone(num_rows: int, counts: list[int]) -> None:
    whole = shuffled_rows(3, num_rows, 0, sum(counts)).tolist()
    firsts = [sum(counts[:part]) for part in range(len(counts))]
    parts = [shuffled_rows(3, num_rows, first, count).tolist() for first, count in zip(firsts, counts, strict=True)]
    assert [row for part in parts for row in part] == whole
    epochs = [whole[start : start + num_rows] for start in range(0, len(whole) - num_rows + 1, num_rows)]
    assert all(sorted(epoch) == list(range(num_rows)) for epoch in epochs)


def test_every_epoch_and_every_seed_has_its_own_order() -> None:
    first, second = np.split(shuffled_rows(3, 50, 0, 100), 2)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, shuffled_rows(4, 50, 0, 50))
