from pathlib import Path

import numpy as np
import pytest
import torch
from flow_vla_models import golden_imitation, golden_uniforms, observe, tensors
from pi0_models import GOLDEN, GOLDEN_OF_ONE_CAMERA, TOLERANCE, new_config, new_policy
from policy_rows import as_batch, uniforms_for

from embodyflow.policies.embodied.flow_vla.images_flow_vla import prepare_images
from embodyflow.policies.embodied.pi0.policy_pi0 import PI0Policy


def export_policy(folder: Path) -> Path:
    policy = new_policy()
    policy.export({name: value.numpy() for name, value in policy.model.state_dict().items()}, folder)
    return folder


def loaded(folder: Path, **keys: object) -> PI0Policy:
    means = {"scratch": None, "tokenizer": None, "normalization": "checkpoint", "noise_level": 1e-6}
    return PI0Policy(new_config(path=str(export_policy(folder)), **means, **keys), "cpu")


def test_a_shorter_chunk_leaves_what_is_planned_as_it_is(tmp_path: Path) -> None:
    policy = loaded(tmp_path, chunk_size=2)
    assert (policy.horizon, policy.num_tokens, policy.num_draws) == (4, 2 * 3, 4 * 4 * 8)
    decision = policy.act(observe(policy, 2), golden_uniforms().reshape(2, -1), 1.0)
    np.testing.assert_allclose(decision.actions, GOLDEN, atol=TOLERANCE)


def test_log_probs_of_executed_actions_depend_on_the_whole_chunk(tmp_path: Path) -> None:
    policy = PI0Policy(loaded(tmp_path, chunk_size=2).config.model_copy(update={"noise_level": 0.5}), "cpu")
    observation = observe(policy, 3)
    decision = policy.act(observation, uniforms_for(policy, 3), 1.0)
    batch = as_batch(policy, observation, decision.tokens)
    log_probs, entropy = policy.evaluate(batch, 1.0)
    assert log_probs.shape == entropy.shape == (3, 3, 6) and entropy[:, 1].all()
    np.testing.assert_allclose(log_probs[:, 1].detach(), decision.log_probs, atol=2e-5)
    batch["action_tokens"].unflatten(-1, (4, 4, 8))[:, 1, 3, 1] += 1  # a point of an action that is not executed
    assert (policy.evaluate(batch, 1.0)[0][:, 1] - log_probs[:, 1]).abs().max() > 1e-3


def test_a_camera_that_only_the_checkpoint_has_is_left_out(tmp_path: Path) -> None:
    policy, both = loaded(tmp_path, cameras=("image",)), new_policy()
    decision = policy.act(observe(both, 2), golden_uniforms().reshape(2, -1), 1.0)
    np.testing.assert_allclose(decision.actions, GOLDEN_OF_ONE_CAMERA, atol=TOLERANCE)


def test_every_action_depends_on_every_other() -> None:
    policy = new_policy()
    observation, uniforms = observe(policy, 1), uniforms_for(policy, 1)
    before = policy.act(observation, uniforms, 1.0).actions
    noise = uniforms.reshape(1, 4, 4, 8).copy()
    noise[:, 3, 0] = (noise[:, 3, 0] + 0.5) % 1
    after = policy.act(observation, noise.reshape(1, -1), 1.0).actions
    assert (np.abs(after - before).max(-1) > 1e-3).all()


def test_masked_actions_affect_the_imitation_loss_of_others() -> None:
    policy = new_policy()
    actions, mask, uniforms = golden_imitation(policy)
    mask[:, 2:] = False
    observation = tensors(observe(policy, 2))
    before = policy.imitation_loss(observation, actions, mask, 0.0, uniforms)
    actions[:, 3, 0] += 1
    assert abs(policy.imitation_loss(observation, actions, mask, 0.0, uniforms) - before) > 1e-3


def test_every_prompt_begins_with_paligemmas_first_token() -> None:
    policy = new_policy()
    plain = policy.encode_instruction("push")
    policy.tokenizer.add_special_tokens({"bos_token": "^"})
    begun = policy.encode_instruction("push")
    assert begun[0] == policy.tokenizer.bos_token_id and begun[1:].tolist() == plain[:-1].tolist()
    assert policy.encode_instruction("^push").tolist() == begun.tolist(), "once"


@pytest.mark.parametrize(("size", "rows", "columns"), [((20, 27), (4, 27), (0, 32)), ((32, 11), (0, 32), (10, 21))])
def test_an_image_is_centred_in_black(size: tuple[int, int], rows: tuple[int, int], columns: tuple[int, int]) -> None:
    seen = prepare_images(torch.full((1, *size, 3), 255, dtype=torch.uint8), (32, 32), centred=True)
    assert seen.shape == (1, 3, 32, 32) and (seen[..., slice(*rows), slice(*columns)] > 0.999).all()
    assert (seen == -1).sum() == 3 * 32 * 32 - 3 * (rows[1] - rows[0]) * (columns[1] - columns[0])
