"""Data sets of demonstrations that fit a run or do not: one line for each mistake, before a process starts."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_folders import REACH, edit_info, steps, write_v21, write_v30

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.errors import ConfigError
from embodyflow.orchestration.run.warm_start import warm_start_key
from embodyflow.policies.embodied.tiny_vla.policy_tiny_vla import TinyVLAPolicy
from embodyflow.policies.policy_registry import build_policy
from embodyflow.simulation.dataset_match import dataset_of
from embodyflow.simulation.make_env import check_embodied
from embodyflow.training.imitation.dataset_statistics import dataset_statistics

pytest.importorskip("pyarrow", reason="pyarrow, of the extra datasets, is not installed")

Compose = Callable[..., RunConfig]


def remove(path: Path) -> None:
    path.unlink()


def without_statistics_of(folder: Path, feature: str) -> None:
    path = folder / "meta/stats.json"
    path.write_text(json.dumps({name: each for name, each in json.loads(path.read_text()).items() if name != feature}))


@pytest.fixture(scope="module")
def instruction(tiny_config: Compose) -> str:
    from embodyflow.environments.metaworld import INSTRUCTIONS

    return INSTRUCTIONS[REACH]


@pytest.fixture
def folder(tmp_path: Path, instruction: str) -> Path:
    return write_v30(tmp_path / "set", [(instruction, steps(7, 1)), ("else", steps(3, 2)), (instruction, steps(5, 3))])


def test_a_folder_alone_is_a_data_set(tiny_config: Compose, folder: Path) -> None:
    config = tiny_config(f"warm_start.dataset={folder}")  # its files are checked, too
    assert config.warm_start.dataset.path == str(folder)
    assert config.warm_start.dataset.features("actions") == ("action",)
    assert config.warm_start.dataset.features("front") == ("observation.images.front",)


def test_episodes_that_end_without_success_are_said(
    tiny_config: Compose, tmp_path: Path, instruction: str, caplog: pytest.LogCaptureFixture
) -> None:
    """``embodyflow export-dataset`` writes the failed episodes of a run too, unless ``--outcome success`` is given."""
    outcomes = {0: [False, True, True], 1: [False] * 3, 2: [False] * 3}
    marked = [
        (instruction, steps(3, seed) | {"next.success": np.array(succeeds)[:, None]})
        for seed, succeeds in outcomes.items()
    ]
    folder = write_v30(tmp_path / "set", marked)
    tiny_config(f"warm_start.dataset={folder}", "warm_start.num_demos=1")
    assert not caplog.messages, "the first episode succeeds"
    tiny_config(f"warm_start.dataset={folder}", "warm_start.num_demos=2")
    assert caplog.messages == [
        f"warm_start.dataset={folder}: 1 of the 2 chosen episodes end without success (next.success), such as episode "
        "1; they are cloned like the others"
    ]


def test_a_changed_data_set_is_another_warm_start(tiny_config: Compose, folder: Path) -> None:
    config = tiny_config(f"warm_start.dataset={folder}")
    before = warm_start_key(config)
    assert warm_start_key(config) == before != warm_start_key(tiny_config())
    edit_info(folder, robot_type="another robot")
    assert warm_start_key(config) != before


MISTAKES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "no folder": (
        lambda folder: folder.rename(folder.parent / "gone"),
        "",
        "warm_start.dataset={folder}: there is no such folder; allowed is a local folder with a data set",
    ),
    "another version": (
        lambda folder: edit_info(folder, codebase_version="v2.0"),
        "",
        "warm_start.dataset={folder}: has the version v2.0; allowed are LeRobot's v2.1 and v3.0",
    ),
    "a column that is not there": (
        lambda folder: None,
        "warm_start.dataset.columns={state:observation.joints}",
        "warm_start.dataset.columns.state: the data set has no observation.joints; it has observation.state, action, ",
    ),
    "a column of another size": (
        lambda folder: None,
        "warm_start.dataset.columns={state:[observation.state,action]}",
        "warm_start.dataset.columns.state=observation.state + action: has 34 numbers a step; must have 30, those of ",
    ),
    "a column of no use": (
        lambda folder: None,
        "warm_start.dataset.columns={front:observation.images.front}",
        "warm_start.dataset.columns: 'front' is unknown; allowed are actions, state",
    ),
    "another action dimension": (
        lambda folder: None,
        "warm_start.dataset.columns={actions:observation.state}",
        "warm_start.dataset.columns.actions=observation.state: has 30 numbers a step; must have 4, those of the envi",
    ),
    "another rate": (
        lambda folder: edit_info(folder, fps=30),
        "",
        "warm_start.dataset.fps: the data set has 30 frames per second, the environment 80 (render_fps of its metadata)"
        "; set 30 if its steps take as long as the data set's",
    ),
    "another rate than the one asked for": (
        lambda folder: None,
        "warm_start.dataset.fps=50",
        "warm_start.dataset.fps=50: the data set has 80 frames per second",
    ),
    "a rate that its timestamps do not have": (
        lambda folder: edit_info(folder, fps=30),
        "warm_start.dataset.fps=30",
        "warm_start.dataset={folder}: says fps=30, but frame 1 of episode 0 is at 0.0125 s instead of 0.0333 s",
    ),
    "no statistics": (
        lambda folder: remove(folder / "meta/stats.json"),
        "",
        "warm_start.dataset={folder}: has no statistics of observation.state; allowed without them is "
        "warm_start.dataset.statistics=demonstrations",
    ),
    "no statistics of the actions": (
        lambda folder: without_statistics_of(folder, "action"),
        "",
        "warm_start.dataset={folder}: has no statistics of action; allowed without them is ",
    ),
    "too few episodes": (
        lambda folder: None,
        "warm_start.num_demos=3",
        "warm_start.num_demos=3: allowed are 1 to 2, the data set's episodes of {instruction!r}",
    ),
    "another task": (
        lambda folder: None,
        "warm_start.dataset.tasks={reach-v3:pull}",
        "warm_start.dataset.tasks: the data set has no episodes of the task 'pull'; it has 'else', {instruction!r}",
    ),
    "noise": (
        lambda folder: None,
        "warm_start.action_noise=0.1",
        "warm_start.action_noise=0.1: disturbs the expert; allowed is 0 with dataset",
    ),
    "a lost file": (
        lambda folder: remove(folder / "data/chunk-000/file-000.parquet"),
        "",
        "warm_start.dataset={folder}/data/chunk-000/file-000.parquet: cannot be read: ",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(name: str, tiny_config: Compose, folder: Path, instruction: str) -> None:
    spoil, words, message = MISTAKES[name]
    spoil(folder)
    with pytest.raises(ConfigError) as caught:
        tiny_config(f"warm_start.dataset.path={folder}", *filter(None, [words]))
    assert str(caught.value).startswith(message.format(folder=folder, instruction=instruction)), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_policy_that_normalises_by_quantiles_needs_those_of_the_data_set(tmp_path: Path, instruction: str) -> None:
    folder = write_v30(tmp_path / "set", [(instruction, steps(7, 1, image=32)), (instruction, steps(9, 2, image=32))])
    words = ("experiment=embodied", "policy=tiny_pi05", "+env.kwargs.image_size=32", "warm_start.num_demos=2")
    config = compose_config([*words, f"warm_start.dataset.path={folder}"])
    check_embodied(config)
    assert isinstance(config, EmbodiedConfig)
    policy = build_policy(config.policy, "cpu")
    policy.load_normalization(dataset_statistics(config, dataset_of(config)))
    described = json.loads((folder / "meta/stats.json").read_text())
    np.testing.assert_allclose(policy.model.statistics.action_q99, described["action"]["q99"], rtol=1e-6)
    del described["observation.state"]["q99"]
    (folder / "meta/stats.json").write_text(json.dumps(described))
    with pytest.raises(ConfigError, match=r"has no quantiles q01 and q99 of observation\.state, by which") as caught:
        compose_config([*words, f"warm_start.dataset.path={folder}"])
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("allowed without them is warm_start.dataset.statistics=demonstrations")


def test_statistics_of_the_chosen_demonstrations_need_none_of_the_data_set(tiny_config: Compose, folder: Path) -> None:
    remove(folder / "meta/stats.json")
    check_embodied(tiny_config(f"warm_start.dataset={{path:{folder},statistics:demonstrations}}"))


def test_actions_in_other_units(tiny_config: Compose, tmp_path: Path, instruction: str) -> None:
    columns = steps(4)
    columns["action"][:, 2] += np.float32(200)
    pixels = write_v21(tmp_path / "pixels", [(instruction, columns)])
    for statistics in ("dataset", "demonstrations"):
        chosen = f"warm_start.dataset={{path:{pixels},statistics:{statistics}}}"
        with pytest.raises(ConfigError, match=r"columns.actions: dimension 2 is 2.* on average, out of .*\[-1, 1\]"):
            tiny_config("warm_start.num_demos=1", chosen)


@pytest.mark.parametrize(("feature", "low", "high"), [("action", -0.5, 0.5), ("observation.state", 0.0, 9.0)])
def test_statistics_of_other_numbers_are_refused(
    feature: str, low: float, high: float, tiny_config: Compose, folder: Path
) -> None:
    """A tool that converts the numbers of a data set may leave its statistics as they were."""
    path = folder / "meta/stats.json"
    described = json.loads(path.read_text())
    size = len(described[feature]["mean"])
    described[feature] |= {"min": [low] * size, "max": [high] * size, "mean": [(low + high) / 2] * size}
    path.write_text(json.dumps(described))
    with pytest.raises(ConfigError) as caught:
        tiny_config(f"warm_start.dataset={folder}")
    told = (
        rf"warm_start.dataset=\S+: dimension \d+ of {feature} is \S+ in episode 0, but its statistics say {low:g} to "
    )
    assert re.match(told, str(caught.value))
    assert str(caught.value).endswith("; allowed without them is warm_start.dataset.statistics=demonstrations")
    tiny_config(f"warm_start.dataset={{path:{folder},statistics:demonstrations}}")


def test_tasks_with_the_same_text_are_refused(tiny_config: Compose, folder: Path, instruction: str) -> None:
    """Both would be cloned from the same episodes."""
    words = ("env.tasks=[reach-v3,push-v3]", f"warm_start.dataset.tasks={{push-v3:{instruction}}}")
    with pytest.raises(ConfigError) as caught:
        tiny_config(f"warm_start.dataset.path={folder}", "warm_start.num_demos=1", *words)
    assert str(caught.value) == (
        f"warm_start.dataset.tasks: 'reach-v3' and 'push-v3' both take the episodes of {instruction!r}; allowed is a "
        "text of its own for each of env.tasks"
    )


def test_a_policy_that_takes_no_statistics(tiny_config: Compose, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(f"warm_start.dataset={folder}")
    monkeypatch.delattr(TinyVLAPolicy, "load_normalization")
    with pytest.raises(ConfigError, match=r"policy.name=tiny_vla has no load_normalization; allowed is demonstrations"):
        check_embodied(config)


def test_an_adapter_with_a_data_set_needs_no_expert(tmp_path: Path) -> None:
    from embodyflow.orchestration.request.request import _check_expert

    folder = write_v30(tmp_path / "set", [("lean", steps(4, state=10, action=2))], fps=30)
    words = "env.id=Reacher-v5 env.tasks=[lean] env.adapter.success_termination=true policy.state_dim=10 "
    words += f"policy.action_dim=2 warm_start.num_demos=1 warm_start.dataset.path={folder} warm_start.dataset.fps=30"
    config = compose_config(["experiment=embodied", "run_id=tiny", *words.split()])
    _check_expert(config)
