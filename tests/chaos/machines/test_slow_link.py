"""The link that tests put between machines delays and loses packets as they ask."""

import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import slow_link
from network import Machine, Network
from slow_link import Quality

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

QUALITY = Quality(seconds=0.025, loss=0.05, seed=1)
NUM_PACKETS, AT_ONCE, PORT = 2000, 50, 9999
ECHO = f"""
import socket
echo = socket.socket(type=socket.SOCK_DGRAM)
echo.bind(("", {PORT}))
print("ready", flush=True)
while True:
    text, sender = echo.recvfrom(100)
    echo.sendto(text, sender)
"""


def round_trips(machine: Machine) -> list[float]:
    """Send packets to a machine that returns them; return the seconds after which they came back, of those that did."""
    seconds = []
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.settimeout(0.5)
        for _ in range(NUM_PACKETS // AT_ONCE):
            for _ in range(AT_ONCE):
                probe.sendto(str(time.monotonic()).encode(), (machine.address, PORT))
            with suppress(TimeoutError):
                for _ in range(AT_ONCE):
                    seconds.append(-float(probe.recv(100)) + time.monotonic())
    return seconds


def test_a_packet_takes_its_time_and_as_many_are_lost_as_asked_for(network: Network) -> None:
    if why := slow_link.missing():
        pytest.skip(why)
    machine = network.add_machine(QUALITY)
    try:
        echo = subprocess.Popen(machine.command(sys.executable, "-c", ECHO), stdout=subprocess.PIPE, text=True)
        with echo:
            assert echo.stdout and echo.stdout.readline() == "ready\n"
            seconds = round_trips(machine)
            echo.kill()
        assert machine.link is not None
        counts = machine.link.close()
    finally:
        network.remove_machine(machine)
    assert min(seconds) >= 2 * QUALITY.seconds
    asked = QUALITY.loss * (NUM_PACKETS + (1 - QUALITY.loss) * NUM_PACKETS)
    assert asked / 1.5 < counts.lost < 1.5 * asked
    assert len(seconds) > NUM_PACKETS - 1.5 * asked
