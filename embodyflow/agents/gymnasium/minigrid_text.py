"""MiniGrid and BabyAI by text (Chevalier-Boisvert et al. 2019, arXiv:1810.08272; 2023, arXiv:2306.13831).

The agent sees a square of the grid before it. An observation becomes a list of what is where, seen from the agent::

    go to the red ball. red ball 1 left 2 ahead, grey box 3 ahead, wall 4 ahead
"""

from collections.abc import Iterator
from typing import Any

from embodyflow.prompts.word_tokenizer import chat_tokenizer

# Numbers in observations of MiniGrid, as its minigrid.core.constants has them.
_KINDS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
_COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
_STATES = ("open", "closed", "locked")
_NOT_NAMED = {"unseen", "empty", "floor", "wall", "agent"}
_COLORED = {"door", "key", "ball", "box"}
_FARTHEST = 12
_WORDS = (
    *("go to ", "pick up ", "put ", "the ", "a ", " next to ", ", ", ". ", "nothing", "carrying ", "error: "),
    *("allowed are ", "left", "right", "forward", "pickup", "drop", "toggle", "done", " left", " right", " ahead"),
    *(f"{color} " for color in _COLORS),
    *(f"{state} " for state in _STATES),
    *("door", "key", "ball", "box", "goal", "lava", "wall", " here"),
    *(f" {number}" for number in range(1, _FARTHEST + 1)),
    *"abcdefghijklmnopqrstuvwxyz ",
)


def describe(observation: Any, num_steps: int) -> str:
    """Return the text of an observation of MiniGrid: at first the mission, then what is seen where, the nearest first.

    Args:
        observation: ``image``, uint8 [W, H, 3], holds kind, color and state of the cells before the agent, which stands
            at the middle of the last row and looks to the first; ``mission`` is the instruction.
        num_steps: Steps so far.
    """
    image = observation["image"]
    width, height, _ = image.shape
    column, row = width // 2, height - 1
    seen = []
    for x in range(width):
        for y in range(height):
            if (x, y) != (column, row) and (name := _name(*image[x, y])):
                aside, ahead = x - column, row - y
                seen.append((abs(aside) + ahead, aside, f"{name}{_place(aside, ahead)}"))
    texts = [text for _, _, text in sorted(seen)]
    if carried := _name(*image[column, row]):
        texts.insert(0, f"carrying {carried}")
    walls = [ahead for ahead in range(1, height) if _KINDS[int(image[column, row - ahead, 0])] == "wall"]
    if walls:
        texts.append(f"wall{_place(0, walls[0])}")
    mission = f"{observation['mission']}. " if num_steps == 0 else ""
    return mission + (", ".join(texts) or "nothing")


def bot_actions(env: Any) -> Iterator[int]:
    """Yield the actions of BabyAI's bot, which knows the whole grid.

    Args:
        env: Environment of BabyAI after its reset; it must be stepped between two actions.
    """
    from minigrid.utils.baby_ai_bot import BabyAIBot

    bot = BabyAIBot(env.unwrapped)
    while True:
        yield int(bot.replan())


def build_tokenizer() -> Any:
    """Build a tokenizer of these texts, a ``transformers.PreTrainedTokenizerFast`` with a chat template."""
    return chat_tokenizer(_WORDS)


def _name(kind: int, color: int, state: int) -> str:
    """Return the name of what a cell holds; the empty string for what is not named."""
    name = _KINDS[int(kind)]
    if name in _NOT_NAMED:
        return ""
    opened = f"{_STATES[int(state)]} " if name == "door" else ""
    return f"{opened}{_COLORS[int(color)]} {name}" if name in _COLORED else name


def _place(aside: int, ahead: int) -> str:
    sides = f" {abs(aside)} {'left' if aside < 0 else 'right'}" if aside else ""
    return f"{sides}{f' {ahead} ahead' if ahead else ''}"
