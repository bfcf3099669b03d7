"""The configuration of a run that branches off another one."""

from typing import Annotated, Literal

from pydantic import Field

from embodyflow.config.base import Config, RunName


class BranchConfig(Config):
    """The run that this one begins with; the rest of the configuration is that run's, with what the request changes.

    Attributes:
        run: Name of the other run, in ``run_root``.
        iteration: Iteration of one of its checkpoints; ``null`` means the newest, which is then recorded here.
        take: Part of the other run to begin with. ``weights``: the policy's weights, its normaliser among them; they
            become iteration 0 and the reference, with fresh optimizers and critics. ``models``: likewise, but with the
            other run's optimizers and critics. ``everything``: also its reference, replay buffer, open episodes and
            metrics; the numbers of iterations go on, so with nothing changed the branch repeats the other run bit by
            bit.
    """

    run: RunName
    iteration: Annotated[int, Field(ge=0, strict=True)] | None = None
    take: Literal["weights", "models", "everything"] = "weights"

    def __str__(self) -> str:
        return f"{self.run}@{self.iteration}"
