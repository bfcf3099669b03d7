"""Traced optimizer steps: they are eager steps bit for bit, and compiled they differ in the last bits and repeat."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from small_engines import JOBS, connected_trainer
from trainers import SEED

from embodyflow.config import RunConfig
from embodyflow.config.robots.control import ControlConfig
from embodyflow.data.batches import to_batch
from embodyflow.data.metrics import Metric
from embodyflow.policies.control.mlp_gaussian.configuration_mlp_gaussian import MLPGaussianConfig
from embodyflow.policies.control.mlp_gaussian.modeling_mlp_gaussian import MLPGaussian
from embodyflow.policies.control.mlp_gaussian.policy_mlp_gaussian import MLPGaussianPolicy
from embodyflow.training.fsdp_trainer import FSDPTrainer
from embodyflow.training.steps.eager_steps import EagerSteps
from embodyflow.training.steps.steps import Totals
from embodyflow.training.steps.traced_steps import TracedSteps
from embodyflow.types import Batch

NUM_ROWS = 24
NORMALISED = ("policy.normalize_observations=true", "policy.normalize_returns=true")
SMALL = (
    *("algorithm=ppo", "rollout.num_steps=12", "policy.hidden_size=16", "trainer.num_minibatches=5"),
    *("trainer.epochs=2", "critic.epochs=2", "trainer.max_grad_norm=0.5", "algorithm.value_clip=0.5"),
)
VARIANTS = {
    "ppo": (),
    "entropy and no clipping": ("algorithm.entropy_coef=0.01", "trainer.max_grad_norm=null"),
    "running statistics": NORMALISED,
    "whitened over the batch": ("algorithm.whiten=batch", "algorithm.aggregation=seq_mean_token_sum"),
    "cispo": ("algorithm.loss=cispo",),
    "gpg": ("algorithm.loss=gpg", "algorithm.aggregation=seq_mean_token_mean"),
    "sapo": ("algorithm.loss=sapo", "algorithm.aggregation=seq_mean_token_sum_norm"),
    "value clipping and no dual clip": ("algorithm.value_clip=null", "algorithm.clip_ratio_c=null"),
    "dual clip": ("algorithm.clip_ratio_c=3",),
    "cpgd": ("algorithm.loss=cpgd",),
    "categorical": ("env=cart_pole", "policy=mlp_categorical", "policy.state_dim=4", "policy.num_actions=2"),
}


def config_of(*words: str) -> RunConfig:
    return JOBS["control"].config(*SMALL, *words)


def rows_of(trainer: FSDPTrainer, seed: int) -> Batch:
    """Return rows of which a sixth has no decision."""
    draw, policy = np.random.default_rng(seed), trainer.config.policy
    sizes = {"state": policy.state_dim, "action_tokens": policy.action_dim, "advantages": 1}
    rows = to_batch({name: draw.normal(size=(NUM_ROWS, 1, size)).astype(np.float32) for name, size in sizes.items()})
    if policy.name == "mlp_categorical":
        rows["action_tokens"] = torch.from_numpy(draw.integers(policy.num_actions, size=(NUM_ROWS, 1, 1)))
    rows["loss_mask"] = torch.from_numpy(np.arange(NUM_ROWS) % 6 != 5).view(NUM_ROWS, 1, 1)
    rows["seed"], rows["instruction_ids"] = torch.arange(NUM_ROWS), torch.zeros(NUM_ROWS, 1, dtype=torch.int64)
    rows["running_returns"] = torch.from_numpy(draw.normal(size=(NUM_ROWS, 1)).astype(np.float32))
    rows["returns"] = torch.from_numpy(draw.normal(size=(NUM_ROWS, 1)).astype(np.float32))
    rows["values"] = trainer.values(rows)
    rows["old_log_probs"] = rows["log_probs"] = trainer.log_probs(rows, reference=False)
    return rows


def trained(*words: str) -> tuple[dict[str, torch.Tensor], list[dict[str, Metric]]]:
    """Return the weights after two iterations, and the metrics of each."""
    with connected_trainer(config_of(*words)) as trainer:
        how = {"positions": np.arange(NUM_ROWS), "total_rows": NUM_ROWS, "seed": SEED}
        metrics = [trainer.step_both(rows_of(trainer, each), iteration=each, **how) for each in (1, 2)]
        models = {"policy": trainer.policy.model, "critic": trainer.critic.model}
        state = {f"{of}.{name}": value for of, model in models.items() for name, value in model.state_dict().items()}
        return {name: value.clone() for name, value in state.items()}, metrics


def trained_eagerly(*words: str) -> tuple[dict[str, torch.Tensor], list[dict[str, Metric]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ControlConfig, "traces_steps", False)
        return trained(*words)


@pytest.mark.parametrize("words", VARIANTS.values(), ids=VARIANTS)
def test_traced_steps_are_eager_steps_bit_by_bit(words: tuple[str, ...]) -> None:
    (eager, expected), (traced, metrics) = trained_eagerly(*words), trained(*words)
    for name, weights in eager.items():
        assert weights.equal(traced[name]), name
    for ours, theirs in zip(metrics, expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert ours["train/grad_norm"].value == theirs["train/grad_norm"].value > 0
        for name, metric in theirs.items():
            assert ours[name].value == pytest.approx(metric.value, rel=1e-12), name
            assert ours[name].weight == metric.weight


def test_mini_batches_of_further_sizes_take_eager_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 rows in five mini-batches have two sizes, of which one is traced."""
    traced, eager = list[int](), list[int]()
    trace, take_one = TracedSteps._trace, EagerSteps._take_one

    def tracing(self: TracedSteps, columns: Mapping[str, torch.Tensor], size: int) -> object:
        traced.append(size)
        return trace(self, columns, size)

    def taking(self: EagerSteps, rows: Batch, totals: Totals) -> tuple[float, int]:
        eager.append(len(rows))
        return take_one(self, rows, totals)

    (expected, _) = trained_eagerly()
    monkeypatch.setattr("embodyflow.training.steps.traced_steps.MOST_SIZES", 1)
    monkeypatch.setattr(TracedSteps, "_trace", tracing)
    monkeypatch.setattr(EagerSteps, "_take_one", taking)
    weights, metrics = trained()
    assert len(traced) == 1 and {*traced, *eager} == {4, 5}
    assert all(value.equal(weights[name]) for name, value in expected.items())
    assert metrics[0]["train/optimizer_steps"].value == 10


