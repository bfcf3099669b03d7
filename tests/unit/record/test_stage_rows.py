"""Rows of nodes on disk, and what a return to an earlier commit leaves of them."""

from pathlib import Path

from embodyflow.record.episodes.stage_rows import StageRows


def test_segments_that_later_versions_sampled_are_dropped(tmp_path: Path) -> None:
    """A rollout of three segments, of which committed versions sampled two, and one of the iteration before."""
    stages = StageRows(tmp_path / "stages")
    names = ("0.0.parts", "0.1.parts", "0.2.parts", "10.2.parts", "0.rows", "0.surplus")
    for iteration in (6, 7):
        folder = stages.folder(iteration, "rollout")
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    stages.drop_segments(7, keep=2)
    assert {path.name for path in stages.folder(7, "rollout").iterdir()} == {"0.0.parts", "0.1.parts", "0.surplus"}
    assert {path.name for path in stages.folder(6, "rollout").iterdir()} == {*names}
    stages.drop_segments(8, keep=0)  # nothing was begun


def test_what_an_iteration_left_to_the_next_one_stays_with_its_rows(tmp_path: Path) -> None:
    """A run that reads its rows from disk does not leave them again."""
    stages = StageRows(tmp_path)
    for iteration in (5, 6, 7):
        folder = stages.folder(iteration, "rollout")
        folder.mkdir(parents=True)
        for name in ("0.rows", "1.parts", "0.surplus"):
            (folder / name).touch()
    stages.drop_after(5)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    kept = [f"iteration-000005/rollout/{name}" for name in ("0.rows", "1.parts", "0.surplus")]
    assert found == {*kept, "iteration-000006/rollout/0.surplus"}
