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
        sharing: Share s by which work takes more CPU seconds when very many processes share each core.
    """

    cores: float = math.inf
    services: float = 0.0
    sharing: float = SHARING

    @property
    def left(self) -> float:
        """Cores that the services leave."""
        return self.cores - self.services

    def dilation(self, demand: float) -> float:
        """Return the factor by which work takes more CPU seconds while all processes together want ``demand`` cores, D.

        Processes that take turns on a core evict one another's data from its caches. The factor is 1 + s (1 - c / D) on
        c cores if D is above c, and else 1.
        """
        return 1.0 + self.sharing * max(1.0 - self.cores / demand, 0.0) if demand > 0 else 1.0


NO_LIMIT = Machine()
"""A machine with cores for all processes."""
