"""The critic as a head on the policy's features: compared with a plain loop, published without the head, restored."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from trainers import SEED, demos_for, new_trainer, rows_for

from embodyflow.algorithms.masked import split_steps, valued_steps
from embodyflow.config import RunConfig
from embodyflow.data.tables import digest_of
from embodyflow.policies.action_tokens import token_log_probs
from embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla import TinyVLA
from embodyflow.training.fsdp_trainer import FSDPTrainer
from embodyflow.training.model_sizes import count_critic
from embodyflow.training.value_head import SharedCritic, ValueHead

SHARED = ("algorithm.advantage=gae", "critic.features=policy", "critic.learning_rate=3e-3")
BY_ACTION = "critic.level=action"


def valued_rows(config: RunConfig, num_rows: int, shift: float = 0.0) -> TensorDict:
    """Return rows with random values and returns, one for each decision, or for each action with ``level=action``."""
    rows, draw = rows_for(config, num_rows), torch.Generator().manual_seed(0)
    num_values = config.policy.chunk_size if config.critic.level == "action" else 1
    shape = rows["loss_mask"].shape[:2] + ((num_values,) if num_values > 1 else ())
    mask = valued_steps(rows["loss_mask"], torch.empty(shape)).view(shape)
    rows["values"] = torch.rand(shape, generator=draw) * mask
    rows["returns"] = (torch.rand(shape, generator=draw) + shift) * mask
    return rows


def state_of(trainer: FSDPTrainer) -> dict[str, torch.Tensor]:
    """Return all weights of policy and head; on one rank a shard is the full tensor."""
    assert trainer.critic is not None
    models = {"policy": trainer.policy.model, "critic": trainer.critic.model}
    return {
        f"{name}.{key}": value.detach().clone()
        for name, model in models.items()
        for key, value in model.state_dict().items()
    }


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])}


def step_both(trainer: FSDPTrainer, rows: TensorDict, seed: int = SEED) -> None:
    trainer.step_both(rows, positions=np.arange(len(rows)), total_rows=len(rows), seed=seed)


def copies(config: RunConfig, state: dict[str, torch.Tensor]) -> tuple[TinyVLA, ValueHead]:
    """Return a plain model and head with the weights of a trainer."""
    num_values = config.policy.chunk_size if config.critic.level == "action" else 1
    model, head = TinyVLA(config.policy), ValueHead(config.policy.hidden_size, num_values)
    for module, prefix in ((model, "policy."), (head, "critic.")):
        module.load_state_dict({n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)})
    return model, head


def observed(rows: TensorDict) -> dict[str, torch.Tensor]:
    """Return the observations of all decisions, those that were not taken included."""
    ids = rows["instruction_ids"].repeat_interleave(rows["state"].shape[1], dim=0)
    return {"state": rows["state"].flatten(0, 1), "instruction_ids": ids}


@pytest.mark.parametrize("level", [(), (BY_ACTION,)])
def test_values_are_those_of_the_head_on_the_policys_features(
    level: tuple[str, ...], tiny_config, close: list[FSDPTrainer]
) -> None:
    config = tiny_config(*SHARED, *level)
    close.append(trainer := new_trainer(config))
    rows = valued_rows(config, 4)
    assert not trainer.values(rows).any(), "values are 0 before any training"
    step_both(trainer, rows)
    model, head = copies(config, state_of(trainer))
    expected = head(model.encode(observed(rows))).detach().view(*rows["loss_mask"].shape[:2], -1)
    mask = split_steps(rows["loss_mask"], rows["values"]).any(-1)
    values = trainer.values(rows)
    assert values.dtype == torch.float32 and values.shape == rows["values"].shape and values.any()
    torch.testing.assert_close(values.view(mask.shape), expected * mask, atol=1e-6, rtol=0)


@pytest.mark.parametrize("level", [(), (BY_ACTION,)])
@pytest.mark.parametrize("coef", [0.0, 0.5])
def test_joint_steps_match_a_plain_loop(
    coef: float, level: tuple[str, ...], tiny_config, close: list[FSDPTrainer]
) -> None:
    config = tiny_config(*SHARED, *level, f"critic.coef={coef}", "trainer.micro_batch_rows=3", "trainer.epochs=2")
    close.append(trainer := new_trainer(config))
    rows = valued_rows(config, 4)
    step_both(trainer, rows)  # a head of zeros passes no gradient on
    before = state_of(trainer)
    model, head = copies(config, before)
    start = {name: value.clone() for name, value in before.items()}
    trainer._restart_from_policy()  # the optimizers begin anew, as those below
    step_both(trainer, rows)

    weights, small = list(model.parameters()), list(head.parameters())
    optimizers = [
        torch.optim.AdamW(weights, lr=config.trainer.learning_rate, weight_decay=0.0),
        torch.optim.AdamW(small, lr=3e-3, weight_decay=0.0),
    ]
    mask = rows["loss_mask"]
    valued = split_steps(mask, rows["values"]).any(-1)
    old, returns = (rows[name].view(valued.shape)[valued] for name in ("values", "returns"))
    for _ in range(2):
        features = model.encode(observed(rows))
        tokens = rows["action_tokens"].flatten(0, 1)
        log_probs = token_log_probs(model.head(features), tokens, config.rollout.temperature).view(mask.shape)[mask]
        ratio, advantages = (log_probs - rows["old_log_probs"][mask]).exp(), rows["advantages"][mask]
        loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * 3.0), loss)
        policy_gradients = torch.autograd.grad(loss.mean(), weights, retain_graph=True)
        values = head(features).view(valued.shape)[valued]
        near = torch.minimum(torch.maximum(values, old - 0.5), old + 0.5)
        errors = 0.5 * torch.maximum((values - returns).square(), (near - returns).square()).mean()
        value_gradients = torch.autograd.grad(errors, [*weights, *small], allow_unused=True)
        for parameter, of_policy, of_value in zip(weights, policy_gradients, value_gradients, strict=False):
            parameter.grad = of_policy if of_value is None else of_policy + coef * of_value
        for parameter, of_value in zip(small, value_gradients[len(weights) :], strict=True):
            parameter.grad = of_value
        torch.nn.utils.clip_grad_norm_([*weights, *small], 1.0)
        for optimizer in optimizers:
            optimizer.step()
    after = state_of(trainer)
    expected = {f"policy.{name}": value for name, value in model.state_dict().items()}
    expected |= {f"critic.{name}": value for name, value in head.state_dict().items()}
    assert changed(start, after) == {"policy", "critic"}
    assert max(float((after[name] - value).abs().max()) for name, value in expected.items()) <= 2e-5


@pytest.mark.parametrize(("coef", "reaches"), [(0, False), (1, True)])
def test_the_returns_reach_the_policy_exactly_if_the_coefficient_says_so(
    coef: int, reaches: bool, tiny_config, close: list[FSDPTrainer]
) -> None:
    digests = set()
    for shift in (0.0, 3.0):
        config = tiny_config(*SHARED, f"critic.coef={coef}", "trainer.max_grad_norm=null", "trainer.epochs=3")
        close.append(trainer := new_trainer(config))
        step_both(trainer, valued_rows(config, 4, shift))
        digests.add(digest_of(trainer.weights()))
        trainer.close()
    assert (len(digests) == 2) == reaches


def test_the_critics_own_steps_train_the_head_alone(tiny_config, close: list[FSDPTrainer]) -> None:
    config = tiny_config(*SHARED, "critic.epochs=3")
    close.append(trainer := new_trainer(config))
    rows, before = valued_rows(config, 4), state_of(trainer)
    metrics = trainer.step_critic(rows, positions=np.arange(4), total_rows=4, seed=SEED)
    assert changed(before, state_of(trainer)) == {"critic"}
    assert metrics["critic/optimizer_steps"].value == 3
    assert all(parameter.grad is None for parameter in trainer.policy.model.parameters())


def test_one_forward_pass_gives_log_probs_and_values(tiny_config, close: list[FSDPTrainer]) -> None:
    config = tiny_config(*SHARED)
    close.append(trainer := new_trainer(config))
    passes = []
    trainer.policy.model.norm.register_forward_hook(lambda *_: passes.append(1))
    step_both(trainer, valued_rows(config, 4))
    assert len(passes) == config.trainer.epochs * config.trainer.num_minibatches


def test_a_head_is_neither_published_nor_exported(tiny_config, close: list[FSDPTrainer], tmp_path: Path) -> None:
    config = tiny_config(*SHARED)
    close.append(trainer := new_trainer(config))
    step_both(trainer, valued_rows(config, 4))
    assert trainer.weights().keys() == TinyVLA(config.policy).state_dict().keys()
    trainer.save_pretrained(str(tmp_path / "policy"))
    loaded = TinyVLA.from_pretrained(tmp_path / "policy").state_dict()
    assert digest_of({name: value.numpy() for name, value in loaded.items()}) == digest_of(trainer.weights())


def test_a_warm_start_leaves_the_head_as_it_is(tiny_config, close: list[FSDPTrainer]) -> None:
    config = tiny_config(*SHARED, "warm_start.steps=2")
    close.append(trainer := new_trainer(config))
    before = state_of(trainer)
    trainer.fit(demos_for(config), seed=SEED)
    assert changed(before, state_of(trainer)) == {"policy"}


@pytest.mark.parametrize("words", [(), (BY_ACTION,), ("trainer.lora.rank=2",)])
def test_a_restored_head_continues_bit_identically(
    words: tuple[str, ...], tiny_config, close: list[FSDPTrainer], tmp_path: Path
) -> None:
    config = tiny_config(*SHARED, *words, "trainer.num_minibatches=2")
    close.append(trainer := new_trainer(config))
    rows = valued_rows(config, 6)
    trainer.save(str(tmp_path / "0"))
    step_both(trainer, rows, seed=1)
    trainer.save(str(tmp_path / "1"), whole=False)
    step_both(trainer, rows, seed=2)
    expected = state_of(trainer)
    trainer.close()
    close.append(trainer := new_trainer(config.model_copy(update={"seed": 99})))
    trainer.load_reference(str(tmp_path / "0"))
    trainer.load(str(tmp_path / "1"))
    step_both(trainer, rows, seed=2)
    assert changed(expected, state_of(trainer)) == set()


def test_adapters_learn_from_the_values(tiny_config, close: list[FSDPTrainer]) -> None:
    config = tiny_config(*SHARED, "trainer.lora.rank=2")
    close.append(trainer := new_trainer(config))
    rows, before = valued_rows(config, 4), state_of(trainer)
    rows["advantages"] = torch.zeros_like(rows["advantages"])
    step_both(trainer, rows)
    step_both(trainer, rows)
    after = state_of(trainer)
    moved = {name for name in before if name.startswith("policy.") and not torch.equal(before[name], after[name])}
    assert moved and all(".lora_" in name for name in moved)


def test_a_head_computes_in_bfloat16_with_activation_checkpointing(tiny_config, close: list[FSDPTrainer]) -> None:
    words = ("trainer.precision=bfloat16", "trainer.parity_tolerance=0.2", "trainer.activation_checkpointing=true")
    state = {}
    for name, more in (("float32", ()), ("bfloat16", words)):
        config = tiny_config(*SHARED, *more)
        close.append(trainer := new_trainer(config))
        rows = valued_rows(config, 4)
        for _ in range(5):
            step_both(trainer, rows)
        state[name] = trainer.values(rows)
        assert state[name].dtype == torch.float32
        trainer.step_critic(rows, positions=np.arange(4), total_rows=4, seed=SEED)
        assert all(isinstance(each, DTensor) == bool(more) for each in trainer.policy.model.parameters())
        trainer.close()
    assert not torch.equal(state["float32"], state["bfloat16"])
    torch.testing.assert_close(state["bfloat16"], state["float32"], atol=0.1, rtol=0)


def test_a_head_is_counted_as_a_critic(tiny_config, close: list[FSDPTrainer]) -> None:
    config = tiny_config(*SHARED, BY_ACTION)
    close.append(trainer := new_trainer(config))
    counts = count_critic(config)
    assert isinstance(trainer.critic, SharedCritic) and counts is not None
    assert counts.num_params == counts.num_trained == sum(p.numel() for p in trainer.critic.model.parameters())
