"""The hardware that a run's workers use, and the trackers that receive its metrics."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from embodyflow.config.base import Config
from embodyflow.config.buffer import BufferConfig
from embodyflow.durations import Seconds


class ClusterConfig(Config):
    """The hardware and the limits of the workers.

    Attributes:
        device: Device of the policy in trainer and rollout workers.
        backend: Communication backend of torch.distributed in the trainer group.
        cpus_per_worker: CPUs that each worker reserves in Ray; fractions are allowed.
        gpus_per_worker: GPUs that each worker reserves in Ray; a fraction below 1 shares a GPU between workers.
        start_timeout: Seconds that workers may take to start.
        node_timeout: Seconds that one node of the graph may take, or a streamed group. A worker that replaces a lost
            one has all of them again, after its start.
        head_timeout: Seconds that the head of the Ray cluster may be gone before the run ends. A large number makes
            sense where another head takes over its state.
        max_recoveries: Retries of the same step of a run after parts of the cluster failed.
        buffer: Buffer of each Ray node.
    """

    device: Literal["cpu", "cuda"]
    backend: Literal["gloo", "nccl"]
    cpus_per_worker: Annotated[float, Field(ge=0)]
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0
    start_timeout: Seconds = 120.0
    node_timeout: Seconds = 600.0
    head_timeout: Seconds = 6.0
    max_recoveries: Annotated[int, Field(ge=0, strict=True)] = 5
    buffer: BufferConfig = BufferConfig()

    @model_validator(mode="after")
    def _require_cuda_for_nccl(self) -> "ClusterConfig":
        if self.backend == "nccl" and self.device != "cuda":
            raise ValueError("backend=nccl needs device=cuda; allowed with device=cpu is gloo")
        return self

    @model_validator(mode="after")
    def _require_gpus_for_cuda(self) -> "ClusterConfig":
        if self.device == "cuda" and self.gpus_per_worker == 0:
            raise ValueError(
                "gpus_per_worker=0: Ray assigns no GPU to such workers; allowed with device=cuda are a fraction of "
                "one GPU, such as 0.25, and whole numbers"
            )
        if self.gpus_per_worker > 1 and not self.gpus_per_worker.is_integer():
            raise ValueError(f"gpus_per_worker={self.gpus_per_worker:g}: allowed above 1 are whole numbers")
        return self


class OtlpConfig(Config):
    """A collector of OpenTelemetry that receives the trace of a run.

    Attributes:
        endpoint: Address of the collector, which takes OTLP over HTTP, such as ``http://localhost:4318``.
    """

    endpoint: str

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, value: str) -> str:
        check_endpoint(value)
        return value


def check_endpoint(endpoint: str) -> None:
    """Check the address of a collector.

    Raises:
        ValueError: It is no address, or it has a password.
    """
    parts = urlsplit(endpoint)
    if parts.username is not None:
        raise ValueError(
            "must have no user name and no password; allowed are headers in the environment variable "
            "OTEL_EXPORTER_OTLP_HEADERS"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError(f"must be an address such as http://localhost:4318, not {endpoint}")


class TrackingConfig(Config):
    """The trackers that receive metrics, histograms, pictures and videos, and the trace of a run.

    Attributes:
        tensorboard: Write TensorBoard event files to the run's folder.
        wandb: Mode of Weights & Biases.
        wandb_project: Project in Weights & Biases.
        trace: Record what each process does when, in ``trace.json`` in the run's folder. Perfetto and
            chrome://tracing open it.
        otlp: Collector of OpenTelemetry to send the trace to, also while the run is at work; ``null`` sends it nowhere.
    """

    tensorboard: bool = True
    wandb: Literal["disabled", "offline", "online"] = "disabled"
    wandb_project: Annotated[str, Field(min_length=1)] = "embodyflow"
    trace: bool = False
    otlp: OtlpConfig | None = None

    @model_validator(mode="after")
    def _check_otlp(self) -> "TrackingConfig":
        if self.otlp is not None and not self.trace:
            raise ValueError("otlp: needs trace=true, which records the spans")
        return self
