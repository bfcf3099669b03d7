"""What a run says after it has lost its Ray cluster."""

from pathlib import Path

import pytest

from embodyflow.orchestration.run import open_run
from embodyflow.record.run_folder import RunFolder


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_lost_cluster_leaves_the_command_to_resume(tmp_path: Path, is_committed: bool) -> None:
    folder = RunFolder(tmp_path)
    if is_committed:
        folder.checkpoints.begin(0)
        folder.checkpoints.commit(0, {}, keep=1)
    after = f"resume={tmp_path.name}" if is_committed else "restart the run"
    assert open_run._after_loss(folder) == f"start Ray, then {after}"
