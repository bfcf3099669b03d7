"""Flow policies in rollout and trainer: episodes with images and states, steps, demonstrations, checkpoints."""

from pathlib import Path

import numpy as np
import pytest
import torch
from room_training import SMALL, assert_learns, assert_resumes, play
from trainers import SEED, largest_gap, new_trainer

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.training.fsdp_trainer import FSDPTrainer

WORDS = {
    name: (*SMALL, f"policy=tiny_{name}", "policy.chunk_size=4", "policy.scratch.hidden_size=32")
    for name in ("smolvla", "pi0", "pi05")
}

WAYS = {
    "bfloat16": (("trainer.precision=bfloat16", "trainer.parity_tolerance=0.5"), 0.5),
    "activation checkpointing": (("trainer.activation_checkpointing=true",), 1e-4),
    "LoRA": (("trainer.lora.rank=4",), 1e-4),
}


# test_devices.py trains π0.5 in every run of the tests.
@pytest.fixture(scope="module", params=["smolvla", "pi0", pytest.param("pi05", marks=pytest.mark.slow)])
def config(request: pytest.FixtureRequest) -> RunConfig:
    return compose_config(WORDS[request.param])


def test_the_trainer_reproduces_the_rollouts_log_probs_and_learns(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer]
) -> None:
    close.append(trainer := new_trainer(config))
    rows = play(rollout, trainer)
    assert rows["action_tokens"].dtype == torch.float32 and rows["action_tokens"].shape == (4, 4, 4 * 5 * 8)
    assert rows["loss_mask"].shape == rows["log_probs"].shape == (4, 4, 4 * 4)
    assert rows["actions"].abs().max() <= 1.0, "actions exceed the room's bounds"
    executed = rows["loss_mask"].unflatten(-1, (4, 4))
    assert torch.equal(executed.all(-1), executed.any(-1)) and executed[..., 0].sum() == rows["num_steps"].sum()
    assert_learns(trainer, rows, config.trainer.parity_tolerance)


def test_log_probs_match_the_rollouts_if_an_episode_ends_within_a_chunk(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer]
) -> None:
    close.append(trainer := new_trainer(config))
    rows = play(rollout, trainer, iteration=6)
    assert (rows["num_steps"] % 4).any()
    assert (trainer.log_probs(rows, reference=False) - rows["log_probs"]).abs().max() < 1e-4


def test_episodes_played_separately_are_bit_identical(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer]
) -> None:
    close.append(trainer := new_trainer(config))
    rows = play(rollout, trainer)
    last = rollout.play(rollout.training_episodes(SEED, 1)[2:], "train", (SEED, "actions"))
    for name, values in last.items():
        assert np.array_equal(values, rows[name][2:].numpy()), name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "config", ["smolvla", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pi0", "pi05"))], indirect=True
)
def test_every_training_mode_works(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer], way: str
) -> None:
    words, tolerance = WAYS[way]
    close.append(trainer := new_trainer(compose_config([*WORDS[config.policy.name], *words])))
    assert_learns(trainer, play(rollout, trainer), tolerance)


def test_a_fit_imitates_demonstrations_and_keeps_their_statistics(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer]
) -> None:
    close.append(trainer := new_trainer(config))
    demos = to_batch(rollout.demonstrate())
    first, second = (trainer.fit(demos, SEED) for _ in range(2))
    assert second["sft/loss"].value < first["sft/loss"].value
    steps = torch.arange(demos["state"].shape[1]) < demos["num_steps"][:, None]
    weights = trainer.weights()
    own = type(trainer.policy.model.statistics)
    for name, column in (("state", "state"), ("action", "actions")):
        expected = own.of_samples(demos[column][steps])[0]
        np.testing.assert_allclose(weights[f"statistics.{name}_{own.kinds[0]}"], expected, atol=1e-6)


def test_a_checkpoint_restores_weights_statistics_and_optimizer(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer], tmp_path: Path
) -> None:
    close.append(trainer := new_trainer(config))
    trainer.fit(to_batch(rollout.demonstrate()), SEED)
    assert_resumes(trainer, play(rollout, trainer), config, close, tmp_path)


def test_with_train_expert_only_the_language_model_gets_no_adapters(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer], tmp_path: Path
) -> None:
    words = (*WORDS[config.policy.name], "policy.train_expert_only=true", "algorithm.advantage=gae", "critic.epochs=1")
    demos, how = to_batch(rollout.demonstrate()), {"positions": np.arange(4), "total_rows": 4, "seed": SEED}
    close.append(trainer := new_trainer(compose_config(words)))
    frozen = {name for name, value in trainer.policy.model.named_parameters() if not value.requires_grad}
    assert any("vlm" in name or "paligemma." in name for name in frozen)
    before = trainer.weights()
    trainer.fit(demos, SEED)
    fitted = trainer.weights()
    trainer.close()
    assert {name for name in fitted if not np.array_equal(fitted[name], before[name])}.isdisjoint(frozen)

    adapted = compose_config([*words, "trainer.lora.rank=4"])
    close.append(trainer := new_trainer(adapted))
    layers = {name.partition(".lora_A.")[0] for name in trainer.policy.model.state_dict() if ".lora_A." in name}
    assert layers and {f"{layer}.weight" for layer in layers}.isdisjoint(frozen)
    trainer.fit(demos, SEED)
    assert largest_gap(trainer.weights(), fitted) == 0, "a warm start is the same with adapters as without"
    rows = play(rollout, trainer)
    rows["values"], rows["returns"] = trainer.values(rows), rows["loss_mask"].any(-1).float()
    trainer.save(str(tmp_path / "0"))
    trainer.step_both(rows, **how)
    trainer.save(str(tmp_path / "1"), whole=False)
    expected, values = trainer.weights(), trainer.values(rows)
    trainer.close()
    close.append(again := new_trainer(adapted))
    again.load_reference(str(tmp_path / "0"))
    again.load(str(tmp_path / "1"))
    assert largest_gap(again.weights(), expected) == 0
    assert values.any() and torch.equal(again.values(rows), values), "the critic's weights were not restored"
