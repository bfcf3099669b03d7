"""Text of the boards of PettingZoo's classic games."""

from typing import Any

import numpy as np

from embodyflow.prompts.word_tokenizer import chat_tokenizer

SQUARES = "abcdefghi"
"""Names of the squares of tic-tac-toe in PettingZoo's order, column by column."""
_WORDS = (*(f"player_{number}" for number in (1, 2)), *" .,:'?!abcdefghijklmnopqrstuvwxyz")


def board(observation: Any, player: str) -> str:
    """Return a board row by row, such as ``x.. .o. ...``: ``x`` the player who reads it, ``o`` the other one.

    Args:
        observation: Pieces, [W, H, 2] or [H, W, 2]: those of the player, then those of the other one.
        player: Name of the player; the observation already is its own.
    """
    own, other = np.moveaxis(np.asarray(observation, dtype=bool), -1, 0)
    signs = np.where(own, "x", np.where(other, "o", "."))
    return " ".join("".join(line) for line in signs)


def build_tokenizer() -> Any:
    """Build a tokenizer of boards and squares, a ``transformers.PreTrainedTokenizerFast`` with a chat template."""
    return chat_tokenizer(_WORDS)
