"""What counts as an address where something listens."""

import socket
from collections.abc import Iterator

import pytest

from embodyflow.process.ports import answers


@pytest.fixture
def port() -> Iterator[int]:
    """A port of loopback on which a server listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_server_that_listens_answers(port: int, scheme: str) -> None:
    assert answers(f"{scheme}127.0.0.1:{port}")


@pytest.mark.parametrize("turns", [1, 2, -1])
def test_a_number_above_the_last_port_is_not_taken_modulo_65536(port: int, turns: int) -> None:
    with socket.create_connection(("127.0.0.1", port + 65536)):  # glibc does so
        pass
    assert not answers(f"127.0.0.1:{port + 65536 * turns}")


@pytest.mark.parametrize("text", ["0", "+{}", " {}", "{}_0", "", "port", "٤٢"])
def test_what_is_not_a_port_number_does_not_answer(port: int, text: str) -> None:
    assert not answers(f"127.0.0.1:{text.format(port)}")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "..", "a" * 70])
def test_what_is_not_a_host_does_not_answer(port: int, host: str) -> None:
    assert not answers(f"{host}:{port}")


@pytest.mark.parametrize("address", ["auto", "local"])
def test_other_forms_pass(address: str) -> None:
    assert answers(address)
