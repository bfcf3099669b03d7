"""Room for the images of a replay buffer: what a run will store, and the line that refuses it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.replay_space import check_replay_space, replayed_bytes
from embodyflow.orchestration.request.request import check, parse_arguments

FRAME = 2 * 128 * 128 * 3
WORDS = (
    *("experiment=push", "algorithm=rlpd", "iterations=10", "rollout.num_groups=4", "env.max_steps=42"),
    *("policy.chunk_size=5", "warm_start.num_demos=3", "off_policy.replay_capacity=200"),
)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A run whose policy says that it replays images: 36 decisions in an iteration of four episodes."""
    composed = compose_config([*WORDS, f"run_root={tmp_path}", "run_id=new", "rollout.group_size=1"])
    monkeypatch.setattr(
        type(composed.policy), "replayed_images", {"front": (128, 128, 3), "wrist": (128, 128, 3)}, raising=False
    )
    return composed


def leave(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """Make the disk have so many free bytes."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))


def test_bytes_are_those_of_episodes_of_full_length_and_demonstrations(config: Any) -> None:
    assert config.num_decisions == 9 and config.rows_per_iteration == 4
    demonstrations = 3 * 42
    kept = 200 + (config.kept_checkpoints + 1) * 36
    assert kept < 360, "the capacity is less than what ten iterations decide"
    assert replayed_bytes(config) == (kept + -(-kept // 9) + demonstrations) * FRAME
    large = config.off_policy.model_copy(update={"replay_capacity": 10**6})
    whole = config.model_copy(update={"off_policy": large})
    assert replayed_bytes(whole) == (360 + 40 + demonstrations) * FRAME


def test_a_disk_with_too_little_room_is_refused_in_one_line(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = replayed_bytes(config)
    leave(monkeypatch, needed)
    check_replay_space(config)
    leave(monkeypatch, needed - 1)
    with pytest.raises(ConfigError, match=r"^off_policy\.replay_capacity=200: .*front 128×128, wrist 128×128") as error:
        check_replay_space(config)
    assert "\n" not in str(error.value) and f"run_root={config.run_root}" in str(error.value)


def test_what_a_resumed_run_has_on_disk_needs_no_room(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = config.run_dir / "replay/frames"
    folder.mkdir(parents=True)
    (folder / "000000.frames").write_bytes(bytes(1000))
    leave(monkeypatch, replayed_bytes(config) - 1000)
    check_replay_space(config)


def test_a_run_without_images_needs_no_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leave(monkeypatch, 0)
    for words in (WORDS, ("experiment=pendulum", "algorithm=sac"), ("experiment=push",)):
        check_replay_space(compose_config([*words, f"run_root={tmp_path}", "run_id=new"]))


def test_a_start_is_refused_and_a_mere_look_is_not(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(monkeypatch, 10)
    request = parse_arguments([*WORDS, f"run_root={config.run_root}", "run_id=other"])
    check(request)
    with pytest.raises(ConfigError, match=r"off_policy\.replay_capacity=200"):
        check(request, starts=True)
