"""EnvPool's environments, if the extra envpool is installed: rollouts that a lost worker's successor continues."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodyflow.cli.environments.check_env import show
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.tables import digest_of
from embodyflow.rollouts.control_rollout import ControlRollout

pytestmark = [pytest.mark.envs, pytest.mark.integration]

WORDS = (
    *("experiment=half_cheetah", "env=env_pool", "env.max_steps=25", "rollout.num_workers=1"),
    *("rollout.envs_per_worker=4", "rollout.num_steps=30"),
)


@pytest.fixture(autouse=True)
def package() -> None:
    pytest.importorskip("envpool", reason="needs the extra envpool")


def rollout(*words: str) -> ControlRollout:
    config: Any = compose_config([*WORDS, *words])
    torch.manual_seed(0)
    return ControlRollout(config, 0, 1)


def test_check_env_accepts_it() -> None:
    assert show(None, ["env=env_pool", "max_steps=25"]) == 0


@pytest.mark.parametrize("num_processes", [0, 1])
def test_rows_have_no_step_that_only_resets_and_another_worker_repeats_them(num_processes: int, tmp_path: Path) -> None:
    one = rollout()
    played = [one.collect(i, (0, i, "rollout"), tmp_path)[0] for i in (1, 2, 3)]
    one.close()
    steps = np.concatenate([np.asarray(rows["num_steps"]) for rows in played])
    assert steps.sum() == 4 * (90 - 3), "episodes of 25 steps, and a step of each lane after them that is none"
    assert all((np.abs(np.asarray(rows["rewards"])[rows["loss_mask"]]) > 0).all() for rows in played)
    other = rollout(f"rollout.env_processes={num_processes}")
    rows, _ = other.collect(3, (0, 3, "rollout"), tmp_path)
    other.close()
    assert digest_of(dict(rows)) == digest_of(dict(played[2]))
