"""Adapters: compared with training all weights and with the merged model, exported, and restored."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from language_jobs import language_config, rows_to_train_on
from peft import PeftModel
from torch import nn
from trainers import SEED, assert_same_in_parts, demos_for, free_address, largest_gap, new_trainer, rows_for
from transformers import AutoModelForCausalLM

from embodyflow.config.language import LanguageConfig
from embodyflow.config.trainer import LoRAConfig
from embodyflow.data.tables import digest_of
from embodyflow.errors import ConfigError, ParityError
from embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla import TinyVLA
from embodyflow.policies.policy_registry import build_policy
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.rollouts.language.language_rollout import LanguageRollout
from embodyflow.training.fsdp_trainer import FSDPTrainer
from embodyflow.training.language_trainer import LanguageTrainer
from embodyflow.training.lora import Adapters
from embodyflow.types import Batch

LORA = ("trainer.lora.rank=4", "trainer.learning_rate=1e-2")


Close = list[FSDPTrainer]


def started(config: LanguageConfig, close: Close) -> LanguageTrainer:
    """Start a trainer of one rank after closing the previous one, which leaves its process group."""
    if close:
        close[-1].close()
    close.append(trainer := LanguageTrainer(config, 0, 1))
    trainer.connect(free_address())
    return trainer


def step(trainer: FSDPTrainer, rows: Batch, seed: int = SEED) -> None:
    trainer.step(rows, positions=np.arange(len(rows)), total_rows=len(rows), seed=seed)


class OneLayer:
    """A policy with one square layer and only the attributes that adapters need."""

    def __init__(self, size: int) -> None:
        self.model = nn.Sequential(nn.Linear(size, size, dtype=torch.float64))
        self.blocks = [self.model]


def test_the_gradient_is_the_projected_gradient_of_the_full_weight() -> None:
    """dL/dB = s G Aᵀ and dL/dA = s Bᵀ G, where G = dL/dW of the merged weight."""
    torch.manual_seed(0)
    policy = OneLayer(6)
    weights = Adapters(policy, LoRAConfig(rank=2, alpha=3.0), seed=0, base=None)
    adapted, inputs, targets = policy.model[0], torch.randn(9, 6).double(), torch.randn(9, 6).double()
    a, b = adapted.lora_A["default"].weight, adapted.lora_B["default"].weight
    nn.init.normal_(b)
    (policy.model(inputs) - targets).square().sum().backward()
    whole = nn.Linear(6, 6, dtype=torch.float64)
    whole.load_state_dict({n.removeprefix("0."): torch.from_numpy(w) for n, w in weights.full().items()})
    (whole(inputs) - targets).square().sum().backward()
    gradient = whole.weight.grad
    torch.testing.assert_close(b.grad, 1.5 * gradient @ a.T, atol=1e-6, rtol=1e-6)  # peft keeps adapters in float32
    torch.testing.assert_close(a.grad, 1.5 * b.T @ gradient, atol=1e-6, rtol=1e-6)


def test_an_orthogonal_adapter_of_full_rank_steps_like_the_full_weight() -> None:
    """If B = 0 and AᵀA = 1, a gradient step η on B changes the weight by -η s² G, as a step η s² on the weight does."""
    torch.manual_seed(1)
    policy = OneLayer(6)
    plain = nn.Linear(6, 6, dtype=torch.float64)
    plain.load_state_dict(policy.model[0].state_dict())
    weights = Adapters(policy, LoRAConfig(rank=6, alpha=3.0), seed=0, base=None)
    nn.init.orthogonal_(policy.model[0].lora_A["default"].weight)
    inputs, targets, rate = torch.randn(9, 6).double(), torch.randn(9, 6).double(), 1e-2
    for model, scale in ((policy.model, 0.5**2), (plain, 1.0)):
        trained = [value for value in model.parameters() if value.requires_grad and value.ndim == 2]
        (model(inputs) - targets).square().mean().backward()
        torch.optim.SGD(trained, lr=rate / scale).step()
    np.testing.assert_allclose(weights.full()["0.weight"], plain.weight.detach(), atol=1e-7)


def test_only_adapters_are_trained_and_the_policy_starts_unchanged(close: Close) -> None:
    plain = started(language_config(), close)
    rows, weights = rows_to_train_on(plain.config, plain), plain.weights()
    at_start = plain.log_probs(rows, reference=False)
    trainer = started(language_config(*LORA, "trainer.epochs=2"), close)
    assert largest_gap(trainer.weights(), weights) == 0
    for reference in (False, True):
        assert torch.equal(trainer.log_probs(rows, reference=reference), at_start)
    before = {name: value.clone() for name, value in trainer.policy.model.state_dict().items()}
    step(trainer, rows)
    state = trainer.policy.model.state_dict()
    changed = {name for name in state if not torch.equal(state[name], before[name])}
    assert len(changed) == 2 * 7 * 2 and all(".lora_" in name for name in changed)  # A and B of 7 layers in 2 blocks
    assert torch.equal(trainer.log_probs(rows, reference=True), at_start)
    assert (trainer.log_probs(rows, reference=False) - at_start).abs().max() > 0.01


def test_workers_get_merged_weights_and_a_stale_merge_is_caught(close: Close) -> None:
    trainer = started(language_config(*LORA, "rollout.probe_tolerance=1e-5"), close)
    rows = rows_to_train_on(trainer.config, trainer)
    rollout = LanguageRollout(trainer.config, 0, 1)
    rollout.update_weights((stale := trainer.weights()) | trainer.probe(), version=1)
    step(trainer, rows)
    before = trainer.fingerprint()
    weights, unmerged = trainer.weights(), trainer.log_probs(rows, reference=False)
    assert_same_in_parts(trainer)
    assert trainer.fingerprint() == before
    with pytest.raises(ParityError, match="version 2"):
        rollout.update_weights(stale | trainer.probe(), version=2)
    rollout.update_weights(weights | trainer.probe(), version=2)
    rollout.close()
    plain = started(language_config(), close)
    plain.policy_weights.load(weights)
    assert (plain.log_probs(rows, reference=False) - unmerged).abs().max() <= 1e-5


def test_a_restored_trainer_continues_bit_identically(close: Close, tmp_path: Path) -> None:
    config = language_config(*LORA)
    trainer = started(config, close)
    rows = rows_to_train_on(config, trainer)
    at_start = trainer.log_probs(rows, reference=True)
    trainer.save(str(tmp_path / "0"), whole=True)
    step(trainer, rows, seed=1)
    trainer.save(str(tmp_path / "1"), whole=False)
    step(trainer, rows, seed=2)
    expected = digest_of(trainer.weights())

    trainer = started(config.model_copy(update={"seed": 99}), close)  # with different weights and adapters
    trainer.load_reference(str(tmp_path / "0"))
    trainer.load(str(tmp_path / "1"))
    assert torch.equal(trainer.log_probs(rows, reference=True), at_start)
    step(trainer, rows, seed=2)
    assert digest_of(trainer.weights()) == expected
    sizes = [sum(file.stat().st_size for file in (tmp_path / name).iterdir()) for name in ("0", "1")]
    frozen = sum(value.nbytes for name, value in trainer.weights().items() if name != "lm_head.weight")
    assert sizes[1] < sizes[0] - frozen


def test_peft_and_transformers_load_what_is_exported(close: Close, tmp_path: Path) -> None:
    trainer = started(language_config(*LORA), close)
    rows = rows_to_train_on(trainer.config, trainer)
    step(trainer, rows)
    trainer.save_pretrained(str(tmp_path))
    ids = rows["prompt_tokens"]
    with torch.no_grad():
        expected = trainer.policy.model(input_ids=ids).logits
        merged = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)(input_ids=ids).logits
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
        without = base(input_ids=ids).logits
        adapted = PeftModel.from_pretrained(base, tmp_path / "adapter")(input_ids=ids).logits
        by_itself = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter", dtype=torch.float32)(
            input_ids=ids
        ).logits
    assert (merged - expected).abs().max() <= 1e-5
    assert torch.equal(adapted, expected) and torch.equal(by_itself, expected)
    assert (without - expected).abs().max() > 0.01


def test_a_robot_policy_has_adapters_too(tiny_config, close: Close, tmp_path: Path) -> None:
    config = tiny_config(*LORA, "warm_start.steps=5", "trainer.lora.target_modules=[up,coefficients]")
    close.append(trainer := new_trainer(config))
    plain = tiny_config("warm_start.steps=5")
    trainer.fit(demos_for(config), seed=SEED)  # fits all weights, as without adapters
    fitted = trainer.weights()
    rows = rows_for(config, 4)
    at_start = trainer.log_probs(rows, reference=True)
    assert torch.equal(trainer.log_probs(rows, reference=False), at_start)
    step(trainer, rows)
    assert torch.equal(trainer.log_probs(rows, reference=True), at_start)
    weights = trainer.weights()
    changed = {name for name in weights if not np.array_equal(weights[name], fitted[name])}
    assert changed == {"blocks.0.up.weight", "head.coefficients.weight"}
    rollout = EmbodiedRollout(config, 0, 1)
    rollout.update_weights(weights, version=1)
    acting = rollout.policy.evaluate(rows, config.rollout.temperature)[0]
    rollout.close()
    assert (acting - trainer.log_probs(rows, reference=False)).abs().max() <= 1e-5
    trainer.save_pretrained(str(tmp_path))
    observation = {"state": rows["state"][:, 0], "instruction_ids": rows["instruction_ids"]}
    with torch.no_grad():
        loaded = PeftModel.from_pretrained(TinyVLA.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
        assert torch.equal(loaded(observation), trainer.policy.model(observation))
    trainer.close()
    close.append(trainer := new_trainer(plain))
    trainer.fit(demos_for(plain), seed=SEED)
    assert largest_gap(trainer.weights(), fitted) == 0


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            ("q_proj", "qproj"),
            r"target_modules=qproj: matches no trained linear layer; allowed are, .* q_proj, up_proj",
        ),
        (("lm_head",), "target_modules=lm_head: its weight is tied to model.embed_tokens.weight"),
    ],
)
def test_layers_that_cannot_be_adapted_are_named(targets: tuple[str, ...], message: str) -> None:
    policy = build_policy(language_config().policy, "cpu")
    with pytest.raises(ConfigError, match=message):
        Adapters(policy, LoRAConfig(rank=2, target_modules=targets), seed=0, base=None)
    with pytest.raises(ConfigError, match="the policy has no trained linear layer in its blocks"):
        Adapters(SimpleNamespace(model=policy.model, blocks=[]), LoRAConfig(rank=2), seed=0, base=None)
