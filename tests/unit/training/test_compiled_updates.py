"""Off-policy updates whose gradients are a graph, with ``trainer.compile``, are those by autograd."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodyflow.config.composition import compose
from embodyflow.policies.policy_registry import build_critic, build_policy
from embodyflow.references import resolve
from embodyflow.training.off_policy.gradient_step import GradientStep
from embodyflow.training.off_policy.replay.replay_buffer import Transitions

SIZE, NUM_UPDATES = 8, 4
PENDULUM = ("experiment=pendulum", "policy.hidden_size=16", "off_policy.target_rate=0.1")
DEMONSTRATED = (
    *("experiment=push", "algorithm=rlpd", "policy.hidden_size=16", "policy.num_critics=4"),
    *("off_policy.imitation_coef=0.5", "off_policy.policy_delay=2", "off_policy.critic_updates=0"),
)
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "sac": PENDULUM,
    "sac without the entropy in its targets": (*PENDULUM, "off_policy.entropy_backup=false"),
    "sac with priorities": (*PENDULUM, "off_policy.prioritized={}"),
    "rlpd": DEMONSTRATED,
    "td3": (*PENDULUM, "algorithm=td3"),
    "iql": (*PENDULUM, "algorithm=iql"),
}


def batch(state_dim: int, action_dim: int, seed: int) -> Transitions:
    """Return transitions of which two are terminal and half are demonstrated."""
    draws = np.random.default_rng(seed)
    state, next_state = (torch.from_numpy(draws.normal(size=(SIZE, state_dim)).astype(np.float32)) for _ in range(2))
    action = torch.from_numpy(draws.uniform(-1, 1, (SIZE, action_dim)).astype(np.float32))
    returns = torch.from_numpy(draws.normal(size=SIZE).astype(np.float32))
    discounts = 0.9 * torch.tensor([0.0] * 2 + [1.0] * (SIZE - 2))
    return Transitions(state, action, returns, discounts, next_state, SIZE // 2)


def updated(words: tuple[str, ...], folder: Path, num_updates: int = NUM_UPDATES) -> tuple[Any, list[dict[str, float]]]:
    """Return a learner after some updates, and the metrics of each."""
    if "algorithm=iql" in words:
        (folder / "replay.json").write_text('{"length": 9, "state_dim": 3, "action_dim": 1}')
        words = (*words, f"off_policy.demonstrations={folder}")
    config: Any = compose.compose_config([*words, f"off_policy.batch_size={SIZE}"])
    torch.manual_seed(0)
    policy, critics = build_policy(config.policy, "cpu"), build_critic(config.policy, "cpu")
    learner: Any = resolve(config.off_policy.learner)(policy, critics, config)
    learner.restart()
    sizes = config.policy.state_dim, config.policy.decision_dim
    weights = torch.linspace(0.2, 1, SIZE) if config.off_policy.prioritized else None
    batches = [replace(batch(*sizes, each), weights=weights) for each in range(num_updates)]
    metrics = [learner.update(each, np.random.default_rng(index), index) for index, each in enumerate(batches)]
    return learner, [{name: float(value.sum()) for name, value in each.items()} for each in metrics]


def check_equal(words: tuple[str, ...], folder: Path, rtol: float, atol: float) -> None:
    """Check that compiled updates change the weights and have the metrics of eager ones."""
    (eager, expected), (compiled, found) = updated(words, folder), updated((*words, "trainer.compile=true"), folder)
    assert compiled.compile_seconds > eager.compile_seconds == 0
    start, _ = updated(words, folder, num_updates=0)
    for ours, before in zip(compiled.models[:2], start.models[:2], strict=True):  # policy and critics
        assert any(not value.equal(old) for value, old in zip(ours.parameters(), before.parameters(), strict=True))
    for ours, theirs in zip(compiled.models, eager.models, strict=True):
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=rtol, atol=atol)
    for mine, peers in zip(found, expected, strict=True):
        assert mine == pytest.approx(peers, rel=rtol, abs=atol)


@pytest.mark.parametrize("words", ALGORITHMS.values(), ids=ALGORITHMS)
def test_the_graph_of_an_update_sees_the_weights_that_the_update_before_left(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    check_equal(words, tmp_path, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("words", ALGORITHMS.values(), ids=ALGORITHMS)
def test_compiled_updates_compute_what_eager_ones_do(words: tuple[str, ...], tmp_path: Path) -> None:
    check_equal(words, tmp_path, rtol=1e-3, atol=1e-5)


def test_a_parameter_without_a_gradient_is_left_alone(tmp_path: Path) -> None:
    words = (*PENDULUM, "trainer.weight_decay=0.1")
    learner, _ = updated(words, tmp_path)
    unused = torch.nn.Parameter(torch.ones(3))
    learner._policy.model.register_parameter("unused", unused)
    learner.trained["policy"].restart()
    before = learner._policy.model.mean.weight.detach().clone()
    learner.update(batch(3, 1, 9), np.random.default_rng(9), 9)
    assert unused.tolist() == [1, 1, 1]
    assert not before.equal(learner._policy.model.mean.weight)


def test_batches_of_another_size_have_a_graph_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    learner, _ = updated((*PENDULUM, "trainer.compile=true"), tmp_path)
    step: GradientStep = learner._steps["policy"]
    state, noise = torch.randn(3, 3), torch.randn(3, 1)
    metrics, norms = step.take(state, noise)
    assert len(step._compiled) == 2
    assert all(torch.isfinite(each) for each in [*metrics.values(), *norms])
