"""MiniGrid by text: what is seen where, from the agent's point of view."""

import asyncio
import re

import numpy as np
import pytest

from embodyflow.agents.gymnasium.babyai_expert import go_to_door
from embodyflow.agents.gymnasium.gymnasium_episode import GymnasiumEpisode
from embodyflow.agents.gymnasium.minigrid_text import _COLORS, _KINDS, _STATES, build_tokenizer, describe
from embodyflow.config.composition.compose import compose_config
from embodyflow.prompts.prompts import Prompt

WALL, DOOR, KEY, BALL, BOX = 2, 4, 5, 6, 7
RED, GREEN, YELLOW = 0, 1, 4
OPEN, CLOSED, LOCKED = 0, 1, 2
AGENT = (3, 6)
DONE = 6


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
        ({(3, 4): (BALL, RED, 0)}, "(2 ahead) red ball"),
        ({(2, 6): (BOX, GREEN, 0)}, "(1 left) green box"),
        ({(5, 5): (KEY, YELLOW, 0), (3, 3): (WALL, 5, 0)}, "(1 ahead, 2 right) yellow key (3 ahead) wall"),
        ({(0, 4): (BALL, RED, 0), (4, 6): (BALL, GREEN, 0)}, "(1 right) green ball (2 ahead, 3 left) red ball"),
        ({(3, 5): (DOOR, RED, LOCKED)}, "(1 ahead) locked red door"),
        ({(2, 5): (DOOR, GREEN, OPEN)}, "(1 ahead, 1 left) open green door"),
        ({(4, 6): (DOOR, RED, CLOSED)}, "(1 right) red door"),
        ({AGENT: (KEY, RED, 0), (3, 5): (8, 1, 0)}, "(carried) red key (1 ahead) goal"),
        ({(3, 5): (WALL, 5, 0), (3, 4): (WALL, 5, 0), (1, 5): (WALL, 5, 0)}, "(1 ahead) wall"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("num_steps", [0, 5])
def test_what_is_seen_where(cells, text, num_steps):
    assert describe(observation(cells), num_steps) == f"{text}. go to the red ball"


def test_the_tokenizer_knows_the_texts():
    tokenizer = build_tokenizer()
    cells = {(x, y): (kind, x % 6, y % 3) for x, y, kind in [(0, 3, DOOR), (1, 4, KEY), (5, 5, BALL), (6, 6, BOX)]}
    text = describe(observation(cells), 0)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.unk_token_id not in ids and tokenizer.decode(ids) == text
    assert max(tokenizer.get_vocab().values()) == len(tokenizer) - 1


@pytest.mark.parametrize(
    ("mission", "name", "cell"),
    [
        ("go to the red ball", "red ball", (BALL, RED, 0)),
        ("go to a red ball", "red ball", (BALL, RED, 0)),
        ("pick up a red ball", "red ball", (BALL, RED, 0)),
        ("go to the green door", "green door", (DOOR, GREEN, CLOSED)),
    ],
)
def test_the_object_of_a_mission_is_the_token_that_the_list_has(mission, name, cell):
    tokenizer = build_tokenizer()
    listed, asked = describe(observation({(3, 4): cell}, mission), 0).split(".")
    tokens = tokenizer.tokenize(f"{listed}.{asked}")
    assert tokens == ["(2 ahead) ", name, f". {mission.removesuffix(name)}", name]


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
def test_the_texts_are_true_and_the_expert_succeeds(seed):
    """Each text names what the grid has at this place, in the frame of the agent."""
    pytest.importorskip("minigrid", reason="needs the extra envs")
    import gymnasium as gym

    env = gym.make("minigrid:MiniGrid-GoToDoor-5x5-v0")
    seen, _ = env.reset(seed=seed)
    base, done, actions = env.unwrapped, False, go_to_door(env)
    for num_steps, action in zip(range(20), actions, strict=False):
        ahead, right = base.dir_vec, base.right_vec
        listed, mission = describe(seen, num_steps).split(". ")
        assert mission == seen["mission"]
        for place, name in re.findall(r"\((.*?)\) ([^(]+)", listed):
            offset = {word: int(number) for number, word in (part.split() for part in place.split(", "))}
            side = offset.get("right", 0) - offset.get("left", 0)
            x, y = base.agent_pos + ahead * offset.get("ahead", 0) + right * side
            inside = 0 <= x < base.width and 0 <= y < base.height
            cell = base.grid.get(x, y) if inside else None  # the view shows walls around the grid
            assert name.strip() == (f"{cell.color} {cell.type}" if cell and cell.type == "door" else "wall")
        seen, reward, done, _, _ = env.step(action)
        if done:
            break
    assert done and reward > 0


@pytest.mark.envs
@pytest.mark.parametrize("seed", range(5))
def test_a_wrong_door_ends_the_episode_without_a_reward(seed):
    """So a walk to all doors in turn does not succeed, and success shows that the mission was read."""
    pytest.importorskip("minigrid", reason="needs the extra envs")
    import gymnasium as gym

    env = gym.make("minigrid:MiniGrid-GoToDoor-5x5-v0")
    env.reset(seed=seed)
    base = env.unwrapped
    cells = ((x, y) for x in range(base.width) for y in range(base.height))
    doors = [(x, y) for x, y in cells if base.grid.get(x, y) and base.grid.get(x, y).type == "door"]
    right = tuple(base.target_pos)
    assert len(doors) == 4 and right in doors
    for wrong in {*doors} - {right}:
        env.reset(seed=seed)
        base.target_pos = wrong
        for action in go_to_door(env):
            if action == DONE:
                base.target_pos = right
            _, reward, terminated, _, _ = env.step(action)
        assert terminated and reward == 0


@pytest.mark.envs
def test_demonstrations_of_the_experiment_are_in_time():
    pytest.importorskip("minigrid", reason="needs the extra envs")
    config = compose_config(["experiment=babyai"])
    workflow, lengths = GymnasiumEpisode(config.rollout.agent), []
    for seed in range(200):  # it refuses one that does not succeed
        turns = asyncio.run(workflow.demonstrate(Prompt(seed, "", None, None, "seeds", {"seed": seed})))
        assert turns[-1] == "done"
        lengths.append(len(turns))
    assert max(lengths) < config.rollout.agent.max_turns
