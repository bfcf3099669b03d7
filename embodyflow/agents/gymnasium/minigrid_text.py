"""MiniGrid and BabyAI by text (Chevalier-Boisvert et al. 2019, arXiv:1810.08272; 2023, arXiv:2306.13831).

The agent sees a square of the grid before it. An observation becomes a list of what is where, seen from the agent, and
the mission::

    (2 ahead, 1 left) red ball (3 ahead) grey box (4 ahead) wall. go to the red ball

A place is one token and a name is one token, the same in list and mission. So a small model finds a named object's
place in the token before the name. The name of a closed door is that of a door in a mission, such as ``red door``; the
names of others begin with their state.
"""

from typing import Any

from embodyflow.prompts.word_tokenizer import chat_tokenizer

# Numbers in observations of MiniGrid, as its minigrid.core.constants has them.
_KINDS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
_COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
_STATES = ("open", "closed", "locked")
_NOT_NAMED = {"unseen", "empty", "floor", "wall", "agent"}
_COLORED = {"door", "key", "ball", "box"}
_FARTHEST = 12
_ASIDE = 6


def _place(aside: int, ahead: int) -> str:
    """Return a place seen from the agent, in parentheses; ``aside`` is positive to the right."""
    sides = f"{abs(aside)} {'left' if aside < 0 else 'right'}" if aside else ""
    return f"({', '.join(filter(None, (f'{ahead} ahead' if ahead else '', sides)))})"


_NAMES = (
    *(f"{color} {name}" for color in _COLORS for name in ("key", "ball", "box")),
    *(f"{state} {color} door" for state in _STATES if state != "closed" for color in _COLORS),
    *(f"{color} door" for color in _COLORS),
    *("goal", "lava", "wall"),
)
_PLACES = [
    _place(aside, ahead) for aside in range(-_ASIDE, _ASIDE + 1) for ahead in range(_FARTHEST + 1) if aside or ahead
]
_WORDS = (
    *_NAMES,
    *(f"{space}{place} " for place in (*_PLACES, "(carried)") for space in ("", " ")),
    *(f"{verb}{article} " for verb in (". go to ", ". pick up ", ". open ", ". put ") for article in ("the", "a")),
    *("left", "right", "forward", "pickup", "drop", "toggle", "done", "nothing", "error: ", "allowed are "),
    *(" next to the ", " next to a ", ", ", ". "),
    *"abcdefghijklmnopqrstuvwxyz0123456789 ",
)


def describe(observation: Any, num_steps: int) -> str:
    """Return the text of an observation of MiniGrid: what is seen where, the nearest first, and the mission.

    Args:
        observation: ``image``, uint8 [W, H, 3], holds kind, color and state of the cells before the agent, which stands
            at the middle of the last row and looks to the first; ``mission`` is the instruction.
        num_steps: Steps so far; the text does not depend on them.
    """
    image = observation["image"]
    width, height, _ = image.shape
    column, row = width // 2, height - 1
    seen = []
    for x in range(width):
        for y in range(height):
            if (x, y) != (column, row) and (name := _name(*image[x, y])):
                aside, ahead = x - column, row - y
                seen.append((abs(aside) + ahead, aside, f"{_place(aside, ahead)} {name}"))
    texts = [text for _, _, text in sorted(seen)]
    if carried := _name(*image[column, row]):
        texts.insert(0, f"(carried) {carried}")
    walls = [ahead for ahead in range(1, height) if _KINDS[int(image[column, row - ahead, 0])] == "wall"]
    if walls:
        texts.append(f"{_place(0, walls[0])} wall")
    return f"{' '.join(texts) or 'nothing'}. {observation['mission']}"


def build_tokenizer() -> Any:
    """Build a tokenizer of these texts, a ``transformers.PreTrainedTokenizerFast`` with a chat template."""
    return chat_tokenizer(_WORDS)


def _name(kind: int, color: int, state: int) -> str:
    """Return the name of what a cell holds; the empty string for what is not named."""
    name = _KINDS[int(kind)]
    if name in _NOT_NAMED:
        return ""
    opened = f"{_STATES[int(state)]} " if name == "door" and _STATES[int(state)] != "closed" else ""
    return f"{opened}{_COLORS[int(color)]} {name}" if name in _COLORED else name
