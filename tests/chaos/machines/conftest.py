"""A network of machines with a Prefect server, and a run on this machine alone to compare with."""

from collections.abc import Iterator

import network as machines_network
import pytest
from network import Network
from prefect_machine import prefect_server_at
from ray_machines import TWO_OF_EACH
from small_runs import Runs


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    """Yield a network without machines; skip where this one cannot have any."""
    if why := machines_network.missing():
        pytest.skip(why)
    with machines_network.network() as made:
        yield made


@pytest.fixture(scope="session")
def runs(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Yield runs that report to a server on the network. One of :data:`.TWO_OF_EACH` on this machine is ``alone``."""
    folder = tmp_path_factory.mktemp("machines")
    with prefect_server_at(network.address, folder / "server") as url:
        runs = Runs(folder, url)
        runs.run("alone", *TWO_OF_EACH)
        yield runs
