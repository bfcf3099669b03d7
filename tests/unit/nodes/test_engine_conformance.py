"""The comparison with a protocol finds what a caller would stumble over."""

from typing import Any, Protocol

import pytest
from conformance import differences


class Base(Protocol):
    @property
    def size(self) -> int: ...


class Player(Base, Protocol):
    def play(self, episodes: list[int], /, split: str, *, seed: int = 0) -> int: ...


def player(play: Any) -> Any:
    return type("Mine", (), {"size": 3, "play": staticmethod(play)})()


@pytest.mark.parametrize(
    "play",
    [
        lambda episodes, split, *, seed=0: 0,
        lambda questions, split, seed=0, more=None: 0,
        lambda questions, split, *rest, seed=0, **kwargs: 0,
    ],
)
def test_what_can_be_called_alike_conforms(play: Any) -> None:
    assert differences(Player, player(play)) == []


@pytest.mark.parametrize(
    ("play", "difference"),
    [
        (3, "play: is no method"),
        (lambda episodes, split: 0, "play: seed is missing"),
        (lambda episodes, part, *, seed=0: 0, "play: split is missing, play: part is required"),
        (lambda split, episodes, *, seed=0: 0, "play: split is not argument 1"),
        (lambda episodes, split, *, seed=1: 0, "play: seed has the default 1, not 0"),
        (lambda episodes, split, more, *, seed=0: 0, "play: more is required"),
        (lambda episodes, *, split, seed=0: 0, "play: split is not argument 1"),
    ],
)
def test_a_difference_is_named(play: Any, difference: str) -> None:
    assert ", ".join(differences(Player, player(play))).startswith(difference)


def test_attributes_of_bases_count() -> None:
    assert differences(Player, object()) == ["play is missing", "size is missing"]
