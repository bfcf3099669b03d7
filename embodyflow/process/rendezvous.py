"""Forming of a torch.distributed group that no other machine can reach unless its own ranks must.

torch's store for the rendezvous has no authentication, and by default it listens on every interface. Gloo and NCCL
listen on the interface of the machine's host name. Here rank 0 binds the store's socket itself.
"""

import ipaddress
import os
import socket
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

LOOPBACK = "127.0.0.1"
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

_held: dict[str, socket.socket] = {}
_chosen: dict[str, str] = {}  # values of INTERFACE_VARIABLES that are not the user's


def hold_address(host: str) -> str:
    """Bind a free port of an address of this machine and hold it until this process leads a group there.

    Args:
        host: Address that the other ranks connect to; :data:`LOOPBACK` if all of them are on this machine.

    Returns:
        ``host:port``.
    """
    while _held:  # an earlier group may have failed before it was formed
        _held.popitem()[1].close()
    bound = _bind(host, 0)
    address = f"{host}:{bound.getsockname()[1]}"
    _held[address] = bound
    return address


def join_group(backend: str, address: str, rank: int, world_size: int) -> None:
    """Join the default process group that rank 0 leads at an address; all ranks must call it.

    On a loopback address Gloo and NCCL use the loopback interface. Between machines Gloo uses the interface through
    which this one reaches the address; NCCL finds those of the machine itself. ``GLOO_SOCKET_IFNAME`` and
    ``NCCL_SOCKET_IFNAME`` of the user's environment name others.

    Args:
        backend: Backend of :func:`torch.distributed.init_process_group`.
        address: ``host:port``; rank 0 binds it unless :func:`hold_address` did.
        rank: Index of this rank.
        world_size: Number of ranks.
    """
    import torch.distributed as dist

    host, _, port = address.rpartition(":")
    _choose_interfaces(host)
    store = _open_store(address, host, int(port), rank, world_size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def _open_store(address: str, host: str, port: int, rank: int, world_size: int) -> "Store":
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list its re-exports
    from torch.distributed.constants import default_pg_timeout

    if rank != 0:
        return TCPStore(host, port, world_size, False, default_pg_timeout)
    bound = _held.pop(address, None) or _bind(host, port)
    # The store owns the descriptor from here on, and closes it with the group.
    return TCPStore(host, port, world_size, True, default_pg_timeout, master_listen_fd=bound.detach())


def _bind(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.bind((host, port))
    return bound


def _choose_interfaces(host: str) -> None:
    """Set the variables of the backends, unless the user has."""
    gloo, nccl = INTERFACE_VARIABLES
    # Without a name Gloo takes the address of the host name, which on Debian and Ubuntu is a loopback one.
    interface = _interface_towards(host)
    chosen = {gloo: interface}
    if _is_loopback(host):
        chosen[nccl] = interface
    for name in INTERFACE_VARIABLES:
        if os.environ.get(name) != _chosen.pop(name, None):
            continue
        os.environ.pop(name, None)  # an earlier group of this process had other machines
        if name in chosen:
            os.environ[name] = _chosen[name] = chosen[name]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name
        return host == "localhost"


def _interface_towards(host: str) -> str:
    """Return the name of the interface whose address this machine has towards another one, such as ``eth0``."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # sends nothing
        own = probe.getsockname()[0]
    interfaces = psutil.net_if_addrs().items()
    # An IPv6 address may have its interface as a suffix.
    return next(name for name, each in interfaces if any(one.address.partition("%")[0] == own for one in each))
