"""Which conversation has which slot of the cache, and which tokens the slots hold."""

from collections import deque
from collections.abc import Sequence

KEY = 6
"""Least number of tokens that are worth copying, by which slots are found."""

MAX_CANDIDATES = 16
"""Slots with the same first tokens that are compared with a prompt."""


class Slots:
    """The slots of a cache whose content depends on nothing but the tokens, so any slot may copy from any other.

    Args:
        num_slots: Number of slots.
    """

    def __init__(self, num_slots: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(num_slots)]
        self._owners: dict[int, int] = {}  # slot of each conversation, the least recently used first
        self._free = list(range(num_slots))  # the longest free first
        self._mixed: set[int] = set()  # slots whose keys and values several versions of the weights computed
        self._by_key: dict[tuple[int, ...], deque[int]] = {}  # slots that got these first tokens last

    @property
    def has_free(self) -> bool:
        """True if a slot is free."""
        return bool(self._free)

    def of(self, conversation: int) -> int | None:
        """Return the slot of a conversation, or ``None``."""
        return self._owners.get(conversation)

    def touch(self, conversation: int) -> None:
        """Mark the slot of a conversation, if it has one, as used."""
        slot = self._owners.pop(conversation, None)
        if slot is not None:
            self._owners[conversation] = slot

    def take(self, conversation: int) -> int:
        """Give a conversation a free slot and return it."""
        self._owners[conversation] = slot = self._free.pop(0)
        self._mixed.discard(slot)
        return slot

    def mark_mixed(self, slot: int) -> None:
        """Let no prompt copy from a slot until it is taken again."""
        self._mixed.add(slot)

    def release(self, conversation: int) -> None:
        """Free the slot of a conversation, if it has one; its content stays until the slot is taken."""
        slot = self._owners.pop(conversation, None)
        if slot is not None:
            self._free.append(slot)

    def release_oldest(self) -> None:
        """Free the slot of the conversation that has not used its own for the longest time."""
        self.release(next(iter(self._owners)))

    def remember(self, slot: int) -> None:
        """Let prompts that begin like a slot be found by :meth:`longest_prefix`."""
        recent = self._by_key.setdefault(key_of(self.tokens[slot]), deque(maxlen=MAX_CANDIDATES))
        if slot not in recent:
            recent.append(slot)

    def longest_prefix(self, prompt: Sequence[int]) -> tuple[int, int]:
        """Return a slot that holds a long prefix of a prompt without its last token, and the prefix's length.

        The prefix is the longest among a few slots that got such a prompt last.
        """
        best = (0, 0)
        for slot in self._by_key.get(key_of(prompt), ()):
            length = 0 if slot in self._mixed else self.shared(slot, prompt)
            best = (slot, length) if length > best[1] else best
            if length == len(prompt) - 1:
                break
        return best

    def shared(self, slot: int, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt a slot holds; the last one is never counted, because it is computed."""
        return common_length(self.tokens[slot], prompt[:-1])


def key_of(tokens: Sequence[int]) -> tuple[int, ...]:
    """Return the first tokens; prompts with equal ones may share more."""
    return tuple(tokens[:KEY])


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    same, limit = 0, min(len(left), len(right))
    if tuple(left[:limit]) == tuple(right[:limit]):
        return limit
    while limit - same > 1:  # the first ``same`` tokens agree, the first ``limit`` do not
        middle = (same + limit) // 2
        if tuple(left[same:middle]) == tuple(right[same:middle]):
            same = middle
        else:
            limit = middle
    return same
