"""A memory of rendered and encoded chats, which sibling episodes ask for again.

The episodes of a group begin with the same chat and get many of the same messages. A chat template and a tokenizer take
a tenth of a millisecond for each, which is as long as a small model takes for a token of the episode.
"""

import hashlib
import pickle
import threading
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

from embodyflow.agents.chat.transcript import Tokens

Text = TypeVar("Text", str, Tokens)

ROOM = 2**22
"""Most characters and tokens of the results that a memory keeps."""

PLAIN = (str, bytes, int, tuple)
"""Types whose values tell everything about them; a union of types would take three times as long to check."""


class ChatMemory:
    """The results of functions that depend on nothing but their key. Threads may share a memory.

    Args:
        room: Most characters and tokens to keep; the oldest results make room for new ones.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._known: dict[Hashable, str | Tokens] = {}
        self._lock = threading.Lock()

    def recall(self, make: Callable[[], Text], *key: object) -> Text:
        """Return the result of ``make``, from an earlier call with the same key if there was one.

        Args:
            make: Function that computes the result.
            key: Everything that the result depends on. What cannot be pickled is computed each time.
        """
        name = _name_of(key)
        if name is None:
            return make()
        known = self._known.get(name)
        return self._keep(name, make()) if known is None else cast(Text, known)

    def _keep(self, name: Hashable, result: Text) -> Text:
        with self._lock:
            if name not in self._known:
                self._known[name] = result
                self._room -= len(result)
            while self._room < 0:
                self._room += len(self._known.pop(next(iter(self._known))))
        return result


def _name_of(key: tuple[object, ...]) -> Hashable:
    """Return a key of texts, numbers and tokens as it is, since a digest takes ten times as long; else its digest."""
    for part in key:
        if not isinstance(part, PLAIN):
            return digest_of(key)
    try:
        hash(key)
    except TypeError:  # a tuple of messages
        return digest_of(key)
    return key


def digest_of(value: object) -> bytes | None:
    """Return the SHA-256 of a value's pickle, or ``None`` if it cannot be pickled."""
    try:
        return hashlib.sha256(pickle.dumps(value, pickle.HIGHEST_PROTOCOL)).digest()
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
