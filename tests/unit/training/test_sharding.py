"""Activation checkpointing and bfloat16 for every policy on one rank; tests/integration has two ranks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from language_jobs import language_config, rows_to_train_on
from torch.distributed.fsdp import FSDPModule
from trainers import SEED, demos_for, free_address, largest_gap, rows_for

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.data.tables import digest_of
from embodyflow.policies.language.causal_lm import head_causal_lm
from embodyflow.rollouts.language.language_rollout import LanguageRollout
from embodyflow.training.fsdp_trainer import FSDPTrainer
from embodyflow.training.language_trainer import LanguageTrainer
from embodyflow.types import Batch

BFLOAT16 = ("trainer.precision=bfloat16", "trainer.parity_tolerance=0.2")
JOBS = ["language", "embodied", "control"]


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest, tiny_config: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
    """Return a function that composes a tiny run of this kind, with a critic and further overrides."""
    match request.param:
        case "language":
            critic = ("algorithm.advantage=gae", "rollout.probe_tolerance=0.2")
            return lambda *words: language_config(*critic, *words)
        case "embodied":
            return lambda *words: tiny_config("algorithm.advantage=gae", *words)
    small = ("experiment=reacher", "rollout.num_workers=1", "rollout.envs_per_worker=1", "rollout.num_steps=16")
    small += ("run_id=tiny", "policy.hidden_size=16", "algorithm=ppo", "trainer.num_minibatches=2")
    return lambda *words: compose_config([*small, *words])


def started(config: RunConfig, close: list[FSDPTrainer]) -> FSDPTrainer:
    if close:
        close[-1].close()
    kind = LanguageTrainer if config.kind == "language" else FSDPTrainer
    close.append(trainer := kind(config, 0, 1))
    trainer.connect(free_address())
    return trainer


def rows_of(config: RunConfig, trainer: FSDPTrainer) -> Batch:
    """Return rows to train policy and critic on."""
    match config.kind:
        case "language":
            rows = rows_to_train_on(config, trainer)
        case "embodied":
            rows = rows_for(config, 4)
        case _:
            shape, draw = (8, 1), np.random.default_rng(0).standard_normal
            columns = {"state": (*shape, config.policy.state_dim), "action_tokens": (*shape, config.policy.action_dim)}
            columns |= dict.fromkeys(("old_log_probs", "ref_log_probs", "advantages"), (*shape, 1))
            rows = to_batch({name: draw(size).astype(np.float32) for name, size in columns.items()})
            rows["loss_mask"] = torch.ones(*shape, 1, dtype=torch.bool)
            rows["seed"], rows["instruction_ids"] = torch.arange(8), torch.zeros(8, 1, dtype=torch.int64)
    decided = rows["loss_mask"].any(-1)
    rows["values"], rows["returns"] = 0.1 * decided, 0.5 * decided
    return rows


def trained(config: RunConfig, rows: Batch, close: list[FSDPTrainer]) -> FSDPTrainer:
    trainer = started(config, close)
    for step in (trainer.step, trainer.step_critic):
        step(rows, positions=np.arange(len(rows)), total_rows=len(rows), seed=SEED)
    return trainer


def kept_bytes(trainer: FSDPTrainer, rows: Batch) -> int:
    """Return how many bytes a forward pass of the policy keeps for the backward pass, without weights."""
    kept, weights = 0, {value.untyped_storage().data_ptr() for value in trainer.policy.model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.nbytes * (tensor.untyped_storage().data_ptr() not in weights)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.policy.evaluate(rows, 1.0)
    return kept


def test_activation_checkpointing_is_bit_identical(job: Any, close: list[FSDPTrainer]) -> None:
    config = job()
    rows = rows_of(config, started(config, close))
    states, sizes = [], []
    for checkpointing in ("false", "true"):
        trainer = trained(job(f"trainer.activation_checkpointing={checkpointing}"), rows, close)
        states.append(trainer.fingerprint())
        sizes.append(kept_bytes(trainer, rows))
    assert states[0] == states[1]
    assert sizes[1] < sizes[0]


def test_bfloat16_blocks_keep_float32_weights_and_outputs(job: Any, close: list[FSDPTrainer]) -> None:
    trainer = started(config := job(), close)
    rows, start = rows_of(config, trainer), trainer.weights()
    plain = trained(config, rows, close)
    expected, of_start = plain.weights(), plain.log_probs(rows, reference=True)
    trainer = started(config := job(*BFLOAT16), close)
    assert largest_gap(trainer.weights(), start) == 0
    gap = (trainer.log_probs(rows, reference=True) - of_start).abs().max()
    assert 1e-6 < gap < 0.2
    trainer = trained(config, rows, close)
    seen: set[torch.dtype] = set()
    for module in trainer.policy.model.modules():
        if isinstance(module, FSDPModule) and module is not trainer.policy.model:  # a block
            module.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    log_probs, entropy = trainer.policy.evaluate(rows, 1.0)
    assert log_probs.dtype == entropy.dtype == trainer.values(rows).dtype == torch.float32
    assert seen == {torch.bfloat16}
    moments = trainer._learners["policy"].state_dict()["optimizer"]["state"].values()
    assert all(each["exp_avg"].dtype == torch.float32 for each in moments)
    weights = trainer.weights()
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}
    moved = np.linalg.norm(np.concatenate([(expected[name] - start[name]).ravel() for name in start]))
    apart = np.linalg.norm(np.concatenate([(expected[name] - weights[name]).ravel() for name in start]))
    assert 0 < apart < 0.5 * moved  # both take steps in about the same direction


def test_evaluating_before_training_does_not_change_the_result(tiny_config: Any, close: list[FSDPTrainer]) -> None:
    """FSDP leaves the outermost weights, here adapters of the head, gathered after a forward pass without backward."""
    lora = ("trainer.lora.rank=2", "trainer.lora.target_modules=[up,coefficients]", "trainer.epochs=3")
    config, digests = tiny_config(*BFLOAT16, *lora, "warm_start.steps=2"), []
    for evaluates in (False, True):
        trainer, rows = started(config, close), rows_for(config, 4)
        for seed in (1, 2):
            if evaluates:
                trainer.log_probs(rows, reference=False)
                trainer.log_probs(rows, reference=True)
            if seed == 1:
                trainer.fit(demos_for(config), seed=SEED)
                fitted = trainer.weights()
            trainer.step(rows, positions=np.arange(4), total_rows=4, seed=seed)
        digests.append(digest_of(trainer.weights()))
        moved = {name for name, array in trainer.weights().items() if not np.array_equal(array, fitted[name])}
        assert moved == {"blocks.0.up.weight", "head.coefficients.weight"}
    assert digests[0] == digests[1]


def test_a_warm_start_runs_in_bfloat16(job: Any, close: list[FSDPTrainer]) -> None:
    if (config := job(*BFLOAT16)).kind == "control":
        pytest.skip("control jobs have no warm start")
    trainer, demos = started(config, close), None
    if config.kind == "language":
        rollout = LanguageRollout(config, 0, 1)
        demos = to_batch(rollout.demonstrate())
        rollout.close()
    before = digest_of(trainer.weights())
    metrics = trainer.fit(demos_for(config) if demos is None else demos, seed=SEED)
    assert np.isfinite(metrics["sft/loss"].value) and digest_of(trainer.weights()) != before


@pytest.mark.parametrize("words", [BFLOAT16, (*BFLOAT16, "trainer.lora.rank=2")], ids=["weights", "adapters"])
def test_a_head_in_pieces_trains_like_a_whole_one(
    words: tuple[str, ...], close: list[FSDPTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = language_config("rollout.probe_tolerance=0.2", *words)
    rows, ends = rows_to_train_on(config, trainer := started(config, close)), []
    start, steps = trainer.weights(), {"positions": np.arange(len(rows)), "total_rows": len(rows), "seed": SEED}
    for piece in (head_causal_lm.PIECE, 19 * 3):
        monkeypatch.setattr(head_causal_lm, "PIECE", piece)
        trainer = started(config, close)
        trainer.step(rows.clone(), **steps)
        ends.append(np.concatenate([array.ravel() for array in trainer.weights().values()]))
    moved = np.linalg.norm(ends[0] - np.concatenate([array.ravel() for array in start.values()]))
    assert 0 < np.linalg.norm(ends[1] - ends[0]) < 0.1 * moved
