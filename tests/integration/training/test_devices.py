"""Engines on a simulated second device: no tensor stays on the CPU, and the results match the CPU's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from language_jobs import language_config, sampled
from other_device import NAME, other_device
from room_training import SMALL, play
from tensordict import TensorDict
from trainers import SEED, free_address, new_trainer, rows_for

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.generation.noise import CounterNoise
from embodyflow.rollouts.control_rollout import ControlRollout
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.rollouts.language.language_rollout import LanguageRollout
from embodyflow.training.fsdp_trainer import FSDPTrainer
from embodyflow.training.language_trainer import LanguageTrainer

FLOW = ("policy.chunk_size=4", "policy.scratch.hidden_size=32")
ROBOTS = {
    "tiny_vla": (
        *("policy=tiny_vla", "policy.image_size=16", "policy.state_dim=2", "policy.action_dim=2"),
        *("policy.hidden_size=32", "policy.num_layers=1", "policy.chunk_size=4"),
    ),
    "openvla": (),
    "openvla, token by token": ("policy.decoding=autoregressive",),
    "smolvla": ("policy=tiny_smolvla", *FLOW),
    "pi0": ("policy=tiny_pi0", *FLOW),
    "pi05": ("policy=tiny_pi05", *FLOW),
    "diffusion": ("policy=diffusion", "policy.chunk_size=4", "policy.hidden_size=32"),
    "smolvla, LoRA": ("policy=tiny_smolvla", *FLOW, "trainer.lora.rank=2", "trainer.activation_checkpointing=true"),
}
EVERYTHING = (
    *("algorithm.advantage=gae", "algorithm.loss=clip_cov", "+algorithm.covariance.fraction=0.5"),
    *("+algorithm.covariance.low=0", "+algorithm.kl.coef=0.1", "algorithm.entropy_coef=0.01"),
)
"""Settings of an objective that reads every column."""


def on_device(config: RunConfig) -> Any:
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"device": NAME})})


def on_both(config: RunConfig) -> Iterator[RunConfig]:
    """Yield the configuration for the other device, which exists meanwhile, and then for the CPU."""
    with other_device():
        yield on_device(config)
    yield config


def is_on_device(model: torch.nn.Module) -> bool:
    return {value.device.type for value in model.state_dict().values()} == {NAME}


def train(trainer: FSDPTrainer, rows: TensorDict) -> dict[str, float]:
    """Take every kind of step; return the metrics."""
    how = {"positions": np.arange(len(rows)), "total_rows": len(rows), "seed": SEED}
    rows["advantages"] = (torch.arange(len(rows))[:, None, None] % 2 * 2.0 - 1.0) * rows["loss_mask"]
    rows["old_log_probs"] = rows["log_probs"] + 0.1 * rows["advantages"]
    if trainer.config.algorithm.needs_reference:
        rows["ref_log_probs"] = trainer.log_probs(rows, reference=True)
    if trainer.critic is not None:
        assert is_on_device(trainer.critic.model) == is_on_device(trainer.policy.model)
        rows["values"], rows["returns"] = trainer.values(rows), rows["loss_mask"].any(-1).float()
        metrics = trainer.step_both(rows, **how) | trainer.step_critic(rows, **how)
    else:
        metrics = trainer.step(rows, **how)
    return {name: metric.value for name, metric in metrics.items()}


def train_twice(trainer: FSDPTrainer, rows: TensorDict, folder: Path) -> dict[str, float]:
    """Take every kind of step at the start of RL, restore the start from a checkpoint, and repeat the steps."""
    trainer.save(str(folder))
    start = trainer.fingerprint()
    metrics = train(trainer, rows)
    assert trainer.fingerprint() != start
    trainer.load_reference(str(folder))
    trainer.load(str(folder))
    assert trainer.fingerprint() == start and train(trainer, rows) == metrics
    trainer.save_pretrained(str(folder / "policy"))
    return metrics


@pytest.mark.parametrize("name", ROBOTS)
def test_a_robot_policy_trains_on_another_device(name: str, close: list[FSDPTrainer], tmp_path: Path) -> None:
    words = (*SMALL, *ROBOTS[name], *EVERYTHING, "trainer.micro_batch_rows=2", "warm_start.steps=2", "critic.epochs=1")
    config = compose_config(words)
    found = []
    for each in on_both(config):
        rollout = EmbodiedRollout(each, 0, 1)
        close.append(trainer := new_trainer(each))
        assert is_on_device(rollout.policy.model) == is_on_device(trainer.policy.model) == (each is not config)
        fitted = trainer.fit(to_batch(rollout.demonstrate()), SEED)
        rows = play(rollout, trainer)
        assert (trainer.log_probs(rows, reference=False) - rows["log_probs"]).abs().max() < 1e-5
        metrics = train_twice(trainer, rows, tmp_path) if each is not config else train(trainer, rows)
        found.append(metrics | {"sft": fitted["sft/loss"].value})
        trainer.close()
    assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("lora", ["null", "{rank: 2}"])
def test_a_language_model_trains_on_another_device(
    lora: str, close: list[FSDPTrainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A device has random numbers of its own, with which the tokens would differ.
    for user in ("conversations.slot_conversations", "transformers_engine.active_completions"):
        monkeypatch.setattr(f"embodyflow.generation.{user}.build_noise", CounterNoise)
    words = (*EVERYTHING, "algorithm.loss=kl_cov", "trainer.micro_batch_tokens=60", "critic.epochs=1")
    config = language_config(*words, f"trainer.lora={lora}")
    found = []
    for each in on_both(config):
        rollout, trainer = LanguageRollout(each, 0, 1), LanguageTrainer(each, 0, 1)
        close.append(trainer)
        trainer.connect(free_address())
        assert is_on_device(trainer.policy.model) == (each is not config)
        fitted = trainer.fit(to_batch(rollout.demonstrate()), SEED)
        rollout.update_weights(trainer.weights() | trainer.probe(), version=1)  # compares the probe
        rows = sampled(rollout)
        rollout.close()
        assert (trainer.log_probs(rows, reference=False) - rows["log_probs"]).abs().max() < 1e-5
        metrics = train_twice(trainer, rows, tmp_path) if each is not config else train(trainer, rows)
        found.append(metrics | {"sft": fitted["sft/loss"].value})
        trainer.close()
    assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-5)


def test_a_control_policy_trains_on_another_device(close: list[FSDPTrainer]) -> None:
    words = ("algorithm=ppo", "rollout.envs_per_worker=2", "rollout.num_steps=30", "trainer.num_minibatches=2")
    config = compose_config(["experiment=reacher", *words, "trainer.epochs=1", "critic.epochs=1"])
    found = []
    for each in on_both(config):
        rollout = ControlRollout(each, 0, 1)
        close.append(trainer := new_trainer(each))
        assert is_on_device(rollout.policy.model) == is_on_device(trainer.policy.model) == (each is not config)
        rollout.update_weights(trainer.weights(), 0)
        rows = to_batch(rollout.collect(1, (0, 1, "rollout"))[0])
        rollout.close()
        assert (trainer.log_probs(rows, reference=False) - rows["log_probs"]).abs().max() < 1e-5
        found.append(train(trainer, rows))
        trainer.close()
    assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-5)


def test_tensors_of_two_devices_are_refused(tiny_config, close: list[FSDPTrainer]) -> None:
    """Check that mixing devices fails as on a GPU; otherwise the tests above could never fail."""
    with other_device():
        close.append(trainer := new_trainer(on_device(tiny_config())))
        state = rows_for(trainer.config, 1)["state"][0]
        with pytest.raises(RuntimeError, match="same device"):
            trainer.policy.model.embed.state(state)
        assert trainer.policy.model.embed.state(state.to(NAME)).device.type == NAME
