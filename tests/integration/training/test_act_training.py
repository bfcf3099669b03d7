"""ACT in rollout and trainer: it clones, succeeds in a small environment, and RL trains on its densities."""

from pathlib import Path

import numpy as np
import pytest
import torch
from room_training import SMALL, assert_learns, assert_resumes, play
from trainers import SEED, new_trainer

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.training.fsdp_trainer import FSDPTrainer

ACT = ("policy=tiny_act", "policy.chunk_size=4", "policy.scratch.backbone_width=4", "policy.scratch.dim_model=32")
SEES = {
    "states": ("policy.robot_state_dim=1",),
    "states and images": ("policy.robot_state_dim=null", "policy.cameras=[image]"),
}
WAYS = {
    "bfloat16": (("trainer.precision=bfloat16", "trainer.parity_tolerance=0.5"), 0.5),
    "activation checkpointing": (("trainer.activation_checkpointing=true",), 1e-4),
    "LoRA": (("trainer.lora.rank=4",), 1e-4),
}


@pytest.fixture(scope="module", params=SEES)
def config(request: pytest.FixtureRequest) -> RunConfig:
    return compose_config([*SMALL, *ACT, *SEES[request.param]])


def test_the_trainer_reproduces_the_rollouts_log_probs_and_learns(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer]
) -> None:
    close.append(trainer := new_trainer(config))
    rows = play(rollout, trainer)
    assert rows["action_tokens"].dtype == torch.float32 and rows["action_tokens"].shape == (4, 4, 4 * 2)
    assert rows["loss_mask"].shape == rows["log_probs"].shape == (4, 4, 4 * 2)
    assert_learns(trainer, rows, config.trainer.parity_tolerance)


@pytest.mark.parametrize("config", ["states"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_every_training_mode_works(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer], way: str
) -> None:
    words, tolerance = WAYS[way]
    close.append(trainer := new_trainer(compose_config([*SMALL, *ACT, *SEES["states"], *words])))
    assert_learns(trainer, play(rollout, trainer), tolerance)


def test_a_checkpoint_restores_weights_statistics_and_optimizer(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer], tmp_path: Path
) -> None:
    close.append(trainer := new_trainer(config))
    trainer.fit(to_batch(rollout.demonstrate()), SEED)
    assert_resumes(trainer, play(rollout, trainer), config, close, tmp_path)


@pytest.mark.parametrize("config", ["states"], indirect=True)
def test_a_clone_succeeds(config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer]) -> None:
    words = ("warm_start.num_demos=4", "warm_start.steps=200", "evaluation.num_goals=32")
    longer = compose_config([*SMALL, *ACT, *SEES["states"], *words])
    played = EmbodiedRollout(longer, 0, 1)
    close.append(trainer := new_trainer(longer))

    def success() -> float:
        played.update_weights(trainer.weights(), 0)
        rows = played.play(played.evaluation_episodes("greedy"), "eval", None)
        return float(np.mean(rows["success"]))

    before = success()
    first = trainer.fit(to_batch(played.demonstrate()), SEED)
    assert first["sft/steps"].value == 200
    assert success() > max(before, 0.9)
