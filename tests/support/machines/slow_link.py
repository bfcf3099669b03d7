"""A link that delays and loses packets: two virtual network cards, and a process that carries frames between them.

It stands in for the queueing discipline ``netem``, which some kernels are built without. The file is also the program
of the process, ``python slow_link.py <descriptor> <descriptor> <seconds> <loss> <seed>``, which uses the standard
library alone and ends when its standard input is closed.
"""

import errno
import fcntl
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

TUN = Path("/dev/net/tun")
FRAME_BYTES = 65536  # a card of the default MTU sends at most 1514 at once
_SET_INTERFACE, _TAP, _NO_PACKET_INFORMATION = 0x400454CA, 0x0002, 0x1000


def missing() -> str:
    """Return why this machine cannot have such a link, or an empty string."""
    if not TUN.is_char_device():
        return f"no slow link here: {TUN} is missing"
    try:
        os.close(_open_card(f"ef{os.getpid()}probe"))
    except OSError as error:
        return f"no slow link here: {error}"
    return ""


@dataclass(frozen=True)
class Quality:
    """What a link does to packets.

    Attributes:
        seconds: Time that a packet takes in one direction; a round trip takes twice as long.
        loss: Probability that a packet is lost, in each direction.
        seed: Seed of the draws that decide which packets are lost.
    """

    seconds: float
    loss: float
    seed: int = 0


SLOW = Quality(seconds=0.025, loss=0.01, seed=1)
"""A round trip of 50 ms, and one packet of a hundred is lost in each direction."""


@dataclass
class Counts:
    """Packets of both directions together.

    Attributes:
        passed: Number of packets that arrived.
        lost: Number of packets that the link lost.
    """

    passed: int = 0
    lost: int = 0


class SlowLink:
    """Two network cards of this machine and the process between them; they may be moved into namespaces.

    Args:
        ends: Names of the two cards.
        quality: What the link does to packets.
    """

    def __init__(self, ends: tuple[str, str], quality: Quality) -> None:
        self._counts: Counts | None = None
        cards = list[int]()
        try:
            for name in ends:
                cards.append(_open_card(name))
            words = (*map(str, cards), str(quality.seconds), str(quality.loss), str(quality.seed))
            self._process = subprocess.Popen(
                [sys.executable, __file__, *words], pass_fds=cards, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        finally:
            for card in cards:  # a card goes with its last descriptor, which is that of the process
                os.close(card)

    def close(self) -> Counts:
        """Remove the cards; return what the link did. Another call returns the same."""
        if self._counts is None:
            self._counts = Counts(**json.loads(self._process.communicate(timeout=20)[0]))
        return self._counts


def _open_card(name: str) -> int:
    """Create a network card; return the descriptor that reads and writes its frames."""
    card = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(card, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _TAP | _NO_PACKET_INFORMATION))
    except OSError:
        os.close(card)
        raise
    return card


class _Direction:
    """Frames on their way from one card to another, in the order in which they were sent."""

    def __init__(self, source: int, target: int, quality: Quality, draws: random.Random) -> None:
        self._source, self._target, self._quality, self._draws = source, target, quality, draws
        self._under_way = deque[tuple[float, bytes]]()
        self.counts = Counts()

    def take(self) -> None:
        """Read all frames that wait at the source, and lose some."""
        for frame in self._waiting():
            if self._draws.random() < self._quality.loss:
                self.counts.lost += 1
            else:
                self._under_way.append((time.monotonic() + self._quality.seconds, frame))

    def _waiting(self) -> Iterator[bytes]:
        with suppress(BlockingIOError):
            while True:
                yield os.read(self._source, FRAME_BYTES)

    def deliver(self) -> float | None:
        """Write the frames that have arrived; return the seconds until the next one does, ``None`` without any."""
        while self._under_way:
            due, frame = self._under_way[0]
            if (left := due - time.monotonic()) > 0:
                return left
            self._under_way.popleft()
            try:
                os.write(self._target, frame)
            except OSError as error:
                if error.errno != errno.EIO:  # the card is down, as a plug that was pulled
                    raise
            else:
                self.counts.passed += 1
        return None


def carry(near: int, far: int, quality: Quality, until: int) -> Counts:
    """Carry frames between two cards until a descriptor is closed at its other end.

    Args:
        near: Descriptor of a card.
        far: Descriptor of the other one.
        quality: What happens to frames on their way.
        until: Descriptor whose other end the caller closes.
    """
    pairs = (near, far), (far, near)
    both = [_Direction(*pair, quality, random.Random(f"{quality.seed} {n}")) for n, pair in enumerate(pairs)]
    waiting = select.poll()
    for descriptor in (near, far, until):
        waiting.register(descriptor, select.POLLIN)
    ready = list[tuple[int, int]]()
    while until not in dict(ready):
        for direction in both:
            direction.take()
        pauses = [pause for direction in both if (pause := direction.deliver()) is not None]
        ready = waiting.poll(1000 * min(pauses) if pauses else None)
    counts = [direction.counts for direction in both]
    return Counts(sum(each.passed for each in counts), sum(each.lost for each in counts))


def main(near: str, far: str, seconds: str, loss: str, seed: str) -> None:
    """Carry frames until standard input is closed, then write the counts."""
    counts = carry(int(near), int(far), Quality(float(seconds), float(loss), int(seed)), sys.stdin.fileno())
    print(json.dumps(asdict(counts)))


if __name__ == "__main__":
    main(*sys.argv[1:])
