"""Rollouts, warm start and training of one policy in several kinds of environments."""

import numpy as np
import pytest
import torch
from mixed_words import LINE, SPACE, mixed_words

from benchmarks.control.in_process import InProcessRun
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import Columns, to_batch
from embodyflow.policies.action_tokens import imitation_cross_entropy, member_mask
from embodyflow.policies.embodied.tiny_vla.configuration_tiny_vla import TinyVLAConfig
from embodyflow.policies.embodied.tiny_vla.policy_tiny_vla import TinyVLAPolicy
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.rollouts.replay import first_difference
from embodyflow.training.imitation.imitation import ActionSamples, Steps, StepSamples

DRAWS = (0, 1, "rollout")


def new_rollout(*words: str) -> EmbodiedRollout:
    torch.manual_seed(0)  # the weights
    return EmbodiedRollout(compose_config(mixed_words(LINE, SPACE, *words)), 0, 1)


@pytest.fixture(scope="module")
def rollout() -> EmbodiedRollout:
    return new_rollout()


@pytest.fixture(scope="module")
def played(rollout: EmbodiedRollout) -> Columns:
    return rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)


def test_every_group_is_of_one_member_and_members_share_the_groups(played: Columns) -> None:
    assert played["group_id"].tolist() == [g for g in (4, 5, 6, 7) for _ in range(4)]
    assert played["env_task_id"].tolist() == [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
    assert (played["member"][:, 0, 0] == played["env_task_id"]).all()


def test_tokens_of_padding_are_outside_the_mask(played: Columns) -> None:
    """Of a chunk of 5 actions with 3 dimensions the line has tokens 0, 3, 6, 9 and 12, the space all 15."""
    line, space = played["env_task_id"] == 0, played["env_task_id"] == 1
    assert np.flatnonzero(played["loss_mask"][line][0, 0]).tolist() == [0, 3, 6, 9, 12]
    assert played["loss_mask"][space][0, 0].all()
    assert (played["loss_mask"].sum((1, 2)) == played["num_steps"] * np.where(line, 1, 3)).all()
    assert not played["log_probs"][~played["loss_mask"]].any()
    assert not played["actions"][line][..., 1:].any() and not played["state"][line][..., 1:].any()


def test_an_episode_ends_after_the_steps_of_its_member(played: Columns) -> None:
    """12 steps of the line are two chunks and two actions; 20 of the space are four chunks."""
    line = played["env_task_id"] == 0
    unsolved = ~played["success"]
    assert (played["num_steps"][line & unsolved] == 12).all() and (played["num_steps"][~line & unsolved] == 20).all()


def test_padding_changes_neither_log_probs_nor_gradients(rollout: EmbodiedRollout, played: Columns) -> None:
    """Whatever the tokens of padding are, the loss of a line's episode is the same."""
    batch = to_batch(played)
    changed = batch.clone()
    is_padding = ~batch["loss_mask"]
    changed["action_tokens"][is_padding] = 7

    def outcome(rows: object) -> tuple[torch.Tensor, list[torch.Tensor]]:
        rollout.policy.model.zero_grad()
        log_probs, entropy = rollout.policy.evaluate(rows, 1.0)  # type: ignore[arg-type]
        (log_probs.sum() + entropy.sum()).backward()
        gradients = [each.grad.clone() for each in rollout.policy.model.parameters() if each.grad is not None]
        return log_probs.detach(), gradients

    with torch.inference_mode(False):
        (one, gradients), (other, others) = outcome(batch), outcome(changed)
    assert torch.equal(one, other) and all(map(torch.equal, gradients, others))
    assert torch.allclose(one, batch["log_probs"], atol=1e-5)


def test_a_replay_is_bit_identical(rollout: EmbodiedRollout, played: Columns) -> None:
    for row in (0, 4):
        episode = {name: values[row] for name, values in played.items()}
        assert first_difference(rollout.config, episode) is None


def test_rows_do_not_depend_on_the_processes_that_step(played: Columns) -> None:
    other = new_rollout("rollout.env_processes=1")
    try:
        rows = other.play(other.training_episodes(0, 1), "train", DRAWS)
    finally:
        other.close()
    assert all(np.array_equal(rows[name], values) for name, values in played.items())


def test_a_mask_of_members_by_hand() -> None:
    mask = member_mask(torch.tensor([[0], [2], [1]]), (1, 3, 2))
    assert mask.tolist() == [[True, False, False], [True, True, False], [True, True, True]]


def test_the_imitation_loss_leaves_padding_out() -> None:
    """Equal logits over 8 bins cost log 8 a token: 1 real token of the first sample, 3 · 2 of the second."""
    config = TinyVLAConfig(state_dim=2, action_dim=3, chunk_size=2, num_bins=8, num_bumps=4, member_action_dims=(1, 3))
    policy = TinyVLAPolicy(config, "cpu")
    torch.nn.init.zeros_(policy.model.head.coefficients.weight)  # type: ignore[union-attr,arg-type]
    torch.nn.init.zeros_(policy.model.head.coefficients.bias)  # type: ignore[union-attr,arg-type]
    member = torch.tensor([[0], [1]])
    ids = torch.from_numpy(np.stack([policy.encode_instruction("go")] * 2))
    observation = {"state": torch.zeros(2, 2), "member": member, "instruction_ids": ids}
    mask = torch.tensor([[True, False], [True, True]])
    actions = torch.zeros(2, 2, 3)
    loss = policy.imitation_loss(observation, actions, mask, 0.0, torch.empty(2, 0))
    assert loss.item() == pytest.approx(7 * np.log(8), rel=1e-5)
    steps = Steps({"actions": actions, "mask": mask, "observation.member": member})
    assert StepSamples(policy, steps, 0.0, config.action_dims_by_member).num_targets(np.array([0, 1])) == 7
    assert StepSamples(policy, steps, 0.0, config.action_dims_by_member).num_targets(np.array([0])) == 1


def test_masks_of_actions_and_of_tokens_give_the_same_loss() -> None:
    logits, targets = torch.randn(2, 4, 5), torch.softmax(torch.randn(2, 4, 5), -1)
    actions = torch.tensor([[True, False], [True, True]])
    by_token = imitation_cross_entropy(logits, targets, actions.repeat_interleave(2, dim=1))
    assert torch.equal(imitation_cross_entropy(logits, targets, actions), by_token)


def test_states_are_standardised_by_the_demonstrations_of_their_own_member() -> None:
    """States 1, 3 of the first member have mean 2 and deviation √2; padding stays 0."""
    config = TinyVLAConfig(state_dim=2, action_dim=1, chunk_size=1, num_bins=8, num_bumps=4, member_action_dims=(1, 1))
    policy = TinyVLAPolicy(config, "cpu")
    states = torch.tensor([[1.0, 0], [3.0, 0], [100.0, 10.0], [300.0, 10.0]])
    members = torch.tensor([0, 0, 1, 1])
    policy.set_member_normalization(states, members)
    standardised = policy.model.embed._standardised({"state": states, "member": members[:, None]})  # type: ignore[union-attr,operator]
    root = 1 / np.sqrt(2)
    assert standardised.flatten().tolist() == pytest.approx([-root, 0, root, 0, -root, 0, root, 0], abs=1e-6)


def test_demonstrations_of_all_members_set_the_statistics(rollout: EmbodiedRollout) -> None:
    demos = to_batch(rollout.demonstrate())
    assert demos["member"][:, 0, 0].tolist() == [0, 0, 1, 1]
    assert not demos["actions"][:2, :, 1:].any()
    config = TinyVLAConfig(**{**rollout.config.policy.model_dump(), "hidden_size": 16})
    policy = TinyVLAPolicy(config, "cpu")
    samples = ActionSamples(policy, demos, rollout.config)
    assert len(samples) == int(demos["num_steps"].sum())
    assert (policy.model.embed.state_mean[0, 1:] == 0).all()  # type: ignore[union-attr,index]
    assert policy.model.embed.state_mean[1].all()  # type: ignore[union-attr,index]


def test_each_member_improves() -> None:
    words = ("rollout.group_size=8", "rollout.num_groups=8", "trainer.epochs=4", "trainer.learning_rate=2e-3")
    run = InProcessRun(mixed_words(LINE, SPACE, *words, "evaluation.num_goals=32", "warm_start.steps=8", "seed=1"))
    run.warm_start()
    before = run.success("sampled")
    for iteration in range(1, 9):
        run.iterate(iteration)
    after = run.success("sampled")
    assert run.tasks == ["line/slide to the middle", "space/fly home"]
    assert all(later > earlier + 0.1 for earlier, later in zip(before, after, strict=True)), (before, after)
