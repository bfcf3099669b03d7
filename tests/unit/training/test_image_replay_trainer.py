"""Off-policy trainers of a policy that learns from images: what is stored, drawn, and found again after a death."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from trainer_runs import TrainerRun
from trainers import free_address

from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.errors import DamageError
from embodyflow.references import resolve
from embodyflow.training.off_policy.replay.replay_buffer import Transitions

STATE, CHUNK, ACTION = 30, 5, 4
CAMERAS = {"front": (2, 2, 3), "wrist": (3, 2, 3)}
WORDS = (
    *("experiment=push", "algorithm=rlpd", "policy.hidden_size=16", "policy.num_critics=2", "off_policy.batch_size=8"),
    *("warm_start.steps=1", "rollout.num_workers=1", "off_policy.critic_updates=0"),
    *("off_policy.updates_per_transition=1", "off_policy.policy_delay=1"),
)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A configuration whose policy says that it learns from images; the policy itself reads states."""
    composed = compose_config(list(WORDS))
    monkeypatch.setattr(type(composed.policy), "replayed_images", CAMERAS)
    return composed


def pictures(numbers: torch.Tensor, camera: str) -> torch.Tensor:
    """Images whose pixels are the number of a moment; the second camera's are one more."""
    values = (numbers + (camera == "wrist")).to(torch.uint8)
    return values[..., None, None, None].expand(*numbers.shape, *CAMERAS[camera]).contiguous()


def rows(first: int) -> TensorDict:
    """Two episodes, of two decisions with a success and of three; states and images have the numbers of moments."""
    decided = torch.arange(3) < torch.tensor([2, 3])[:, None]
    numbers = first + torch.tensor([[0, 1, 0], [3, 4, 5]])
    final = first + torch.tensor([2, 6])
    columns = {
        "uid": torch.tensor([1, 0]),  # stored in the order of uids
        "state": numbers[..., None].float().expand(2, 3, STATE),
        "final_state": final[:, None].float().expand(2, STATE),
        "action_tokens": torch.zeros(2, 3, CHUNK * ACTION),
        "loss_mask": decided[..., None].expand(2, 3, CHUNK * ACTION),
        "num_steps": torch.tensor([10, 15]),
        "success": torch.tensor([True, False]),
        "terminated": torch.tensor([False, False]),
        "truncated": torch.tensor([True, True]),
        **{camera: pictures(numbers, camera) for camera in CAMERAS},
        **{f"final_{camera}": pictures(final, camera) for camera in CAMERAS},
    }
    return TensorDict({name: column.contiguous() for name, column in columns.items()}, batch_size=[2])


def demonstrations() -> TensorDict:
    """Two demonstrations of 7 and 6 steps, whose states and images have the numbers of steps."""
    numbers = np.stack([np.arange(10), 20 + np.arange(10)])
    return to_batch(
        {
            "uid": np.array([3, 4]),
            "state": np.repeat(numbers[..., None], STATE, -1).astype(np.float32),
            "actions": np.repeat(numbers[..., None], ACTION, -1).astype(np.float32) / 100,
            "num_steps": np.array([7, 6]),
            "instruction_ids": np.zeros((2, 1), np.int64),
            **{camera: pictures(torch.from_numpy(numbers), camera).numpy() for camera in CAMERAS},
        }
    )


class Run(TrainerRun):
    def __init__(self, config: Any, folder: Path, last: int | None = None) -> None:
        super().__init__(config, folder, demonstrations(), last)
        self.seen: list[Transitions] = []
        update = self.trainer._learner.update
        self.trainer._learner.update = lambda batch, rng, index: (self.seen.append(batch), update(batch, rng, index))[1]

    def iterate(self, iteration: int) -> None:
        self.trainer.store(rows(50 + 10 * iteration), iteration)
        self.trainer.train((0, iteration, "train"), iteration)
        self.commit(iteration)


def files(folder: Path) -> dict[str, bytes]:
    found = [path for name in ("replay", "demonstrations") for path in sorted((folder / name).rglob("*.*s"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def assert_images_fit(batch: Transitions) -> None:
    """Check each image by the number that the state of its moment has."""
    goes_on = batch.discounts > 0  # what follows an end is not used
    for camera in CAMERAS:
        assert batch.images[camera].equal(pictures(batch.state[:, 0], camera))
        assert batch.next_images[camera][goes_on].equal(pictures(batch.next_state[:, 0], camera)[goes_on])


def test_batches_have_the_images_of_their_states_and_a_death_changes_nothing(config: Any, tmp_path: Path) -> None:
    run = Run(config, tmp_path / "whole")
    for iteration in (1, 2, 3):
        run.iterate(iteration)
    assert len(run.seen) == 15 and {len(batch.returns) for batch in run.seen} == {8}
    assert all(batch.num_demonstrated == 4 for batch in run.seen)
    for batch in run.seen:
        assert_images_fit(batch)
    whole = files(tmp_path / "whole")
    frames = {name: len(content) for name, content in whole.items() if name.endswith(".frames")}
    assert frames == {"replay/frames/000000.frames": 3 * 7 * 30, "demonstrations/frames/000000.frames": 13 * 30}
    killed = Run(config, tmp_path / "killed")
    killed.iterate(1)
    killed.trainer.store(rows(90), 2)  # not committed
    again = Run(config, tmp_path / "killed", last=1)
    for iteration in (2, 3):
        again.iterate(iteration)
    assert files(tmp_path / "killed") == whole
    assert again.trainer.fingerprint() == run.trainer.fingerprint()


def test_a_branch_keeps_the_demonstrations_with_their_images(config: Any, tmp_path: Path) -> None:
    run = Run(config, tmp_path / "run")
    run.iterate(1)
    expected = files(tmp_path / "run")
    trainer = run.trainer
    trainer.load(str(tmp_path / "run/checkpoints/1"))
    trainer.begin_with_models()
    (tmp_path / "branch/checkpoints/0").mkdir(parents=True)
    trainer.save(str(tmp_path / "branch/checkpoints/0"))
    assert len(trainer.replay) == 0
    found = files(tmp_path / "branch")
    assert found == {name: content for name, content in expected.items() if name.startswith("demonstrations")}


def test_a_file_of_warm_started_weights_brings_the_images_too(config: Any, tmp_path: Path) -> None:
    run = Run(config, tmp_path / "first")
    run.trainer.save_weights_file(str(tmp_path / "warm.safetensors"))
    trainer = resolve(config.groups["trainer"].engine)(config, 0, 1)
    trainer.connect(free_address())
    trainer.load_weights_file(str(tmp_path / "warm.safetensors"))
    (tmp_path / "second/checkpoints/0").mkdir(parents=True)
    trainer.save(str(tmp_path / "second/checkpoints/0"))
    assert files(tmp_path / "first") == files(tmp_path / "second")


def test_demonstrations_leave_the_memory_when_the_folder_has_them(config: Any, tmp_path: Path) -> None:
    run = Run(config, tmp_path)
    assert run.trainer._demonstrated_columns == {}
    run.trainer._restart_from_policy()
    assert len(run.trainer._demonstrated_columns["frames.front"]) == 13


def test_changed_images_of_demonstrations_stop_a_resume(config: Any, tmp_path: Path) -> None:
    run = Run(config, tmp_path)
    (file,) = (tmp_path / "demonstrations/frames").iterdir()
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(DamageError, match=r"000000\.frames is damaged"):
        Run(config, tmp_path, last=0).trainer.replay  # noqa: B018
    run.trainer.close()