def test_a_parameter_without_a_gradient_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithUnused(MLPGaussian):
        def __init__(self, config: MLPGaussianConfig) -> None:
            super().__init__(config)
            self.unused = torch.nn.Parameter(torch.ones(3))

    monkeypatch.setattr("embodyflow.policies.control.mlp_gaussian.policy_mlp_gaussian.MLPGaussian", WithUnused)
    (eager, _), (traced, _) = trained_eagerly("trainer.weight_decay=0.1"), trained("trainer.weight_decay=0.1")
    assert traced["policy.unused"].tolist() == [1, 1, 1]
    assert all(weights.equal(traced[name]) for name, weights in eager.items())


def test_a_policy_that_draws_while_it_is_evaluated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = MLPGaussianPolicy.evaluate

    def noisy(self: MLPGaussianPolicy, batch: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        log_probs, entropy = evaluate(self, batch, temperature)
        return log_probs * (1 + torch.rand(())), entropy

    monkeypatch.setattr(MLPGaussianPolicy, "evaluate", noisy)
    with pytest.raises(RuntimeError, match="set compiles = False"):
        trained()


def check_near(words: tuple[str, ...]) -> None:
    """Check that compiled steps give the weights and metrics of eager ones, up to rounding."""
    (eager, expected), (compiled, metrics) = trained_eagerly(*words), trained(*words, "trainer.compile=true")
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(metrics, expected, strict=True):
        assert ours.pop("perf/train_compile_seconds").value >= 0
        assert ours.keys() == theirs.keys()
        for name, metric in theirs.items():
            assert ours[name].value == pytest.approx(metric.value, rel=1e-4, abs=1e-6), name
            assert ours[name].weight == metric.weight


@pytest.mark.parametrize("compiled", [False, True])
def test_a_gradient_that_is_not_finite_leaves_the_weights(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    with connected_trainer(config_of(f"trainer.compile={str(compiled).lower()}")) as trainer:
        rows, before = rows_of(trainer, 1), trainer.fingerprint()
        rows["returns"][:] = torch.inf
        with pytest.raises(FloatingPointError, match="skipped the optimizer step"):
            trainer.step_both(rows, positions=np.arange(NUM_ROWS), total_rows=NUM_ROWS, seed=SEED)
        assert trainer.fingerprint() == before


@pytest.mark.slow
def test_compiled_steps_compute_what_eager_steps_do() -> None:
    check_near(NORMALISED)


PROGRAM = """
import hashlib, json, sys
import psutil
from test_traced_steps import trained
weights, metrics = trained("trainer.compile=true")
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in weights.values())).hexdigest()
children = len(psutil.Process().children(recursive=True))
print(json.dumps([digest, metrics[0]["perf/train_compile_seconds"].value, children]))
"""


@pytest.mark.slow
def test_a_second_start_takes_the_code_of_the_first_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    places = os.pathsep.join(path for path in sys.path if path)
    variables = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    variables |= {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), places])}
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True, check=True, timeout=400
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
    (first, cold, left), (second, warm, also_left) = found
    assert first == second
    assert warm < cold
    assert (left, also_left) == (0, 0)  # no pool of compilers that would outlive a killed trainer
    (folder,) = tmp_path.glob("embodyflow-*-compiled")
    assert folder.stat().st_mode & 0o777 == 0o700
