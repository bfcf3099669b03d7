"""OpenVLA in rollout and trainer: episodes with images, steps, demonstrations, checkpoints."""

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

PARTS = {"vision_backbone", "projector", "language_model"}


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return compose_config(SMALL)


def test_the_trainer_reproduces_the_rollouts_log_probs_and_learns(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer]
) -> None:
    close.append(trainer := new_trainer(config))
    rows = play(rollout, trainer)
    assert rows["image"].dtype == torch.uint8 and rows["image"].shape == (4, 2, 16, 16, 3)
    before = trainer.weights()
    assert_learns(trainer, rows, config.trainer.parity_tolerance)
    after = trainer.weights()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert {name.split(".")[0] for name in changed} == PARTS


@pytest.mark.parametrize(
    ("words", "tolerance"),
    [
        (("trainer.precision=bfloat16", "trainer.parity_tolerance=0.2"), 0.2),
        (("trainer.activation_checkpointing=true",), 1e-5),
        (("trainer.lora.rank=4",), 1e-5),
    ],
    ids=["bfloat16", "activation checkpointing", "LoRA"],
)
def test_every_training_mode_works(
    rollout: EmbodiedRollout, close: list[FSDPTrainer], words: tuple[str, ...], tolerance: float
) -> None:
    close.append(trainer := new_trainer(compose_config([*SMALL, *words])))
    assert_learns(trainer, play(rollout, trainer), tolerance)


def test_a_fit_imitates_demonstrations_from_images_alone(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer]
) -> None:
    close.append(trainer := new_trainer(config))
    demos = to_batch(rollout.demonstrate())
    first, second = (trainer.fit(demos, SEED) for _ in range(2))
    assert second["sft/loss"].value < first["sft/loss"].value - 0.1 < np.log(256) - 0.2
    assert first["sft/num_samples"].value == demos["num_steps"].sum()


def test_a_checkpoint_restores_weights_and_optimizer(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer], tmp_path: Path
) -> None:
    close.append(trainer := new_trainer(config))
    assert_resumes(trainer, play(rollout, trainer), config, close, tmp_path)


def test_one_with_a_regression_head_imitates_and_learns(close: list[FSDPTrainer]) -> None:
    config = compose_config([*(word for word in SMALL if word != "policy=tiny_openvla"), "policy=tiny_openvla_l1"])
    assert config.policy.observation_shapes["state"] == (2,)
    rollout = EmbodiedRollout(config, 0, 1)
    close.append(trainer := new_trainer(config))
    demos = to_batch(rollout.demonstrate())
    first, second = (trainer.fit(demos, SEED) for _ in range(2))
    assert second["sft/loss"].value < first["sft/loss"].value
    rows = play(rollout, trainer)
    assert rows["action_tokens"].dtype == torch.float32
    before = trainer.weights()
    assert_learns(trainer, rows, config.trainer.parity_tolerance)
    changed = {
        name.split(".")[0] for name, value in trainer.weights().items() if not np.array_equal(before[name], value)
    }
    assert changed == {*PARTS, "action_head", "proprio_projector", "log_scale"}
