"""A run's record of episodes: what it keeps, its listing, and replay."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import imageio.v3 as iio
import numpy as np
import pytest
import torch
from PIL import Image

import tasks
from embodyflow.algorithms.algorithm_config import KLConfig
from embodyflow.algorithms.masked import one_rank
from embodyflow.cli.episodes import episode_list
from embodyflow.cli.episodes import replay as module
from embodyflow.cli.episodes.episode_list import show_episodes
from embodyflow.cli.episodes.replay import replay
from embodyflow.cli.main import main
from embodyflow.config import RunConfig
from embodyflow.data.batches import to_batch
from embodyflow.record.episodes.episode_record import find_episode, read_episodes
from embodyflow.record.run_folder import UNRESTORABLE_FILE, RunFolder
from embodyflow.rollouts import replay as engine
from embodyflow.rollouts.embodied.clips import CAPTION
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout


@pytest.fixture(scope="module")
def config(tiny_config, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    root = tmp_path_factory.mktemp("runs")
    return tiny_config(f"run_root={root}", "run_id=mine", "algorithm.kl.coef=0.1", "filter.drop_uniform=false")


@pytest.fixture(scope="module")
def run(config: RunConfig) -> Path:
    """The folder of a run with one iteration, in which the second group was filtered out."""
    torch.manual_seed(0)
    rollout = EmbodiedRollout(config, 0, 1)
    rollout.update_weights({name: w.numpy() for name, w in rollout.policy.model.state_dict().items()}, version=3)
    folder = RunFolder.create(config)
    batch = to_batch(rollout.play(rollout.training_episodes(0, 1), "train", (0, 1, "rollout")))
    rollout.close()
    batch["success"][:2] = torch.tensor([True, False])  # a mixed group, which has advantages
    worker = SimpleNamespace(rank=0, config=config, all_reduce=one_rank)
    place = {"folder": str(folder.episodes.begin(1))}
    batch["image"] = torch.zeros(4, 4, 8, 8, 3, dtype=torch.uint8)
    tasks.keep_episodes(batch, {**place, "part": "played-rollout", "trained": False}, worker=worker)
    trained = tasks.compute_advantage(tasks.compute_reward(batch[:2], worker=worker).batch, worker=worker).batch
    trained["old_log_probs"] = trained["log_probs"].clone()
    trained["ref_log_probs"] = trained["log_probs"] - 0.1 * trained["loss_mask"]
    tasks.keep_episodes(trained, {**place, "part": "trained", "trained": True}, worker=worker)
    folder.episodes.commit(1, keep=2)
    return folder.path


def test_rollout_and_training_columns_are_joined_by_uid(run: Path) -> None:
    [(iteration, episodes)] = read_episodes(RunFolder(run))
    assert iteration == 1
    assert episodes["trained"].tolist() == [True, True, False, False]
    assert episodes["rewards"].sum(axis=(1, 2)).tolist() == [1, 0, 0, 0]
    assert "image" not in episodes and episodes["state"].shape == (4, 4, 30)
    assert (episodes["advantages"][0] >= 0).all() and (episodes["advantages"][1] <= 0).all()
    assert not episodes["advantages"][2:].any()
    uid = int(episodes["uid"][2])
    assert find_episode(RunFolder(run), uid)[2] == 2


def test_listed_episodes_are_filtered_and_paged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*words: str) -> tuple[list[str], str]:
        assert main(["episodes", str(run), *words]) == 0
        output = capsys.readouterr()
        return [line.split()[0] for line in output.out.splitlines()[1:]], output.err

    uids, note = listed()
    assert len(uids) == 4 and note == ""
    assert listed("--outcome", "success")[0] + listed("--outcome", "failure")[0] == uids
    assert listed("--task", "reach-v3", "--iteration", "1")[0] == uids
    assert listed("--page-size", "3") == (uids[:3], "page 1: 3 of 4 episodes; --page 2 shows more\n")
    assert listed("--page-size", "3", "--page", "2") == (uids[3:], "page 2: 1 of 4 episodes\n")
    assert main(["episodes", str(run), "--iteration", "9"]) == 2
    assert capsys.readouterr().err == "--page=1: 0 episodes are chosen, on 0 pages\n"
    assert main(["episodes", str(run), "--task", "push-v3"]) == 2
    assert capsys.readouterr().err == "--task=push-v3: allowed are reach-v3\n"


def test_episodes_are_listed_with_their_facts(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    assert show_episodes(run) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["uid", "iteration", "task", "goal", "outcome", "steps", "return", "score", "advantage"]
    assert len(lines) == 5
    assert [line.split()[2] for line in lines[1:]] == ["reach-v3"] * 4
    assert [line.split()[-1] for line in lines[1:]] == ["0.7071", "-0.7071", "dropped", "dropped"]


def test_a_file_gets_full_lines(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    words = "pick up the alphabet soup and place it in the basket"
    folder, config = episode_list.open_episodes(run)
    env = config.env.model_copy(update={"tasks": (words,)})
    monkeypatch.setattr(episode_list, "open_episodes", lambda _: (folder, config.model_copy(update={"env": env})))
    assert show_episodes(run) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and all(words in line for line in lines[1:])


def test_an_iteration_that_a_run_drops_meanwhile_is_skipped(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "mine")
    folder = RunFolder(tmp_path / "mine")
    for iteration in (2, 3):
        shutil.copytree(folder.episodes.kept()[1], folder.episodes.begin(iteration), dirs_exist_ok=True)
        folder.episodes.commit(iteration, keep=9)
    seen = []
    for iteration, _ in read_episodes(folder):
        seen.append(iteration)
        folder.episodes.commit(9, keep=1)
    assert seen == [1, 3] and list((tmp_path / "mine" / "episodes").iterdir()) == [folder.episodes.kept()[3]]
    (folder.episodes.kept()[3] / "trained-0.npz").unlink()
    with pytest.raises(FileNotFoundError, match="trained"):
        list(read_episodes(folder))


def test_a_replayed_episode_is_bit_identical(run: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setattr(engine, "rendering_problem", lambda: "no renderer here")
    uids = read_uids(run)
    assert replay(run, uids[1]) == 0
    out = capsys.readouterr().out
    assert "replay: bit-identical in 20 steps" in out and "video: no renderer here" in out
    assert "advantage (grpo)" in out and "-0.7071" in out
    # Four decisions of 20 tokens: A = -1/√2 at a ratio of 1 makes a loss of 20/√2, and a KL of (e^-0.1 - 1 + 0.1)·20.
    [line] = [line.split() for line in out.splitlines() if line.split()[:2] == ["3", "20"]]
    assert [line[3], line[5], line[6]] == ["-0.7071", "0.09675", "14.14"]
    assert main(["replay", str(run), str(uids[3])]) == 0
    assert "no: its group was filtered out" in capsys.readouterr().out


def test_a_replay_of_a_task_that_is_not_restored_claims_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "rendering_problem", lambda: "no renderer here")
    shutil.copytree(run, tmp_path / "mine")
    uid = read_uids(run)[1]
    reason = "env.id=x: after another episode the reward after step 1 differs"
    (tmp_path / "mine" / UNRESTORABLE_FILE).write_text(f'{{"reach-v3": "{reason}"}}')
    for difference, outcome in ((None, "equals the record this time"), ("reward: 1 now", "differs from the record")):
        monkeypatch.setattr(module, "first_difference", lambda *_, difference=difference: difference)
        assert replay(tmp_path / "mine", uid) == 0
        out = capsys.readouterr().out
        assert f"replay: proves nothing, because reach-v3 is not restored by its seed ({reason}); it {outcome}" in out
        assert "bit-identical" not in out
    assert show_episodes(tmp_path / "mine") == 0
    assert reason in capsys.readouterr().err
    (tmp_path / "mine" / UNRESTORABLE_FILE).write_text('{"push-v3": "another task"}')
    assert replay(tmp_path / "mine", uid) == 1


def test_the_kl_is_shown_with_the_coefficient_of_its_iteration(run: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setattr(engine, "rendering_problem", lambda: "no renderer here")
    uid = read_uids(run)[1]
    assert replay(run, uid) == 0
    assert "0.1 x KL" in capsys.readouterr().out
    try:
        RunFolder(run).metrics.append({"iteration": 1, "policy/kl_coef": 0.25})
        RunFolder(run).metrics.append({"iteration": 1, "eval/success_rate": 1.0})  # from the evaluation after it
        assert replay(run, uid) == 0
    finally:
        RunFolder(run).metrics.path.unlink()
    out = capsys.readouterr().out
    assert "0.25 x KL" in out and "0.1 x KL" not in out


def test_an_episode_of_a_graph_without_a_reference_is_shown(
    run: Path, config: RunConfig, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setattr(engine, "rendering_problem", lambda: "no renderer here")
    [(iteration, episodes)] = read_episodes(RunFolder(run))
    del episodes["ref_log_probs"]
    monkeypatch.setattr(module, "find_episode", lambda folder, uid: (iteration, episodes, 1))
    free = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"kl": KLConfig()})})
    monkeypatch.setattr(module, "open_episodes", lambda path: (RunFolder(path), free))
    assert replay(run, read_uids(run)[1]) == 0
    out = capsys.readouterr().out
    assert "log-prob" in out and "KL" not in out


def read_uids(run: Path) -> list[int]:
    return [int(uid) for _, episodes in read_episodes(RunFolder(run)) for uid in episodes["uid"]]


@pytest.mark.parametrize(
    ("name", "where", "said"),
    [
        ("state", (2, 7), "state before decision 2, entry 7: "),
        ("final_state", (7,), "final_state, entry 7: "),
        ("episode_return", (), "episode_return: "),
        ("success", (), "success: False now, True on record"),
        ("num_steps", (), "num_steps: 20 now, 19 on record"),
        ("actions", (0, 1, 2), "state before decision 1, entry "),
    ],
)
def test_the_first_difference_is_named(config, run: Path, name: str, where: tuple[int, ...], said: str) -> None:
    _, episodes, row = find_episode(RunFolder(run), read_uids(run)[2])
    episode = {key: column[row].copy() for key, column in episodes.items()}
    assert engine.first_difference(config, episode) is None
    changed = np.asarray(episode[name])
    changed[where] = {"success": True, "num_steps": 19}.get(name, changed[where] + 0.5)
    difference = engine.first_difference(config, {**episode, name: changed})
    assert difference is not None and difference.startswith(said)


def test_a_difference_from_the_record_is_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(run), str(read_uids(run)[0])]) == 1  # the fixture recorded it as a success
    assert "replay: differs from the record; success: False now, True on record" in capsys.readouterr().err


def test_a_missing_run_or_episode_is_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(run), "99"]) == 2
    assert main(["replay", str(tmp_path), "0"]) == 2
    assert main(["episodes", str(tmp_path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"uid=99: {run} has no such episode; it keeps those of iterations 1 to 1")
    assert "has no config.yaml" in lines[1] and "has no config.yaml" in lines[2]


def test_old_episodes_are_removed_and_uncommitted_ones_ignored(config, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for iteration in (1, 2, 3):
        folder.episodes.begin(iteration)
        folder.episodes.commit(iteration, keep=2)
    (folder.episodes.begin(4) / "x").write_text("")
    assert list(folder.episodes.kept()) == [2, 3]
    assert not any(folder.episodes.begin(4).iterdir())  # cleared for the next attempt
    folder.episodes.commit(3, keep=2)
    assert list(folder.episodes.kept()) == [2, 3]


@pytest.mark.skipif(engine.rendering_problem() is not None, reason="this machine does not render")
def test_successes_and_failures_are_drawn_on_one_sheet(config, run: Path, tmp_path: Path) -> None:
    folder = RunFolder(run).episodes.kept()[1]
    settings = {"episodes": str(folder), "path": str(tmp_path / "sheet.png"), "split": "train"}
    settings["animation"] = str(tmp_path / "sheet.gif")
    worker = SimpleNamespace(rank=0, config=config)
    assert tasks.contact_sheet(None, settings, worker=worker).info == {"problem": None}
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape == (4 * 142, 5 * 128, 3)
    assert [sheet[142 * line, -1].tolist() for line in range(4)] == [[27, 127, 59], *[[179, 38, 30]] * 3]
    assert len(np.unique(sheet[14:142], axis=0)) > 50
    animation = iio.imread(tmp_path / "sheet.gif")
    assert animation.shape[1:] == (192 + CAPTION, 4 * 192, 3) and 2 <= len(animation) <= 24
    for column in range(4):  # a GIF's colours are close
        drawn = animation[0, CAPTION - 1, 192 * column].astype(int)
        assert np.abs(drawn - sheet[142 * column, -1]).max() < 16
    assert (animation[0] != animation[-1]).any()
    assert tasks.contact_sheet(None, settings, worker=SimpleNamespace(rank=1)).info == {"problem": None}


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"text", b"\x93NUMPY"])
def test_a_damaged_file_of_episodes_is_one_line(
    content: bytes, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    played = next((copy / "episodes").glob("*/played-*.npz"))
    played.write_bytes(content)
    for words in (["episodes", str(copy)], ["replay", str(copy), "0"]):
        assert main(words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {played} is damaged: ")


def test_the_replay_of_a_run_that_cannot_be_written_has_no_video(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("videos"))
    (copy / "videos").touch()
    [(_, episodes)] = read_episodes(RunFolder(copy))
    assert replay(copy, int(episodes["uid"][~episodes["trained"]][0])) == 0
    assert f"video: none, because {copy}/videos cannot be written: " in capsys.readouterr().out
