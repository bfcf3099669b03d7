"""Which episodes are drawn."""

from embodyflow.rollouts.contact_sheet import choose_episodes


def test_every_goal_is_drawn_before_one_is_drawn_again() -> None:
    episodes = {
        "success": [True, True, False, True, False, True],
        "env_task_id": [0, 0, 0, 1, 0, 0],
        "goal": [7, 7, 3, 7, 3, 9],
    }
    assert choose_episodes(episodes, most=3) == [0, 3, 5, 2, 4]
    assert choose_episodes(episodes, most=4) == [0, 3, 5, 1, 2, 4]
