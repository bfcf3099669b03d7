"""The cores that processes of a run share."""

import math
from dataclasses import dataclass

SHARING = 0.2
"""Default of :attr:`Machine.sharing`, as measured in small runs of two jobs on two cores."""


@dataclass(frozen=True)
class Machine:
    """The cores of a machine, and what shares them with the nodes of a run.

    Attributes:
        cores: Its cores; a fraction says that others use the rest, and infinite that they are not known.
        services: Cores that Ray, Prefect's server and the flow keep busy beside the nodes; 0 if that is not known.
        sharing: Share by which work takes more CPU seconds when very many processes share each core.
    """

    cores: float = math.inf
    services: float = 0.0
    sharing: float = SHARING

    @property
    def left(self) -> float:
        """Cores that the services leave."""
        return self.cores - self.services

    def dilation(self, demand: float) -> float:
        """Return how many times as many CPU seconds work takes while all processes want ``demand`` cores.

        Processes that take turns on a core take its caches from one another.
        """
        return 1.0 + self.sharing * max(1.0 - self.cores / demand, 0.0) if demand > 0 else 1.0


NO_LIMIT = Machine()
"""A machine with cores for all processes."""
