"""The replay buffer with images: what is drawn, what is on disk once, and what a commit brings back."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from embodyflow.data.batches import to_batch
from embodyflow.errors import DamageError
from embodyflow.seeding import derive_rng
from embodyflow.training.off_policy.replay.episode_transitions import of_demonstrations, of_episodes
from embodyflow.training.off_policy.replay.frames import frames_per_file
from embodyflow.training.off_policy.replay.image_replay import ImageReplayBuffer, buffer_of
from embodyflow.training.off_policy.replay.replay_buffer import ReplayBuffer, Shape, Transitions, draw

CAMERAS = {"wrist": (2, 3, 3), "front": (4, 2, 3)}
SHAPE = Shape(1, 3, 1, CAMERAS)
FRAME_BYTES = 18 + 24


def image(camera: str, number: int) -> np.ndarray:
    """The image of a camera at a moment, by the moment's number."""
    return derive_rng(camera, number).integers(0, 256, CAMERAS[camera], np.uint8)


def episodes(first: int, lengths: list[int], terminated: bool = True) -> dict[str, Any]:
    """Episodes of decisions that are numbered from ``first`` on; moments have numbers of their own."""
    ends = np.cumsum(lengths)
    numbers = np.arange(first, first + ends[-1])
    frame = np.concatenate([np.arange(n) + end - n + k for k, (n, end) in enumerate(zip(lengths, ends, strict=True))])
    moments = [moment(first + end - n, k) for n, end in zip(lengths, ends, strict=True) for k in range(n + 1)]
    is_last = np.isin(np.arange(ends[-1]), ends - 1)
    return {
        "state": np.repeat(numbers[:, None], 3, 1),
        "action": numbers[:, None],
        "reward": numbers,
        "next_state": np.repeat(numbers[:, None] + 1, 3, 1),
        "terminated": is_last & terminated,
        "truncated": is_last & (not terminated),
        "frame": frame,
        "next_frame": frame + 1,
        **{f"frames.{camera}": np.stack([image(camera, each) for each in moments]) for camera in CAMERAS},
    }


def moment(first: int, step: int) -> int:
    """Number of the moment after so many decisions of the episode that begins with the decision ``first``."""
    return 1000 * first + step


def new_buffer(folder: Path, capacity: int = 100, size: int = 4) -> ImageReplayBuffer:
    return ImageReplayBuffer.create(folder / "replay", SHAPE, capacity, segment_size=size)


def files(folder: Path) -> dict[str, bytes]:
    found = sorted((folder / "replay").rglob("*.*s"))
    return {str(path.relative_to(folder / "replay")): path.read_bytes() for path in found}


def frame_files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "replay/frames").iterdir()}


