"""DrQ: images are shifted, and critics and imitation train the encoder whose features the policy reads."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.config.composition.compose import compose_config
from embodyflow.policies.policy_registry import build_critic, build_policy
from embodyflow.training.off_policy.image_actor_critic import ImageActorCritic, shifted
from embodyflow.training.off_policy.replay.replay_buffer import Transitions

ROWS, STATE, CHUNK, ACTION, SIDE = 8, 30, 5, 4, 16
CAMERAS = ("image", "wrist_image")
WORDS = (
    *("experiment=drawer_open", "algorithm=drq", "policy.hidden_size=16", "policy.channels=8"),
    *("policy.image_features=12", f"policy.image_size={SIDE}", "policy.cameras=[image,wrist_image]"),
    *(f"policy.state_dim={STATE}", f"policy.action_dim={ACTION}", "off_policy.critic_updates=0"),
    *("off_policy.policy_delay=1", "off_policy.imitation_coef=0", "rollout.num_workers=1"),
)


@pytest.fixture(scope="module")
def config() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embodyflow.config.composition.compose.check_on_this_machine", lambda _: None)
        return compose_config(list(WORDS))


def new_learner(config: Any, **settings: Any) -> Any:
    torch.manual_seed(0)
    chosen = config.model_copy(update={"off_policy": config.off_policy.model_copy(update=settings)})
    policy, critics = build_policy(config.policy, "cpu"), build_critic(config.policy, "cpu")
    learner: Any = ImageActorCritic(policy, critics, chosen)  # type: ignore[arg-type]
    learner.restart()
    return learner


def new_images(seed: int) -> dict[str, torch.Tensor]:
    draws = np.random.default_rng(seed)
    shape = (ROWS, SIDE, SIDE, 3)
    return {camera: torch.from_numpy(draws.integers(256, size=shape, dtype=np.uint8)) for camera in CAMERAS}


def new_batch() -> Transitions:
    draws = np.random.default_rng(0)
    state, following = (torch.from_numpy(draws.normal(size=(ROWS, STATE)).astype(np.float32)) for _ in range(2))
    action = torch.from_numpy(draws.uniform(-1, 1, (ROWS, CHUNK * ACTION)).astype(np.float32))
    returns = torch.from_numpy(draws.normal(size=ROWS).astype(np.float32))
    discounts = torch.full((ROWS,), 0.9)
    return Transitions(state, action, returns, discounts, following, images=new_images(1), next_images=new_images(2))


def weights(module: torch.nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in module.parameters()]


def is_changed(before: list[torch.Tensor], module: torch.nn.Module) -> list[bool]:
    return [not torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True)]


def test_a_shift_moves_pixels_and_repeats_the_border() -> None:
    rows = torch.arange(4, dtype=torch.uint8)[:, None].expand(4, 4)
    image = torch.stack([10 * rows, rows.T, torch.zeros(4, 4, dtype=torch.uint8)], -1)  # row, column, nothing
    found = shifted(image.expand(200, 4, 4, 3), 2, np.random.default_rng(0))
    expected = np.random.default_rng(0).integers(0, 5, (200, 2)) - 2
    for index in range(200):
        down, right = expected[index].tolist()
        assert found[index, :, 0, 0].tolist() == [10 * min(max(row + down, 0), 3) for row in range(4)]
        assert found[index, 0, :, 1].tolist() == [min(max(column + right, 0), 3) for column in range(4)]
    assert {tuple(pair) for pair in expected.tolist()} == {(i, j) for i in range(-2, 3) for j in range(-2, 3)}


@given(st.integers(0, 6), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32))
def test_shifted_images_have_no_new_pixels_and_keep_their_size(most: int, height: int, width: int, seed: int) -> None:
    draws = np.random.default_rng(seed)
    images = torch.from_numpy(draws.integers(256, size=(3, height, width, 3), dtype=np.uint8))
    found = shifted(images, most, draws)
    assert found.shape == images.shape and found.dtype == torch.uint8
    for image, moved in zip(images, found, strict=True):
        assert {*map(tuple, moved.reshape(-1, 3).tolist())} <= {*map(tuple, image.reshape(-1, 3).tolist())}
    assert most or torch.equal(found, images)


def test_the_target_has_the_features_of_the_next_images_without_a_gradient(config: Any) -> None:
    learner, batch = new_learner(config, shift=0), new_batch()
    expected = np.random.default_rng(5)
    expected.integers(0, 1, (4, ROWS, 2))  # shifts of two cameras, before and after
    noise = torch.from_numpy(expected.standard_normal((2, ROWS, CHUNK * ACTION), np.float32))
    members = np.sort(expected.permutation(4)[:2])
    with torch.no_grad():
        features = learner._policy.encode(batch.state, batch.images)
        next_features = learner._policy.encode(batch.next_state, batch.next_images)
        actions, _ = learner._policy.sample(next_features, noise[1])
        targets = batch.returns + batch.discounts * learner._critics.evaluate_actions(next_features, actions)[
            members
        ].amin(0)
        values = learner._critics.evaluate_actions(features, batch.action)
        loss = 0.5 * (values - targets).square().mean(1).sum()
    metrics = learner.update(batch, np.random.default_rng(5), 0)
    assert float(metrics["critic/loss"]) == pytest.approx(float(loss), rel=1e-5)
    assert all(value.ndim == 0 for value in metrics.values())


def test_the_critics_train_the_encoder_and_the_policy_does_not(config: Any) -> None:
    learner, batch = new_learner(config, critic_updates=1), new_batch()
    model = learner._policy.model
    encoder, head = weights(model.encoder), weights(model.mean)
    learner.update(batch, np.random.default_rng(0), 0)  # critics alone
    assert all(is_changed(encoder, model.encoder)) and not any(is_changed(head, model.mean))
    encoder = weights(model.encoder)
    learner.set_rate(0.0)
    learner._steps["policy"]._models[0].set_rate(1.0)
    features = learner._policy.encode(batch.state, batch.images).detach()
    learner._train_policy(features, torch.zeros(ROWS, CHUNK * ACTION))
    assert not any(is_changed(encoder, model.encoder)) and all(is_changed(head, model.mean))


def test_demonstrated_features_are_imitated(config: Any) -> None:
    batch = replace(new_batch(), num_demonstrated=3)
    learner = new_learner(config, imitation_coef=10.0, shift=0)

    def likelihood() -> float:
        with torch.no_grad():
            features = learner._policy.encode(batch.state, batch.images)
            return float(learner._policy.log_density(features[-3:], batch.action[-3:]).mean())

    before = likelihood()
    for index in range(20):
        learner.update(batch, np.random.default_rng(index), index)
    assert likelihood() > before + 0.1


def test_a_learner_goes_on_from_its_state_with_the_same_bits(config: Any) -> None:
    first, batch = new_learner(config), new_batch()
    first.update(batch, np.random.default_rng(0), 0)
    torch.manual_seed(9)
    second: Any = ImageActorCritic(build_policy(config.policy, "cpu"), build_critic(config.policy, "cpu"), config)  # type: ignore[arg-type]
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    found = [learner.update(batch, np.random.default_rng(1), 1) for learner in (first, second)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    for own, other in zip(first.models, second.models, strict=True):
        assert not any(is_changed(weights(own), other))


def test_a_policy_learns_which_action_an_image_asks_for(config: Any) -> None:
    learner, rng = new_learner(config, imitation_coef=0.0, shift=1), np.random.default_rng(3)

    def transitions(size: int) -> tuple[Transitions, torch.Tensor]:
        """Return single decisions of chance; the one that is paid has the sign of the brightness."""
        bright = torch.from_numpy(rng.integers(2, size=size))
        noise = torch.from_numpy(rng.integers(100, size=(size, SIDE, SIDE, 3)))
        images = {camera: (noise + 120 * bright[:, None, None, None]).to(torch.uint8) for camera in CAMERAS}
        action = torch.from_numpy(rng.uniform(-1, 1, (size, CHUNK * ACTION)).astype(np.float32))
        returns = action[:, 0] * (2 * bright - 1)
        state = torch.zeros(size, STATE)
        batch = Transitions(state, action, returns, torch.zeros(size), state, images=images, next_images=images)
        return batch, 2 * bright - 1

    learner.trained["policy"]._learning_rate = learner.trained["critics"]._learning_rate = 3e-3
    learner.set_rate(1.0)
    for index in range(120):
        learner.update(transitions(32)[0], rng, index)
    batch, sign = transitions(64)
    with torch.no_grad():
        mean, _ = learner._policy.model(learner._policy.encode(batch.state, batch.images))
    assert float((mean[:, 0].sign() == sign).float().mean()) > 0.95
