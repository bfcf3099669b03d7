"""The expert for BabyAI takes shortest ways."""

from types import SimpleNamespace

import pytest

from embodyflow.agents.gymnasium.babyai_expert import go_to

LEFT, RIGHT, FORWARD = 0, 1, 2


def room(target, full=()):
    """Return an environment with a room of 3 x 3 cells; the agent stands at (1, 1) and looks along x."""

    def get(x, y):
        inside = 1 <= x <= 3 and 1 <= y <= 3
        return None if inside and (x, y) != target and (x, y) not in full else "full"

    mission = SimpleNamespace(desc=SimpleNamespace(obj_poss=[target]))
    base = SimpleNamespace(agent_pos=(1, 1), agent_dir=0, grid=SimpleNamespace(get=get), instrs=mission)
    return SimpleNamespace(unwrapped=base)


@pytest.mark.parametrize(
    ("target", "full", "actions"),
    [
        ((3, 1), (), [FORWARD]),
        ((1, 3), (), [RIGHT, FORWARD]),
        ((3, 3), (), [FORWARD, FORWARD, RIGHT, FORWARD]),
        ((3, 3), [(2, 1)], [RIGHT, FORWARD, FORWARD, LEFT, FORWARD]),
    ],
)
def test_the_way_is_a_shortest_one(target, full, actions):
    assert list(go_to(room(target, full))) == actions


def test_an_object_that_cannot_be_reached_is_named():
    with pytest.raises(ValueError, match=r"no way leads to \[\(3, 3\)\]"):
        list(go_to(room((3, 3), [(2, 1), (1, 2)])))
