import numpy as np
from flow_vla_models import golden_uniforms, observe
from policy_rows import uniforms_for
from smolvla_models import GOLDEN, new_policy


def test_a_shorter_chunk_has_lerobots_first_actions() -> None:
    shorter = new_policy(noise_level=1e-6, chunk_size=2)
    first = shorter.act(observe(shorter, 2), golden_uniforms()[:, :2].reshape(2, -1), 1.0)
    np.testing.assert_allclose(first.actions, np.array(GOLDEN)[:, :2], atol=2e-5)


def test_no_action_depends_on_later_ones() -> None:
    policy = new_policy()
    observation, uniforms = observe(policy, 1), uniforms_for(policy, 1)
    before = policy.act(observation, uniforms, 1.0).actions
    noise = uniforms.reshape(1, 4, 4, 8).copy()
    noise[:, 2] = (noise[:, 2] + 0.5) % 1
    after = policy.act(observation, noise.reshape(1, -1), 1.0).actions
    np.testing.assert_allclose(after[:, :2], before[:, :2], atol=1e-6)
    assert (np.abs(after - before)[:, 2:].max(-1) > 1e-3).all()
