"""The Adroit hand at a door: targets that actions move, held actions, rewards and success."""

from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import pytest

from embodyflow.environments.adroit import HELD, JOINTS, MOVE, Door, joint_angles, reward_of

pytest.importorskip("gymnasium_robotics", reason="needs gymnasium-robotics")
ID = "gymnasium_robotics:AdroitHandDoor-v1"


def make(steps: int = 200) -> gym.Env:
    return gym.make(ID, max_episode_steps=steps, disable_env_checker=True)


@pytest.fixture
def door() -> Iterator[Door]:
    env = Door(make())
    yield env
    env.close()


def test_an_action_moves_the_targets_and_lasts_four_steps(door: Door) -> None:
    plain, rng = make(), np.random.default_rng(0)
    observation, _ = door.reset(seed=3)
    expected, _ = plain.reset(seed=3)
    assert np.array_equal(observation, [*expected, *np.zeros(7)]) and observation.shape == door.observation_space.shape
    targets = np.zeros(7)
    for _ in range(3):
        action = rng.uniform(-1, 1, 7).astype(np.float32)
        targets += MOVE * action
        observation, reward, _, _, _ = door.step(action)
        played = [plain.step(joint_angles(targets))[0] for _ in range(HELD)]
        assert np.array_equal(observation[:39], played[-1]) and observation[39:] == pytest.approx(targets)
        assert reward == pytest.approx(sum(map(reward_of, played)))
    plain.close()


def test_targets_stay_in_the_ranges_and_start_again_in_the_middle(door: Door) -> None:
    door.reset(seed=0)
    beyond = np.full(7, 3.0, np.float32)
    assert door.step(beyond)[0][39:] == pytest.approx(np.full(7, MOVE))  # 3 counts as 1
    for _ in range(8):
        observation = door.step(beyond)[0]
    assert (observation[39:] == 1).all()  # nine moves would reach 1.35
    assert not door.reset(seed=0)[0][39:].any()


def test_the_time_limit_ends_an_action() -> None:
    env, still = Door(make(steps=HELD + 1)), np.zeros(7, np.float32)
    env.reset(seed=0)
    assert env.step(still)[3] is False
    observation, reward, _, truncated, _ = env.step(still)
    assert truncated is True and reward == pytest.approx(reward_of(observation))  # of one step
    env.close()


@pytest.mark.parametrize(("hinge", "success"), [(0.0, False), (1.3, False), (1.5, True)])
def test_success_is_an_open_door(door: Door, hinge: float, success: bool) -> None:
    door.reset(seed=0)
    hand = door.unwrapped
    positions = hand.data.qpos.copy()  # type: ignore[attr-defined]
    positions[hand.door_hinge_addrs] = hinge  # type: ignore[attr-defined]
    hand.set_state(positions, np.zeros(30))  # type: ignore[attr-defined]
    observation, _, terminated, _, info = door.step(np.zeros(7, np.float32))
    assert info["is_success"] is success and terminated is False
    assert observation[28] == pytest.approx(hinge, abs=0.1)


def test_the_fingers_curl_together(door: Door) -> None:
    model = door.unwrapped.model  # type: ignore[attr-defined]
    names = [[model.actuator(joint).name for joint in joints] for joints in JOINTS]
    arm_and_wrist = ["A_ARTz", "A_ARRx", "A_ARRy", "A_ARRz", "A_WRJ1", "A_WRJ0"]
    assert names[:-1] == [[name] for name in arm_and_wrist]
    assert names[-1] == [f"A_{finger}J{joint}" for finger in ("FF", "MF", "RF", "LF") for joint in (2, 1, 0)]
    angles = joint_angles(np.arange(1, 8) / 10)
    assert angles[:7] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.0])
    assert (angles[list(JOINTS[-1])] == np.float32(0.7)).all() and np.count_nonzero(angles) == 18
    before = door.reset(seed=0)[0]
    for _ in range(7):
        after = door.step(np.array([0, 0, 0, 0, 0, 0, 1], np.float32))[0]
    curled = [7, 11, 15]  # the knuckles of three fingers; joint j is number j - 1 of the observation
    assert (after[[joint - 1 for joint in curled]] - before[[joint - 1 for joint in curled]] > 0.5).all()


def test_the_reward_leads_to_the_handle_turns_the_latch_and_opens_the_door() -> None:
    observation = np.zeros(39)
    observation[35:38] = (0.0, 0.3, 0.4)
    assert reward_of(observation) == pytest.approx(-0.5)
    observation[27] = 0.9  # half of the latch's range
    assert reward_of(observation) == pytest.approx(0.0)
    observation[28] = 0.05  # half ajar
    assert reward_of(observation) == pytest.approx(1.5 + 0.5 / 1.57)
    observation[[27, 28]] = (-0.1, 1.57)  # the latch no longer matters
    assert reward_of(observation) == pytest.approx(13.5)