class Listed:
    """A plain list of transitions, which a buffer must equal."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.items: list[tuple[int, int, int, bool]] = []  # first decision of the episode, length, step, terminated

    def append(self, lengths: list[int], terminated: bool) -> None:
        for length in lengths:
            first = len(self.items)
            self.items += [(first, length, step, terminated) for step in range(length)]

    def matches(self, batch: Transitions, starts: np.ndarray, num_steps: int, gamma: float) -> None:
        for place, start in enumerate(starts.tolist()):
            first, length, step, terminated = self.items[start]
            steps = min(num_steps, length - step)
            ended = step + steps == length
            assert batch.action[place, 0] == start and batch.next_state[place, 0] == start + steps
            expected = sum(gamma**k * (start + k) for k in range(steps))
            assert float(batch.returns[place]) == pytest.approx(expected)
            discount = 0.0 if ended and terminated else gamma**steps
            assert float(batch.discounts[place]) == pytest.approx(discount)
            for camera in CAMERAS:
                before, after = batch.images[camera][place].numpy(), batch.next_images[camera][place].numpy()
                np.testing.assert_array_equal(before, image(camera, moment(first, step)))
                np.testing.assert_array_equal(after, image(camera, moment(first, step + steps)))


def check_all(buffer: ReplayBuffer, listed: Listed, num_steps: int) -> None:
    """Compare every transition that can be drawn."""
    assert len(buffer) == len(listed.items) and buffer.oldest == max(0, len(buffer) - listed.capacity)
    starts = np.arange(buffer.oldest, len(buffer))
    listed.matches(buffer.transitions(starts, num_steps, 0.5), starts, num_steps, 0.5)


@settings(max_examples=25, deadline=None)
@given(
    appended=st.lists(
        st.tuples(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.booleans(), st.booleans()), max_size=6
    ),
    num_steps=st.integers(1, 4),
    capacity=st.integers(1, 12),
    size=st.integers(1, 5),
)
def test_a_buffer_equals_a_plain_list_of_transitions(
    tmp_path_factory: pytest.TempPathFactory, appended: Any, num_steps: int, capacity: int, size: int
) -> None:
    folder = tmp_path_factory.mktemp("buffer")
    buffer, listed, states = new_buffer(folder, capacity, size), Listed(capacity), []
    for lengths, terminated, reopens in appended:
        buffer.append(episodes(len(buffer), lengths, terminated))
        listed.append(lengths, terminated)
        if reopens:
            state, needed = buffer.commit(), buffer.oldest
            buffer.append(episodes(len(buffer), [2, 1]))  # lost with the process
            buffer = ImageReplayBuffer.open(folder / "replay", SHAPE, capacity, json.loads(json.dumps(state)))
            buffer.drop_before(needed)
            states.append(state)
        check_all(buffer, listed, num_steps)
    shutil.rmtree(folder)


def test_drawn_images_are_contiguous_bytes_of_each_camera(tmp_path: Path) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(episodes(0, [3, 2]))
    batch = buffer.sample(derive_rng(0), 50, 2, 0.9)
    for images in (batch.images, batch.next_images):
        assert {camera: tuple(each.shape) for camera, each in images.items()} == {
            camera: (50, *size) for camera, size in CAMERAS.items()
        }
        assert all(each.is_contiguous() and each.dtype == torch.uint8 for each in images.values())


def test_each_frame_is_on_disk_once(tmp_path: Path) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(episodes(0, [3, 5]))
    buffer.append(episodes(8, [1]))
    buffer.commit()
    size = sum(len(content) for name, content in files(tmp_path).items() if name.endswith(".frames"))
    assert size == (4 + 6 + 2) * FRAME_BYTES


def test_what_a_commit_does_not_know_is_cut(tmp_path: Path) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(episodes(0, [3, 2]))
    state, committed = json.loads(json.dumps(buffer.commit())), files(tmp_path)
    buffer.append(episodes(5, [4, 4]))
    again = ImageReplayBuffer.open(tmp_path / "replay", SHAPE, 100, state)
    assert files(tmp_path) == committed and len(again) == 5
    again.append(episodes(5, [7, 1]))
    undisturbed = new_buffer(tmp_path / "undisturbed")
    undisturbed.append(episodes(0, [3, 2]))
    undisturbed.append(episodes(5, [7, 1]))
    assert again.commit() == undisturbed.commit()
    assert files(tmp_path) == files(tmp_path / "undisturbed")


def test_a_commit_writes_and_hashes_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(episodes(0, [7]))  # two files of frames
    first = buffer.commit()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "replay/frames").iterdir()}
    buffer.append(episodes(7, [2]))
    second = buffer.commit()
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    digests = second["frames"]["digests"]
    assert first["frames"]["digests"] == {name: digests[name] for name in ("0", "1")} and len(digests) == 3


def test_frames_that_no_commit_needs_are_removed(tmp_path: Path) -> None:
    buffer = new_buffer(tmp_path, capacity=5)
    buffer.append(episodes(0, [4, 4]))  # frames 0 to 9
    earlier, oldest = buffer.commit(), buffer.oldest
    buffer.append(episodes(8, [4, 4]))  # frames 10 to 19
    later = buffer.commit()
    assert frame_files(tmp_path) == {f"00000{n}.frames" for n in range(5)}
    buffer.drop_before(oldest)  # of transition 3, in the first file
    assert frame_files(tmp_path) == {f"00000{n}.frames" for n in range(5)}
    buffer.drop_before(buffer.oldest)  # of transition 11, in the third file, whose first has frame 10
    assert frame_files(tmp_path) == {f"00000{n}.frames" for n in (2, 3, 4)}
    assert later["frames"]["first"] == 8 and earlier["frames"]["first"] == 0
    listed = Listed(5)
    listed.append([4, 4, 4, 4], True)
    check_all(buffer, listed, 2)
    reopened = ImageReplayBuffer.open(tmp_path / "replay", SHAPE, 5, later)
    check_all(reopened, listed, 2)
    columns = reopened.columns()
    assert len(columns["frame"]) == 8 and columns["frame"][0] == 0 and len(columns["frames.wrist"]) == 10
    np.testing.assert_array_equal(columns["frames.wrist"][0], image("wrist", moment(8, 0)))


def _change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "000001.frames is missing or too short"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "000001.frames is missing or too short"),
        (_change, "000001.frames is damaged"),
    ],
)
def test_a_damaged_file_of_frames_is_named(tmp_path: Path, spoil: Any, message: str) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(episodes(0, [7]))
    state = buffer.commit()
    spoil(tmp_path / "replay/frames/000001.frames")
    with pytest.raises(DamageError, match=message):
        ImageReplayBuffer.open(tmp_path / "replay", SHAPE, 100, state)


def test_a_file_that_goes_while_the_buffer_is_open_is_named(tmp_path: Path) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(episodes(0, [7]))
    path = tmp_path / "replay/frames/000000.frames"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamageError, match=r"000000\.frames is missing or too short"):
        buffer.transitions(np.array([3]), 1, 0.9)
    path.unlink()
    with pytest.raises(DamageError, match=r"000000\.frames is missing or too short"):
        buffer.transitions(np.array([0]), 1, 0.9)


@pytest.mark.parametrize("cameras", [{}, {"wrist": (2, 3, 3)}, {**CAMERAS, "wrist": (3, 2, 3)}])
def test_images_of_other_cameras_or_sizes_are_refused(tmp_path: Path, cameras: Any) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(episodes(0, [7]))
    state, other = buffer.commit(), Shape(1, 3, 1, cameras)
    for open_it in (
        lambda: buffer_of(other).open(tmp_path / "replay", other, 100, state),
        lambda: buffer_of(other).demonstrations(tmp_path / "replay", other),
    ):
        with pytest.raises(DamageError, match=r"has transitions of sizes .*'wrist': \[2, 3, 3\].*, the run of"):
            open_it()


def test_a_buffer_without_images_is_refused_where_the_run_has_some(tmp_path: Path) -> None:
    plain = Shape(1, 3, 1)
    buffer = buffer_of(plain).create(tmp_path, plain, 10)
    assert type(buffer) is ReplayBuffer
    buffer.append({name: column for name, column in episodes(0, [2]).items() if "frame" not in name})
    with pytest.raises(DamageError, match="has transitions of sizes"):
        buffer_of(SHAPE).open(tmp_path, SHAPE, 10, buffer.commit())


def test_a_buffer_without_images_has_the_bytes_and_the_state_that_it_had(tmp_path: Path) -> None:
    """Runs from before there were images resume: the layout of a record and the keys of a commit are theirs."""
    plain = Shape(2, 3, 1)
    buffer = buffer_of(plain).create(tmp_path, plain, 10)
    columns = episodes(0, [3])
    buffer.append({name: column for name, column in columns.items() if "frame" not in name})
    state = buffer.commit()
    assert list(state) == [
        *("num_envs", "state_dim", "action_dim", "record_bytes", "segment_size", "first", "length", "digests")
    ]
    assert state["record_bytes"] == 34 and state["segment_size"] == 65_536
    row = lambda n, last: np.array([n, n, n, n, n, n + 1, n + 1, n + 1], "<f4").tobytes() + bytes([last, 0])  # noqa: E731
    assert (tmp_path / "000000.transitions").read_bytes() == row(0, 0) + row(1, 0) + row(2, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000.transitions", "replay.json"]
    assert len(buffer_of(plain).open(tmp_path, plain, 10, state)) == 3


def test_demonstrations_are_opened_as_they_are_and_joined_with_the_runs_own(tmp_path: Path) -> None:
    expert = new_buffer(tmp_path / "expert")
    expert.append(episodes(50, [7]))
    expert.commit()
    before = files(tmp_path / "expert")
    found = buffer_of(SHAPE).demonstrations(tmp_path / "expert/replay", SHAPE)
    assert found.digests() == expert.digests() and len(found.digests()) == 4
    buffer = new_buffer(tmp_path)
    buffer.append(episodes(0, [4]))
    batch = draw(buffer, found, derive_rng(0), 9, 1, 0.5)
    for place, number in enumerate(batch.action[:, 0].int().tolist()):
        first = 50 if number >= 50 else 0
        expected = image("front", moment(first, number - first + 1))
        np.testing.assert_array_equal(batch.next_images["front"][place].numpy(), expected)
    assert batch.num_demonstrated == 4 and files(tmp_path / "expert") == before


def test_columns_bring_the_same_files_in_another_folder(tmp_path: Path) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(episodes(0, [4, 1]))
    buffer.append(episodes(5, [2]))
    other = new_buffer(tmp_path / "other")
    other.append(buffer.columns())
    assert files(tmp_path / "other") == files(tmp_path)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("frame", np.array([1, 0, 2])),
        ("next_frame", np.array([1, 2, 4])),
        ("frame", np.array([-1, 1, 2])),
        ("frames.wrist", np.zeros((4, 2, 3, 3), np.float32)),
        ("frames.wrist", np.zeros((4, 3, 2, 3), np.uint8)),
        ("frames.wrist", np.zeros((3, 2, 3, 3), np.uint8)),
        ("reward", np.array([0, np.nan, 0])),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(tmp_path: Path, name: str, column: Any) -> None:
    buffer = new_buffer(tmp_path)
    with pytest.raises(ValueError, match="replay: "):
        buffer.append(episodes(0, [3]) | {name: column})
    assert len(buffer) == 0 and not files(tmp_path)


def test_files_of_frames_have_a_sensible_size() -> None:
    assert frames_per_file({"a": (128, 128, 3), "b": (128, 128, 3)}) == 128 * 2**20 // (2 * 128 * 128 * 3)
    assert frames_per_file({"a": (10_000, 10_000, 3)}) == 1


def rows() -> TensorDict:
    """Three episodes of two, three and one decisions, and one that never began, with pictures of their numbers."""
    num_decisions = torch.tensor([2, 3, 1, 0])
    decided = torch.arange(3) < num_decisions[:, None]
    pictures = torch.arange(12, dtype=torch.uint8).view(4, 3, 1, 1, 1).expand(4, 3, 2, 2, 3)
    columns = {
        "state": torch.zeros(4, 3, 2),
        "final_state": torch.zeros(4, 2),
        "image": pictures,
        "final_image": (100 + torch.arange(4, dtype=torch.uint8)).view(4, 1, 1, 1).expand(4, 2, 2, 3),
        "action_tokens": torch.zeros(4, 3, 4),
        "loss_mask": decided[..., None].expand(4, 3, 4),
        "success": torch.tensor([True, False, False, False]),
        "terminated": torch.tensor([False, False, True, False]),
        "truncated": torch.tensor([True, True, False, False]),
    }
    return TensorDict({name: column.contiguous() for name, column in columns.items()}, batch_size=[4])


def test_an_episode_of_n_decisions_has_one_frame_more() -> None:
    found = of_episodes(rows(), {"image": (2, 2, 3)})
    assert found["frames.image"][:, 0, 0, 0].tolist() == [0, 1, 100, 3, 4, 5, 101, 6, 102]
    assert found["frame"].tolist() == [0, 1, 3, 4, 5, 7]
    assert found["next_frame"].tolist() == [1, 2, 4, 5, 6, 8]
    assert not any("frame" in name for name in of_episodes(rows()))


def test_a_demonstration_has_one_frame_for_each_step() -> None:
    count = np.arange(10)
    demos = to_batch(
        {
            "state": np.zeros((2, 10, 2), np.float32),
            "actions": np.zeros((2, 10, 1), np.float32),
            "num_steps": np.array([5, 4]),
            "instruction_ids": np.zeros((2, 1), np.int64),
            "image": np.stack([count, count + 20])[..., None, None, None].astype(np.uint8).repeat(3, -1),
        }
    )
    found = of_demonstrations(demos, 3, ["image"])
    assert found["frames.image"][:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 20, 21, 22, 23]
    assert found["frame"].tolist() == list(range(9))
    assert found["next_frame"][~found["terminated"]].tolist() == [3, 4, 8]
