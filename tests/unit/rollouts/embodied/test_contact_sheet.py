"""Tests of the choice of episodes for a contact sheet."""

from embodyflow.rollouts.embodied.contact_sheet import choose_episodes


def test_a_goal_repeats_only_after_all_others() -> None:
    episodes = {
        "success": [True, True, False, True, False, True],
        "env_task_id": [0, 0, 0, 1, 0, 0],
        "goal": [7, 7, 3, 7, 3, 9],
    }
    assert choose_episodes(episodes, max_per_outcome=3) == [0, 3, 5, 2, 4]
    assert choose_episodes(episodes, max_per_outcome=4) == [0, 3, 5, 1, 2, 4]
