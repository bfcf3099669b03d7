"""The critic: compared with a plain training loop, independent of the policy, and restored from a checkpoint."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from trainers import SEED, demos_for, new_trainer, rows_for

from embodyflow.config import RunConfig
from embodyflow.data.tables import digest_of
from embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla import TinyVLAValue
from embodyflow.training.fsdp_trainer import FSDPTrainer

PPO = ("algorithm.advantage=gae", "critic.epochs=2", "critic.learning_rate=1e-3")


def valued_rows(config: RunConfig, num_rows: int) -> TensorDict:
    rows, draw = rows_for(config, num_rows), torch.Generator().manual_seed(0)
    decided = rows["loss_mask"].any(-1)
    rows["values"] = torch.rand(decided.shape, generator=draw) * decided
    rows["returns"] = torch.rand(decided.shape, generator=draw) * decided
    return rows


def state_of(trainer: FSDPTrainer) -> dict[str, np.ndarray]:
    """Return all weights of policy, reference and critic; on one rank a shard is the full tensor."""
    states = {"policy": trainer.policy.model.state_dict(), "reference": trainer.policy_weights.reference_state()}
    if trainer.critic is not None:
        states["critic"] = trainer.critic.model.state_dict()
    return {
        f"{name}.{key}": (value.to_local() if hasattr(value, "to_local") else value).clone().numpy()
        for name, state in states.items()
        for key, value in state.items()
    }


def changed(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    return {name.partition(".")[0] for name in before if not np.array_equal(before[name], after[name])}


def test_a_critic_starts_with_the_policys_encoder_and_values_of_zero(tiny_config, close: list[FSDPTrainer]) -> None:
    config = tiny_config(*PPO, "warm_start.steps=5")
    close.append(trainer := new_trainer(config))
    trainer.fit(demos_for(config), seed=SEED)
    state = state_of(trainer)
    shared = [name for name in state if name.startswith("critic.") and not name.startswith("critic.value.")]
    assert len(shared) > 5 and "critic.embed.state_mean" in shared
    for name in shared:
        np.testing.assert_array_equal(state[name], state[name.replace("critic.", "policy.")])
    assert state["critic.embed.state_mean"].any()
    values = trainer.values(valued_rows(config, 3))
    assert values.shape == (3, config.num_decisions) and values.dtype == torch.float32 and not values.any()


@pytest.mark.parametrize("clip", ["0.05", "null"])
def test_critic_steps_match_a_plain_loop(clip: str, tiny_config, close: list[FSDPTrainer]) -> None:
    config = tiny_config(*PPO, f"+algorithm.value_clip={clip}", "trainer.micro_batch_rows=3")
    close.append(trainer := new_trainer(config))
    rows, before = valued_rows(config, 4), state_of(trainer)
    metrics = trainer.step_critic(rows, positions=np.arange(4), total_rows=4, seed=SEED)

    model = TinyVLAValue(config.policy)
    model.load_state_dict({n[7:]: torch.from_numpy(a) for n, a in before.items() if n.startswith("critic.")})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    decided, old, returns = rows["loss_mask"].any(-1), rows["values"], rows["returns"]
    ids = rows["instruction_ids"].repeat_interleave(config.num_decisions, dim=0)
    losses = []
    for _ in range(2):
        values = model({"state": rows["state"].flatten(0, 1), "instruction_ids": ids}).view(decided.shape)
        errors = (values - returns).square()
        if clip != "null":
            near = torch.minimum(torch.maximum(values, old - 0.05), old + 0.05)
            errors = torch.maximum(errors, (near - returns).square())
        losses.append(0.5 * errors[decided].mean())
        optimizer.zero_grad()
        losses[-1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    after = state_of(trainer)
    expected = {f"critic.{name}": value.numpy() for name, value in model.state_dict().items()}
    assert max(np.abs(after[name] - value).max() for name, value in expected.items()) <= 1e-6
    assert metrics["critic/loss"].value == pytest.approx(np.mean([loss.item() for loss in losses]), rel=1e-5)
    assert metrics["critic/optimizer_steps"].value == 2 and metrics["critic/grad_norm"].value > 0
    assert trainer.values(rows)[decided].any() and not trainer.values(rows)[~decided].any()
    assert changed(before, after) == {"critic"}


def test_only_training_changes_weights_and_only_of_the_trained_model(tiny_config, close: list[FSDPTrainer]) -> None:
    config = tiny_config(*PPO)
    close.append(trainer := new_trainer(config))
    rows, start = valued_rows(config, 4), state_of(trainer)
    trainer.values(rows)
    trainer.log_probs(rows, reference=False)
    trainer.log_probs(rows, reference=True)
    assert changed(start, state_of(trainer)) == set()
    trainer.step(rows, positions=np.arange(4), total_rows=4, seed=SEED)
    assert changed(start, stepped := state_of(trainer)) == {"policy"}
    trainer.step_critic(rows, positions=np.arange(4), total_rows=4, seed=SEED)
    assert changed(stepped, state_of(trainer)) == {"critic"}


def test_a_critic_does_not_change_how_the_policy_is_trained(tiny_config, close: list[FSDPTrainer]) -> None:
    digests = set()
    for words in (PPO, ()):
        close.append(trainer := new_trainer(config := tiny_config(*words)))
        trainer.step(valued_rows(config, 4), positions=np.arange(4), total_rows=4, seed=SEED)
        digests.add(digest_of(trainer.weights()))
        trainer.close()
    assert len(digests) == 1 and trainer.critic is None


def test_a_restored_critic_continues_bit_identically(tiny_config, close: list[FSDPTrainer], tmp_path: Path) -> None:
    config = tiny_config(*PPO, "trainer.num_minibatches=2")
    close.append(trainer := new_trainer(config))
    rows = valued_rows(config, 6)

    def train(trainer: FSDPTrainer, seed: int) -> None:
        trainer.step(rows, positions=np.arange(6), total_rows=6, seed=seed)
        trainer.step_critic(rows, positions=np.arange(6), total_rows=6, seed=seed)

    trainer.save(str(tmp_path / "0"))
    train(trainer, 1)
    trainer.save(str(tmp_path / "1"))
    train(trainer, 2)
    expected = state_of(trainer)
    trainer.close()
    close.append(trainer := new_trainer(config.model_copy(update={"seed": 99})))
    trainer.load_reference(str(tmp_path / "0"))
    trainer.load(str(tmp_path / "1"))
    train(trainer, 2)
    assert changed(expected, state_of(trainer)) == set()
