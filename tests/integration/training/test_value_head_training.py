"""A value head on the features of VLAs with images: values of rows are learned in every mode of training."""

import numpy as np
import pytest
import torch
from room_training import SMALL, play
from trainers import SEED, new_trainer

from embodyflow.algorithms.masked import split_steps
from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.training.fsdp_trainer import FSDPTrainer

SHARED = ("algorithm.advantage=gae", "critic.features=policy", "critic.level=action", "critic.epochs=1")
WORDS = {
    "openvla": (*SMALL, *SHARED),
    "smolvla": (*SMALL, *SHARED, "policy=tiny_smolvla", "policy.chunk_size=4", "policy.scratch.hidden_size=32"),
    "pi0": (*SMALL, *SHARED, "policy=tiny_pi0", "policy.chunk_size=4", "policy.scratch.hidden_size=32"),
    "pi05": (*SMALL, *SHARED, "policy=tiny_pi05", "policy.chunk_size=4", "policy.scratch.hidden_size=32"),
}
WAYS = {
    "float32": (),
    "bfloat16": ("trainer.precision=bfloat16", "trainer.parity_tolerance=0.5", "trainer.activation_checkpointing=true"),
    "LoRA": ("trainer.lora.rank=4",),
}


@pytest.fixture(scope="module", params=WORDS)
def config(request: pytest.FixtureRequest) -> RunConfig:
    return compose_config(WORDS[request.param])


@pytest.mark.parametrize("way", WAYS)
def test_policy_and_head_learn_from_one_forward_pass(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer], way: str
) -> None:
    close.append(trainer := new_trainer(compose_config([*WORDS[config.policy.name], *WAYS[way]])))
    rows = play(rollout, trainer)
    mask = split_steps(rows["loss_mask"], torch.empty(4, 1, config.policy.chunk_size)).any(-1)
    rows["values"], rows["returns"] = (
        trainer.values(rows).view(mask.shape),
        torch.tensor([1.0, -1.0]).repeat(2).view(4, 1, 1) * mask,
    )
    assert not rows["values"].any()
    losses = [
        trainer.step_both(rows, positions=np.arange(4), total_rows=4, seed=SEED)["critic/loss"].value for _ in range(4)
    ]
    risen = ((trainer.log_probs(rows, reference=False) - rows["log_probs"]) * rows["advantages"]).sum()
    assert losses[-1] < losses[0] and risen > 0.1
    values = trainer.values(rows).view(mask.shape)
    assert values.any() and not values[~mask].any()
