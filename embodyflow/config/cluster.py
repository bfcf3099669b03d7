"""What a run's workers run on, and where its metrics go."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from embodyflow.config.base import Config, PositiveFloat
from embodyflow.config.buffer import BufferConfig


class ClusterConfig(Config):
    """What the workers run on.

    Attributes:
        device: of the policy in trainer and rollout workers.
        backend: of torch.distributed in the trainer group.
        cpus_per_worker, gpus_per_worker: what each worker asks of Ray.
        start_timeout: seconds the workers may take to start.
        node_timeout: seconds one node of the graph may take.
        max_recoveries: how often the same step of a run is done again after a part of the cluster failed.
        buffer: of each Ray node.
    """

    device: Literal["cpu", "cuda"]
    backend: Literal["gloo", "nccl"]
    cpus_per_worker: Annotated[float, Field(ge=0)]
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0
    start_timeout: PositiveFloat = 120.0
    node_timeout: PositiveFloat = 600.0
    max_recoveries: Annotated[int, Field(ge=0, strict=True)] = 5
    buffer: BufferConfig = BufferConfig()

    @model_validator(mode="after")
    def _backend_fits(self) -> "ClusterConfig":
        if self.backend == "nccl" and self.device != "cuda":
            raise ValueError("backend=nccl needs device=cuda; allowed with device=cpu is gloo")
        return self

    @model_validator(mode="after")
    def _workers_see_gpus(self) -> "ClusterConfig":
        if self.device == "cuda" and self.gpus_per_worker == 0:
            raise ValueError(
                "gpus_per_worker=0: Ray would give such workers no GPU of theirs; allowed with device=cuda is a share "
                "of one, such as 0.25, or a whole number"
            )
        if self.gpus_per_worker > 1 and not self.gpus_per_worker.is_integer():
            raise ValueError(f"gpus_per_worker={self.gpus_per_worker:g}: allowed above 1 are whole numbers")
        return self


class TrackingConfig(Config):
    """Where metrics go besides ``metrics.jsonl``.

    Attributes:
        tensorboard: write event files to the run's folder.
        wandb: mode of Weights & Biases.
        wandb_project: its project.
    """

    tensorboard: bool = True
    wandb: Literal["disabled", "offline", "online"] = "disabled"
    wandb_project: str = "embodyflow"
