"""An evaluation sees what training saw, or says that it does not."""

from pathlib import Path

import pytest

from embodyflow.errors import ConfigError
from embodyflow.orchestration.run.parity import check_parity
from embodyflow.record.run_folder import RunFolder


def seen(**digests: str) -> dict[str, dict[str, str | bool]]:
    return {task: {"digest": digest, "stand_in_assets": False} for task, digest in digests.items()}


def test_tasks_that_both_have_are_compared(tmp_path: Path) -> None:
    trained = RunFolder(tmp_path)
    trained.write_observations(seen(reach="a", push="b"))
    check_parity(trained, seen(reach="a"))
    check_parity(trained, seen(push="b", drawer="c"))
    with pytest.raises(ConfigError) as refusal:
        check_parity(trained, seen(reach="x", push="y", drawer="c"))
    assert str(refusal.value).startswith(f"policy={tmp_path}: it would see push, reach otherwise than in training")
    assert str(refusal.value).endswith(f"policy={tmp_path}/policy") and "\n" not in str(refusal.value)


def test_a_run_that_made_no_note_is_not_taken_on_trust(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no observations\.json; evaluate its export"):
        check_parity(RunFolder(tmp_path), seen(reach="a"))
