"""What a buffer is told."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]


class BufferConfig(BaseModel):
    """The buffer that each Ray node has for the rows on their way between graph nodes.

    Attributes:
        folder: where shards lie in memory, of a tmpfs; files there have no name, so that none is ever left over.
        memory_gb: GB (10⁹ bytes) of it that one buffer may take; ``null`` is half of what is free when it starts.
        spill_folder: where shards go that do not fit; files there have no name either.
        patience: seconds a worker waits for room before it gives up.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    folder: str = "/dev/shm"
    memory_gb: Positive | None = None
    spill_folder: str = "/tmp"
    patience: Positive = 60.0
