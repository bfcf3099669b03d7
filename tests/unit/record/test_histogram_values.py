"""Values for histograms, from the files of an iteration's episodes."""

from pathlib import Path

import numpy as np

from embodyflow.record.episodes.episode_record import histogram_values
from embodyflow.record.trackers import TensorBoardTracker


def test_episodes_count_once_and_tokens_outside_the_mask_do_not(tmp_path: Path) -> None:
    mask = np.array([[[True, False]], [[True, True]], [[True, True]]])
    columns = {"episode_return": np.array([1.0, 2.0, 3.0]), "num_steps": np.array([5, 6, 7]), "loss_mask": mask}
    np.savez(tmp_path / "played-rollout-0.npz", uid=np.array([7, 3, 9]), **columns)
    # A node that samples again passes on the rows that it keeps.
    np.savez(
        tmp_path / "played-sampling-0.npz",
        uid=np.array([3]),
        episode_return=np.array([2.0]),
        num_steps=np.array([6]),
        loss_mask=mask[1:2],
    )
    np.savez(tmp_path / "trained-0.npz", uid=np.array([9, 7]), advantages=np.array([[[0.1, 0.2]], [[0.3, 9.0]]]))
    values = histogram_values(tmp_path)
    assert values["rollout/episode_return"].tolist() == [2.0, 1.0, 3.0]
    assert values["rollout/episode_steps"].tolist() == [6, 5, 7]
    assert values["advantage/token"].tolist() == [0.1, 0.2, 0.3]


def test_rows_that_were_not_trained_on_have_no_advantages(tmp_path: Path) -> None:
    columns = {"episode_return": np.zeros(1), "num_steps": np.ones(1, int), "loss_mask": np.ones((1, 1, 1), bool)}
    np.savez(tmp_path / "played-rollout-0.npz", uid=np.array([0]), **columns)
    np.savez(tmp_path / "trained-0.npz", uid=np.array([0]))
    assert histogram_values(tmp_path).keys() == {"rollout/episode_return", "rollout/episode_steps"}


def test_an_iteration_that_trained_on_no_row_has_histograms_of_its_episodes(tmp_path: Path) -> None:
    columns = {"episode_return": np.zeros(1), "num_steps": np.ones(1, int), "loss_mask": np.ones((1, 1, 1), bool)}
    np.savez(tmp_path / "played-rollout-0.npz", uid=np.array([0]), **columns)
    np.savez(tmp_path / "trained-0.npz", uid=np.array([], int), advantages=np.zeros((0, 1, 1)))
    values = histogram_values(tmp_path)
    assert values.keys() == {"rollout/episode_return", "rollout/episode_steps"}
    for name, column in values.items():
        TensorBoardTracker(tmp_path / "tensorboard").log_histogram(1, name, column)
