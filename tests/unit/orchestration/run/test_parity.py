"""An evaluation must see the same observations as training."""

from pathlib import Path

import pytest

from embodyflow.errors import ConfigError
from embodyflow.orchestration.run.parity import check_parity, differing_tasks
from embodyflow.record.run_folder import RunFolder


def seen(**digests: str) -> dict[str, dict[str, str | bool]]:
    return {task: {"digest": digest, "stand_in_assets": False} for task, digest in digests.items()}


def test_shared_tasks_are_compared(tmp_path: Path) -> None:
    trained = RunFolder(tmp_path)
    trained.write_observations(seen(reach="a", push="b"))
    check_parity(trained, seen(reach="a"))
    check_parity(trained, seen(push="b", drawer="c"))
    with pytest.raises(ConfigError) as refusal:
        check_parity(trained, seen(reach="x", push="y", drawer="c"))
    assert str(refusal.value).startswith(f"policy={tmp_path}: first observations of push, reach differ from training")
    assert str(refusal.value).endswith(f"policy={tmp_path}/policy") and "\n" not in str(refusal.value)


def test_tasks_that_are_not_restored_are_not_compared(tmp_path: Path) -> None:
    trained = RunFolder(tmp_path)
    trained.write_observations(seen(reach="a", push="b"))
    check_parity(trained, seen(reach="x", push="b"), unrestorable=["reach"])
    with pytest.raises(ConfigError, match="first observations of push differ from training"):
        check_parity(trained, seen(reach="x", push="y"), unrestorable=["reach"])


def test_tasks_that_look_different_in_other_workers_are_found() -> None:
    digests = [["push", "a"], ["reach", "a"], ["reach", "b"], ["push", "a"]]
    assert differing_tasks(digests) == ["reach"] and differing_tasks(digests[:2]) == []


def test_a_run_without_recorded_observations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no observations\.json; evaluate its export"):
        check_parity(RunFolder(tmp_path), seen(reach="a"))
