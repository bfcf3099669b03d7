"""MiniGrid by text: what is seen where, from the agent's point of view."""

from itertools import pairwise

import numpy as np
import pytest

from embodyflow.agents.gymnasium.minigrid_text import _COLORS, _KINDS, _STATES, bot_actions, build_tokenizer, describe

WALL, DOOR, KEY, BALL, BOX = 2, 4, 5, 6, 7
RED, GREEN, YELLOW = 0, 1, 4
OPEN, LOCKED = 0, 2
AGENT = (3, 6)


def observation(cells, mission="go to the red ball"):
    image = np.zeros((7, 7, 3), np.uint8)
    image[:, 3:] = (1, 0, 0)  # empty and seen
    for place, cell in cells.items():
        image[place] = cell
    return {"image": image, "direction": 0, "mission": mission}


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ({}, "nothing"),
        ({(3, 4): (BALL, RED, 0)}, "red ball 2 ahead"),
        ({(2, 6): (BOX, GREEN, 0)}, "green box 1 left"),
        ({(5, 5): (KEY, YELLOW, 0), (3, 3): (WALL, 5, 0)}, "yellow key 2 right 1 ahead, wall 3 ahead"),
        ({(0, 4): (BALL, RED, 0), (4, 6): (BALL, GREEN, 0)}, "green ball 1 right, red ball 3 left 2 ahead"),
        ({(3, 5): (DOOR, RED, LOCKED)}, "locked red door 1 ahead"),
        ({(2, 5): (DOOR, GREEN, OPEN)}, "open green door 1 left 1 ahead"),
        ({AGENT: (KEY, RED, 0), (3, 5): (8, 1, 0)}, "carrying red key, goal 1 ahead"),
        ({(3, 5): (WALL, 5, 0), (3, 4): (WALL, 5, 0), (1, 5): (WALL, 5, 0)}, "wall 1 ahead"),
    ],
)  # fmt: skip
def test_what_is_seen_where(cells, text):
    assert describe(observation(cells), 1) == text
    assert describe(observation(cells), 0) == f"go to the red ball. {text}"


def test_the_tokenizer_knows_the_texts():
    tokenizer = build_tokenizer()
    cells = {(x, y): (kind, x % 6, y % 3) for x, y, kind in [(0, 3, DOOR), (1, 4, KEY), (5, 5, BALL), (6, 6, BOX)]}
    text = describe(observation(cells), 0)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.unk_token_id not in ids and tokenizer.decode(ids) == text
    assert max(tokenizer.get_vocab().values()) == len(tokenizer) - 1


def test_the_numbers_are_minigrids():
    constants = pytest.importorskip("minigrid.core.constants", reason="needs the extra envs")
    for names, numbers in (
        (_KINDS, constants.OBJECT_TO_IDX),
        (_COLORS, constants.COLOR_TO_IDX),
        (_STATES, constants.STATE_TO_IDX),
    ):
        assert dict(zip(names, range(len(names)), strict=True)) == numbers


@pytest.mark.envs
@pytest.mark.parametrize("seed", range(5))
def test_the_texts_are_true_and_the_bot_arrives(seed):
    """Each text names what the grid has at this place, in the frame of the agent."""
    pytest.importorskip("minigrid", reason="needs the extra envs")
    import gymnasium as gym

    env = gym.make("minigrid:BabyAI-GoToLocalS6N3-v0")
    seen, _ = env.reset(seed=seed)
    base, done = env.unwrapped, False
    for num_steps, action in zip(range(20), bot_actions(env), strict=False):
        ahead, right = base.dir_vec, base.right_vec
        for part in describe(seen, num_steps).split(". ")[-1].split(", "):
            words = part.split()
            offset = {word: int(number) for number, word in pairwise(words) if number.isdigit()}
            side = offset.get("right", 0) - offset.get("left", 0)
            cell = base.grid.get(*(base.agent_pos + ahead * offset.get("ahead", 0) + right * side))
            assert part.startswith("wall" if cell.type == "wall" else f"{cell.color} {cell.type}")
        seen, reward, done, _, _ = env.step(action)
        if done:
            break
    assert done and reward > 0
