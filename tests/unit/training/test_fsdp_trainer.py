"""The trainer: compared with a plain training loop and with the rollout, deterministic, and restorable."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from trainers import SEED, Weights, demos_for, largest_gap, new_trainer, rows_for

from embodyflow.config import RunConfig
from embodyflow.data.batches import to_batch
from embodyflow.data.tables import digest_of
from embodyflow.graph.planning.memory_estimate import ModelSize, checkpoint_bytes
from embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla import TinyVLA
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.training.fsdp_trainer import FSDPTrainer
from embodyflow.training.model_sizes import count_policy


def plain_training(config: RunConfig, weights: Weights, rows: TensorDict) -> Weights:
    """Train as in a textbook: the whole batch at once, in one process, without an engine."""
    model = TinyVLA(config.policy)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.trainer.learning_rate, weight_decay=0.1)
    mask, algorithm = rows["loss_mask"], config.algorithm
    num_rows, decisions = mask.shape[:2]
    observation = {
        "state": rows["state"].flatten(0, 1),
        "instruction_ids": rows["instruction_ids"].repeat_interleave(decisions, dim=0),
    }
    for _ in range(config.trainer.epochs):
        distribution = torch.distributions.Categorical(
            logits=model(observation).unflatten(0, (num_rows, decisions)) / config.rollout.temperature
        )
        log_probs = distribution.log_prob(rows["action_tokens"])
        ratio, advantages = (log_probs - rows["old_log_probs"]).exp(), rows["advantages"]
        clipped = ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
        pessimistic = torch.minimum(ratio * advantages, clipped * advantages)
        bounded = torch.maximum(pessimistic, algorithm.clip_ratio_c * advantages)
        objective = torch.where(advantages < 0, bounded, pessimistic)
        to_reference = rows["ref_log_probs"] - log_probs
        kl = to_reference.exp() - to_reference - 1
        token_loss = -objective + algorithm.kl.coef * kl - algorithm.entropy_coef * distribution.entropy()
        optimizer.zero_grad()
        token_loss[mask].mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.trainer.max_grad_norm)
        optimizer.step()
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def test_steps_match_a_plain_loop(tiny_config, close: list[FSDPTrainer], tmp_path: Path) -> None:
    config = tiny_config(
        *("trainer.epochs=3", "trainer.weight_decay=0.1", "trainer.max_grad_norm=0.05", "rollout.temperature=1.3"),
        *("+algorithm.kl.coef=0.05", "algorithm.entropy_coef=0.01"),
    )
    close.append(trainer := new_trainer(config))
    rows, start = rows_for(config, 4), trainer.weights()
    trainer.save(str(tmp_path))  # every run saves before its first step, which must not count as a step of AdamW
    metrics = trainer.step(rows, positions=np.arange(4), total_rows=4, seed=SEED)
    expected = plain_training(config, start, rows)
    assert largest_gap(trainer.weights(), start) > 1e-3
    assert largest_gap(trainer.weights(), expected) <= 1e-6
    assert metrics["train/optimizer_steps"].value == 3
    assert metrics["policy/entropy"].weight == 3 * rows["loss_mask"].sum()
    assert 5.0 < metrics["policy/entropy"].value < np.log(256) + 1e-6


def test_micro_batch_sizes_do_not_change_the_weights(tiny_config, close: list[FSDPTrainer]) -> None:
    results = []
    for size in ("null", "3", "1"):
        config = tiny_config(f"trainer.micro_batch_rows={size}", "trainer.num_minibatches=2", "trainer.epochs=2")
        close.append(trainer := new_trainer(config))
        trainer.step(rows_for(config, 7), positions=np.arange(7), total_rows=7, seed=SEED)
        results.append(trainer.weights())
        trainer.close()
    whole, *cut = (np.concatenate([array.ravel() for array in weights.values()]) for weights in results)
    for weights in cut:
        assert np.linalg.norm(weights - whole) <= 1e-6 * np.linalg.norm(whole)
        assert np.abs(weights - whole).max() <= 1e-5  # AdamW takes a full step even if a gradient is almost zero


def test_the_same_step_twice_gives_bit_identical_weights(tiny_config, close: list[FSDPTrainer]) -> None:
    config = tiny_config("trainer.num_minibatches=2")
    digests = set()
    for seed in (SEED, SEED, SEED + 1):
        close.append(trainer := new_trainer(config))
        trainer.step(rows_for(config, 6), positions=np.arange(6), total_rows=6, seed=seed)
        digests.add((seed, digest_of(trainer.weights())))
        trainer.close()
    assert len(digests) == 2 and len({digest for _, digest in digests}) == 2


def test_without_rows_nothing_is_trained(tiny_config, close: list[FSDPTrainer]) -> None:
    config = tiny_config()
    close.append(trainer := new_trainer(config))
    before = digest_of(trainer.weights())
    metrics = trainer.step(rows_for(config, 2)[:0], positions=np.arange(0), total_rows=0, seed=SEED)
    assert digest_of(trainer.weights()) == before
    assert metrics["train/optimizer_steps"].value == 0


def test_rows_that_a_filter_keeps_weigh_as_much_as_in_a_full_batch(tiny_config, close: list[FSDPTrainer]) -> None:
    norms = []
    for num_groups in (1, 2, 4):  # groups have 2 rows, of which the filter kept one group
        config = tiny_config(f"rollout.num_groups={num_groups}", "trainer.max_grad_norm=1000")
        close.append(trainer := new_trainer(config))
        metrics = trainer.step(rows_for(config, 2), positions=np.arange(2), total_rows=2, seed=SEED)
        norms.append(metrics["train/grad_norm"].value)
        trainer.close()
    assert norms[0] > 0.01
    assert norms == [pytest.approx(norms[0]), pytest.approx(norms[0] / 2), pytest.approx(norms[0] / 4)]


def test_a_gradient_of_inf_raises_and_keeps_the_weights(tiny_config, close: list[FSDPTrainer]) -> None:
    config = tiny_config()
    close.append(trainer := new_trainer(config))
    rows, before = rows_for(config, 2), digest_of(trainer.weights())
    rows["advantages"][0, 0, 0] = torch.inf
    with pytest.raises(FloatingPointError, match="skipped the optimizer step"):
        trainer.step(rows, positions=np.arange(2), total_rows=2, seed=SEED)
    assert digest_of(trainer.weights()) == before
    close.append(other := new_trainer(config))
    for each in (trainer, other):  # nothing of the failed step is in the next one, and gradients are released
        each.step(rows_for(config, 2), positions=np.arange(2), total_rows=2, seed=SEED)
        assert all(parameter.grad is None for parameter in each.policy.model.parameters())
    assert digest_of(trainer.weights()) == digest_of(other.weights()) != before


def test_a_restored_trainer_continues_bit_identically(tiny_config, close: list[FSDPTrainer], tmp_path: Path) -> None:
    config = tiny_config("trainer.num_minibatches=2", "trainer.epochs=2")
    close.append(trainer := new_trainer(config))
    rows = rows_for(config, 6)
    trainer.save(str(tmp_path / "0"))
    at_start = trainer.log_probs(rows, reference=False)
    trainer.step(rows, positions=np.arange(6), total_rows=6, seed=1)
    trainer.save(str(tmp_path / "1"))
    trainer.step(rows, positions=np.arange(6), total_rows=6, seed=2)
    expected = digest_of(trainer.weights())
    trainer.close()

    other = config.model_copy(update={"seed": 99})  # different initial weights, no optimizer state
    close.append(trainer := new_trainer(other))
    trainer.load_reference(str(tmp_path / "0"))
    trainer.load(str(tmp_path / "1"))
    assert torch.equal(trainer.log_probs(rows, reference=True), at_start)
    trainer.step(rows, positions=np.arange(6), total_rows=6, seed=2)
    assert digest_of(trainer.weights()) == expected


def test_a_checkpoint_has_the_size_that_plans_count_with(tiny_config, close: list[FSDPTrainer], tmp_path: Path) -> None:
    config = tiny_config()
    close.append(trainer := new_trainer(config))
    trainer.step(rows_for(config, 2), positions=np.arange(2), total_rows=2, seed=SEED)
    trainer.save(str(tmp_path))
    written = sum(path.stat().st_size for path in tmp_path.glob("*.distcp"))
    planned = checkpoint_bytes(ModelSize(count_policy(config).num_params))
    headers = 4_000 * 4 * len(list(trainer.policy.model.parameters()))  # of weights, two moments and the step
    assert planned <= written <= planned + headers


def test_the_reference_follows_the_policy_and_is_restored(
    tiny_config, close: list[FSDPTrainer], tmp_path: Path
) -> None:
    config = tiny_config("algorithm.kl.coef=0.5", "algorithm.kl.refresh_every=2")
    close.append(trainer := new_trainer(config))
    rows = rows_for(config, 6)
    start = trainer.log_probs(rows, reference=True)
    trainer.save(str(tmp_path / "0"))

    def step(trainer: FSDPTrainer, iteration: int) -> torch.Tensor:
        """Train on the rows with the present reference; return its log-probs after the step."""
        rows["ref_log_probs"] = trainer.log_probs(rows, reference=True)
        trainer.step(rows, positions=np.arange(6), total_rows=6, seed=SEED, iteration=iteration)
        return trainer.log_probs(rows, reference=True)

    assert torch.equal(step(trainer, 1), start)
    second = step(trainer, 2)
    assert torch.equal(second, trainer.log_probs(rows, reference=False)) and not torch.equal(second, start)
    assert torch.equal(step(trainer, 3), second)
    trainer.save(str(tmp_path / "3"))
    fourth, expected = step(trainer, 4), digest_of(trainer.weights())
    trainer.close()

    close.append(trainer := new_trainer(config.model_copy(update={"seed": 99})))
    trainer.load_reference(str(tmp_path / "0"))
    trainer.load(str(tmp_path / "3"))
    assert torch.equal(trainer.log_probs(rows, reference=True), second)
    assert torch.equal(step(trainer, 4), fourth) and digest_of(trainer.weights()) == expected


def test_an_annealed_coefficient_is_that_of_the_next_iteration_and_restored(
    tiny_config, close: list[FSDPTrainer], tmp_path: Path
) -> None:
    config = tiny_config("algorithm.kl.coef=0.4", "algorithm.kl.final_coef=0.1", "iterations=4")
    close.append(trainer := new_trainer(config))
    rows = rows_for(config, 2)
    for iteration, coef in ((1, 0.4), (2, 0.3), (3, 0.2)):
        metrics = trainer.step(rows, positions=np.arange(2), total_rows=2, seed=SEED, iteration=iteration)
        assert metrics["policy/kl_coef"].value == pytest.approx(coef)
    trainer.save(str(tmp_path / "3"))
    trainer.close()
    close.append(trainer := new_trainer(config))
    assert trainer.kl_coef == 0.4
    trainer.load(str(tmp_path / "3"))
    assert trainer.kl_coef == pytest.approx(0.1)
    trainer.begin_with_models()  # a branch that takes models begins at iteration 1
    assert trainer.kl_coef == 0.4


def test_a_longer_run_anneals_the_coefficient_from_its_first_iteration_on(
    tiny_config, close: list[FSDPTrainer], tmp_path: Path
) -> None:
    words = ("algorithm.kl.coef=0.4", "algorithm.kl.final_coef=0.1")
    close.append(trainer := new_trainer(config := tiny_config(*words, "iterations=2")))
    step = {"positions": np.arange(2), "total_rows": 2, "seed": SEED}
    trainer.step(rows_for(config, 2), **step, iteration=2)
    trainer.save(str(tmp_path / "2"))
    trainer.close()
    close.append(trainer := new_trainer(tiny_config(*words, "iterations=4")))
    trainer.load(str(tmp_path / "2"))
    assert trainer.kl_coef_in(3) == pytest.approx(0.2), "before training too, for a penalty in the rewards"
    assert trainer.step(rows_for(config, 2), **step, iteration=3)["policy/kl_coef"].value == pytest.approx(0.2)


def test_the_kl_coefficient_adapts_and_is_restored(tiny_config, close: list[FSDPTrainer], tmp_path: Path) -> None:
    config = tiny_config("algorithm.kl.coef=0.2", "algorithm.kl.target=0.005", "algorithm.kl.horizon=30")
    close.append(trainer := new_trainer(config))
    rows = rows_for(config, 6)
    difference = (rows["ref_log_probs"] - rows["old_log_probs"]).double().numpy()[rows["loss_mask"].numpy()]
    error = (np.exp(difference) - difference - 1).mean() / 0.005 - 1
    assert 0.005 < abs(error) < 0.2, "the controller would clip the error"
    step = {"positions": np.arange(6), "total_rows": 6, "seed": SEED}
    trainer.save(str(tmp_path / "0"))
    assert trainer.step(rows, **step)["policy/kl_coef"].value == 0.2, "the metric is the coefficient used in training"
    assert trainer.kl_coef == pytest.approx(0.2 * (1 + error * 6 / 30))
    trainer.save(str(tmp_path / "1"))
    trainer.step(rows, **step)
    adapted, expected = trainer.kl_coef, digest_of(trainer.weights())

    def from_checkpoint(*words: str) -> FSDPTrainer:
        close.append(trainer := new_trainer(tiny_config("algorithm.kl.coef=0.2", *words)))
        trainer.load_reference(str(tmp_path / "0"))
        trainer.load(str(tmp_path / "1"))
        trainer.step(rows, **step)
        return trainer

    trainer.close()
    restored = from_checkpoint("algorithm.kl.target=0.005", "algorithm.kl.horizon=30")
    assert (restored.kl_coef, digest_of(restored.weights())) == (adapted, expected)
    restored.close()
    fixed = from_checkpoint()
    assert fixed.kl_coef == 0.2 and digest_of(fixed.weights()) != expected, "the coefficient has no effect"


def test_an_exported_policy_is_loaded_by_its_from_pretrained(
    tiny_config, close: list[FSDPTrainer], tmp_path: Path
) -> None:
    config = tiny_config()
    close.append(trainer := new_trainer(config))
    trainer.step(rows := rows_for(config, 4), positions=np.arange(4), total_rows=4, seed=SEED)
    trainer.save_pretrained(str(tmp_path))
    loaded = TinyVLA.from_pretrained(tmp_path)
    observation = {"state": rows["state"][:, 0], "instruction_ids": rows["instruction_ids"]}
    with torch.no_grad():
        assert torch.equal(loaded(observation), trainer.policy.model(observation))


def test_rollout_and_trainer_agree_on_log_probs(tiny_config, close: list[FSDPTrainer]) -> None:
    config = tiny_config("rollout.temperature=1.6", "seed=3")
    close.append(trainer := new_trainer(config))
    rollout = EmbodiedRollout(config, 0, 1)
    rollout.update_weights(trainer.weights(), version=1)
    batch = to_batch(rollout.play(rollout.training_episodes(0, 1), "train", (0, 1, "rollout")))
    rollout.close()
    log_probs = trainer.log_probs(batch, reference=False)
    assert log_probs.dtype == torch.float32
    assert (log_probs - batch["log_probs"]).abs().max() <= 1e-5
    assert torch.equal(log_probs, trainer.log_probs(batch, reference=True))  # before any training


def test_fitting_learns_the_demonstrations_and_starts_rl_from_there(tiny_config, close: list[FSDPTrainer]) -> None:
    config = tiny_config("warm_start.steps=60", "warm_start.learning_rate=1e-2", "warm_start.smoothing_bins=4.0")
    close.append(trainer := new_trainer(config))
    demos = demos_for(config)
    early = trainer.fit(demos, seed=SEED)["sft/loss"].value
    late = trainer.fit(demos, seed=SEED)["sft/loss"].value  # the mean over the last 50 steps
    assert late < early - 0.5
    steps = torch.cat([demos["state"][0], demos["state"][1, :7]])
    weights = trainer.weights()
    np.testing.assert_allclose(weights["embed.state_mean"], steps.mean(0), atol=1e-6)
    np.testing.assert_allclose(weights["embed.state_std"], steps.std(0), atol=1e-6)
    rows = rows_for(config, 2)
    assert torch.equal(trainer.log_probs(rows, reference=True), trainer.log_probs(rows, reference=False))


def test_a_fit_in_stretches_gives_the_weights_of_one(tiny_config, close: list[FSDPTrainer]) -> None:
    until = "warm_start.until={success:0.5,max_steps:6}"
    config = tiny_config("warm_start.steps=6")
    demos, weights = demos_for(config), []
    for words in (("warm_start.steps=6",), ("warm_start.steps=2", until), ("warm_start.steps=6", until)):
        config = tiny_config(*words)
        close.append(trainer := new_trainer(config))
        trainer.fit(demos, seed=SEED)
        if config.warm_start.steps == 2:
            trainer.fit_further(3)
            assert trainer.fit_further(1)["sft/steps"].value == 6
        weights.append(digest_of(trainer.weights()))
        rows = rows_for(config, 2)
        assert torch.equal(trainer.log_probs(rows, reference=True), trainer.log_probs(rows, reference=False))
        trainer.close()
    assert len(set(weights)) == 1


def test_only_a_fit_with_a_stated_quality_goes_on(tiny_config, close: list[FSDPTrainer]) -> None:
    config = tiny_config("warm_start.steps=1")
    close.append(trainer := new_trainer(config))
    trainer.fit(demos_for(config), seed=SEED)
    with pytest.raises(RuntimeError, match="there is no fit to continue"):
        trainer.fit_further(1)
