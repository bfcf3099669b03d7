"""The expert for rooms with doors turns until it sees its door and takes a shortest way."""

from types import SimpleNamespace

import pytest

from embodyflow.agents.gymnasium.babyai_expert import go_to_door

LEFT, RIGHT, FORWARD, DONE = 0, 1, 2, 6


class Room:
    """A room of 3 x 3 cells; the agent stands at (1, 1) and looks along x. It sees what is not behind it."""

    def __init__(self, target, full=()):
        self.agent_pos, self.agent_dir, self.target_pos, self.unwrapped = (1, 1), 0, target, self
        self.grid = SimpleNamespace(get=self._get)
        self._full = {target, *full}

    def in_view(self, x, y):
        ahead = [(1, 0), (0, 1), (-1, 0), (0, -1)][self.agent_dir]
        return (x - self.agent_pos[0]) * ahead[0] + (y - self.agent_pos[1]) * ahead[1] >= 0

    def turn_right(self):
        self.agent_dir = (self.agent_dir + 1) % 4

    def _get(self, x, y):
        return None if 1 <= x <= 3 and 1 <= y <= 3 and (x, y) not in self._full else "full"


@pytest.mark.parametrize(
    ("target", "full", "actions"),
    [
        ((4, 1), (), [FORWARD, FORWARD, DONE]),
        ((1, 4), (), [RIGHT, FORWARD, FORWARD, DONE]),
        ((4, 3), (), [FORWARD, FORWARD, RIGHT, FORWARD, FORWARD, LEFT, DONE]),
        ((4, 2), [(2, 1)], [RIGHT, FORWARD, LEFT, FORWARD, FORWARD, DONE]),
    ],
)
def test_the_way_to_a_door_in_view_is_a_shortest_one(target, full, actions):
    assert list(go_to_door(Room(target, full))) == actions


def test_a_door_behind_is_looked_for_first():
    room = Room((0, 1))
    actions = go_to_door(room)
    assert next(actions) == RIGHT
    room.turn_right()  # the door is in view now, to the right
    assert list(actions) == [RIGHT, DONE]


def test_a_door_that_cannot_be_reached_is_named():
    with pytest.raises(ValueError, match=r"no way leads to \(4, 3\)"):
        list(go_to_door(Room((4, 3), [(2, 1), (1, 2)])))
