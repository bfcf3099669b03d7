"""The ranks of one machine form their group on the loopback interface only, others on the one between machines."""

import multiprocessing
import os
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection

import psutil
import pytest
import torch
import torch.distributed as dist

from embodyflow.process import rendezvous
from embodyflow.process.rendezvous import INTERFACE_VARIABLES, LOOPBACK, hold_address, join_group


@pytest.fixture(autouse=True)
def _own_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rendezvous, "_chosen", {})
    for name in INTERFACE_VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def listening(pid: int | None = None) -> set[str]:
    """Return the addresses that a process listens on."""
    found = psutil.Process(pid).net_connections("inet")
    return {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}


def sum_of_ranks(address: str, rank: int, answers: Connection) -> None:
    join_group("gloo", address, rank, 2)
    numbers = torch.tensor(rank + 1)
    dist.all_reduce(numbers)
    answers.send((int(numbers), listening()))
    answers.recv()  # a rank that leaves early would close its sockets before the other looks
    os._exit(0)


def test_a_held_port_cannot_be_taken_and_is_used_by_the_group() -> None:
    address = hold_address(LOOPBACK)
    host, _, port = address.rpartition(":")
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind((host, int(port)))
    join_group("gloo", address, 0, 1)
    assert listening() == {LOOPBACK}
    with socket.create_connection((host, int(port)), timeout=5.0):
        pass


def test_two_ranks_listen_on_the_loopback_interface_only() -> None:
    context = multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        address = f"{LOOPBACK}:{probe.getsockname()[1]}"
    pipes = [context.Pipe() for _ in range(2)]
    ranks = [context.Process(target=sum_of_ranks, args=(address, i, pipe[1])) for i, pipe in enumerate(pipes)]
    for each in ranks:
        each.start()
    try:
        for ours, _ in pipes:
            assert ours.poll(60)
            assert ours.recv() == (3, {LOOPBACK})
    finally:
        for each in ranks:
            each.kill()
            each.join()


def test_a_group_over_machines_uses_the_interface_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    join_group("gloo", hold_address(LOOPBACK), 0, 1)
    loopback = os.environ["GLOO_SOCKET_IFNAME"]
    assert os.environ["NCCL_SOCKET_IFNAME"] == loopback
    dist.destroy_process_group()
    address, interface = own_address()
    join_group("gloo", hold_address(address), 0, 1)
    assert os.environ["GLOO_SOCKET_IFNAME"] == interface
    assert "NCCL_SOCKET_IFNAME" not in os.environ
    assert address in listening()
    dist.destroy_process_group()
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    join_group("gloo", hold_address(LOOPBACK), 0, 1)
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == (loopback, "eth7")


def own_address() -> tuple[str, str]:
    """Return an address of this machine that others may reach, and the name of its interface."""
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family == socket.AF_INET and not each.address.startswith("127."):
                return each.address, name
    pytest.skip("this machine has the loopback interface alone")


def test_a_held_address_that_no_group_used_is_released() -> None:
    host, _, port = hold_address(LOOPBACK).rpartition(":")
    hold_address(LOOPBACK)
    with socket.socket() as other:
        other.bind((host, int(port)))
