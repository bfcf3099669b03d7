"""The configuration of the buffers that pass rows between graph nodes."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from embodyflow.durations import Seconds

Positive = Annotated[float, Field(gt=0)]


class BufferConfig(BaseModel):
    """The buffer that each Ray node keeps for rows that travel between graph nodes.

    Attributes:
        folder: Folder of a tmpfs that holds shards in memory. Its files are unnamed, so a crash leaves none behind.
        memory_gb: GB (10⁹ bytes) of that memory that one buffer may use; ``null`` means half of what is free when the
            buffer starts.
        spill_folder: Folder for shards that do not fit in memory. Its files are unnamed too.
        patience: Seconds that a worker waits for room before it gives up.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    folder: str = "/dev/shm"
    memory_gb: Positive | None = None
    spill_folder: str = "/tmp"
    patience: Seconds = 60.0
