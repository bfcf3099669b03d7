"""Token weights of whole mini-batches, for each kind of job."""

import math
from types import SimpleNamespace

import pytest
import torch
from language_jobs import language_config
from tensordict import TensorDict

from embodyflow.algorithms.masked import one_rank
from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.training.objectives import PolicyObjective

NORM = "algorithm.aggregation=seq_mean_token_sum_norm"


def weights(config: RunConfig, mask: torch.Tensor, total_rows: int) -> torch.Tensor:
    names = ("old_log_probs", "advantages", "seed")
    rows = TensorDict({name: torch.zeros(mask.shape) for name in names} | {"loss_mask": mask}, batch_size=[len(mask)])
    prepared: torch.Tensor = PolicyObjective(None, config).prepare(rows, [slice(0, len(rows))], total_rows, one_rank)[
        "token_weights"
    ]
    return prepared


@pytest.mark.parametrize("longest", [3, 20])
def test_a_responses_norm_is_the_maximum_length(longest: int) -> None:
    """It is not the longest response in the batch, which differs between iterations."""
    config = language_config(NORM, "rollout.max_response_tokens=28")
    mask = torch.arange(longest)[:, None].expand(2, -1, 1) < torch.tensor([longest, 2])[:, None, None]
    assert weights(config, mask, config.full_batch)[mask.flatten(1)].unique().tolist() == [1 / (2 * 28)]


def test_an_episodes_norm_is_its_full_length(tiny_config) -> None:
    config = tiny_config(NORM)  # 20 steps: 4 decisions of 5 actions
    mask = torch.ones(3, config.num_decisions, config.policy.num_action_tokens, dtype=torch.bool)
    mask[0, 1:] = False
    expected = [pytest.approx(1 / (3 * 4 * 5 * 4))]
    rows = config.full_batch
    assert weights(config, mask, rows)[mask.flatten(1)].unique().tolist() == expected
    assert weights(config, mask[:, :2], rows)[mask[:, :2].flatten(1)].unique().tolist() == expected


def test_decisions_of_a_control_task_are_rows() -> None:
    config = compose_config(["experiment=reacher", "algorithm=ppo", NORM])
    mask = torch.ones(5, 1, 1, dtype=torch.bool)
    assert weights(config, mask, 5).unique().tolist() == [1 / 5]


@pytest.mark.parametrize("aggregation", ["seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"])
def test_dropped_rows_do_not_change_the_weights_of_others(tiny_config, aggregation: str) -> None:
    config = tiny_config(f"algorithm.aggregation={aggregation}")
    mask = torch.ones(config.full_batch, config.num_decisions, config.policy.num_action_tokens, dtype=torch.bool)
    mask[::2, 1:] = False
    kept = mask[:4]
    expected = weights(config, mask, len(mask))[:4]
    torch.testing.assert_close(weights(config, kept, len(kept)), expected, rtol=1e-15, atol=0)


def test_fewer_rows_than_mini_batches_weigh_as_in_a_full_batch(tiny_config) -> None:
    config = tiny_config("trainer.num_minibatches=4")  # a full batch has four rows, one per mini-batch
    mask = torch.ones(1, config.num_decisions, config.policy.num_action_tokens, dtype=torch.bool)
    in_full_batch = weights(config, mask, 4)
    assert config.full_batch == 4 and in_full_batch.sum().item() == pytest.approx(1.0)
    for left in (1, 2, 3):  # rows, each in its own mini-batch
        assert torch.equal(weights(config, mask, left), in_full_batch)


def test_token_weights_sum_to_the_fraction_of_a_full_batch(tiny_config) -> None:
    config = tiny_config("algorithm.aggregation=token_mean")
    mask = torch.ones(4, config.num_decisions, config.policy.num_action_tokens, dtype=torch.bool)
    assert weights(config, mask, 4).sum().item() == pytest.approx(4 / config.full_batch)
    assert weights(config, mask, 2 * config.full_batch).sum().item() == pytest.approx(1.0)


def test_tokens_of_the_highest_entropy_are_those_of_the_mini_batch_over_all_ranks(tiny_config) -> None:
    """Sums over a second rank with the same rows leave the share unchanged; a row may have no token in it."""
    config = tiny_config("algorithm.top_entropy_fraction=0.25")
    mask = torch.ones(4, 1, 4, dtype=torch.bool)
    rows = TensorDict({name: torch.zeros(mask.shape) for name in ("old_log_probs", "advantages")}, batch_size=[4])
    rows["loss_mask"], rows["seed"] = mask, torch.arange(4)
    rows["old_entropy"] = torch.arange(16.0).view(4, 1, 4)
    prepared = PolicyObjective(None, config).prepare(rows, [slice(0, 4)], 4, lambda sums: 2 * sums)
    assert prepared["high_entropy"].nonzero().tolist() == [[3, column] for column in range(4)]


def test_denoising_steps_discount_the_advantage_of_their_decision(tiny_config) -> None:
    words = ("policy=diffusion", "policy.num_trained_steps=2", "policy.denoising_discount=0.5", "policy.chunk_size=5")
    config = tiny_config(*words)
    mask = torch.ones(2, config.num_decisions, config.policy.num_action_tokens, dtype=torch.bool)
    columns = {"old_log_probs": torch.zeros(mask.shape), "advantages": torch.full(mask.shape, 3.0), "loss_mask": mask}
    rows = TensorDict({**columns, "seed": torch.arange(2)}, batch_size=[2])
    advantages = (
        PolicyObjective(None, config).prepare(rows, [slice(0, 2)], 2, one_rank)["advantages"].unflatten(-1, (5, 2))
    )
    assert torch.equal(advantages[..., 0].unique(), torch.tensor([1.5])), "the noisier step"
    assert torch.equal(advantages[..., 1].unique(), torch.tensor([3.0])), "the last step"


def test_a_stale_token_with_an_interpolated_proximal_policy(tiny_config) -> None:
    """Two tokens with the ratio e^0.2: one by the trainer's version, of weight 1, one two versions older, of e^0.4."""
    names = ("algorithm.old_log_probs=interpolated", "algorithm.clip_high=0.5", "algorithm.kl.coef=0")
    config, mask = tiny_config(*names), torch.tensor([[[True, True, False]]])
    log_probs = torch.tensor([[[-0.8, -0.4, 7.0]]], requires_grad=True)
    policy = SimpleNamespace(evaluate=lambda rows, temperature: (log_probs, torch.zeros(1, 1, 3)))
    acted = torch.tensor([[[-1.0, -1.0, 0.0]]])
    columns = {"log_probs": acted, "old_log_probs": acted, "loss_mask": mask, "advantages": mask.float()}
    staleness, weights = torch.tensor([[[0, 2, 0]]]), mask.double()
    rows = TensorDict({**columns, "token_staleness": staleness, "token_weights": weights}, batch_size=[1])
    loss, metrics = PolicyObjective(policy, config).loss(rows)
    assert loss.item() == pytest.approx(-math.exp(0.2) - math.exp(0.4 + 0.2))
    total, count = metrics["policy/behavior_weight"]
    assert total.item() / count.item() == pytest.approx((1 + math.exp(0.4)) / 2)
    loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.flatten().tolist() == pytest.approx([-math.exp(0.2), -math.exp(0.6), 0.0])
