"""``embodyflow plan``: the placement of a pipeline's nodes on a cluster, computed without one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError
from embodyflow.graph import load_pipeline
from embodyflow.graph.drawing import to_dot, to_mermaid, to_svg, to_table
from embodyflow.graph.memory_estimate import ModelSize, parse_num_params
from embodyflow.graph.planner import Cluster, Layout, PlanSettings, plan
from embodyflow.orchestration.request.compatibility import check_compatibility
from embodyflow.orchestration.request.request import parse_arguments

PICTURES = {".svg": to_svg, ".dot": to_dot, ".mmd": to_mermaid}


@dataclass(frozen=True)
class PlanOptions:
    """The cluster and the settings to plan for.

    Attributes:
        words: Words ``key=value``, as for a run.
        flow: Name of the training flow; ``None`` is the one of the chosen algorithm.
        nodes: Number of machines.
        cpus, gpus: Cores and GPUs per machine.
        device_gib: Memory per GPU, or per core's share, in GiB; ``None`` checks no memory.
        model: Number of parameters, such as ``7B``; ``None`` leaves memory out.
        placement: How groups share devices.
        tensor_parallel: Ranks that share one copy of a rollout model.
        picture: File to draw to; ``None`` draws nothing.
    """

    words: Sequence[str] = ()
    flow: str | None = None
    nodes: int = 1
    cpus: int = 2
    gpus: int = 0
    device_gib: float | None = None
    model: str | None = None
    placement: Literal["colocated", "disaggregated", "hybrid"] = "colocated"
    tensor_parallel: int = 1
    picture: Path | None = None


def show_plan(options: PlanOptions) -> int:
    """Print the plan as tables and as Mermaid; write its picture if ``--picture`` is given.

    Raises:
        ConfigError: The configuration, the graph or the cluster is wrong; one line per mistake.
    """
    draw = PICTURES.get(options.picture.suffix) if options.picture is not None else None
    if options.picture is not None and draw is None:
        raise ConfigError(f"--picture={options.picture}: allowed are files ending in {', '.join(PICTURES)}")
    if options.device_gib is not None and not options.model:
        raise ConfigError(f"--device-gib={options.device_gib:g}: needs --model, the number of parameters, such as 7B")
    if options.device_gib is not None and not 0 < options.device_gib < math.inf:
        raise ConfigError(f"--device-gib={options.device_gib:g}: must be above 0")
    if options.tensor_parallel < 1:
        raise ConfigError(f"--tensor-parallel={options.tensor_parallel}: must be at least 1")
    config = compose_config(parse_arguments(options.words, options.flow).hydra_overrides())
    check_compatibility(config)
    cluster = Cluster(options.nodes, options.cpus, options.gpus, options.device_gib)
    model = ModelSize(parse_num_params(options.model, "--model")) if options.model else ModelSize()
    dtype = config.precisions.get("rollout.generation.dtype", "float32")
    has_adapters = config.trainer.lora is not None
    settings = PlanSettings(
        placement=options.placement,
        branches="serial",  # as at run time: every node uses all ranks of its group
        rollout_layout=Layout(tensor=options.tensor_parallel),
        train_layout=Layout(tensor=config.trainer.tensor_parallel_size),
        model=model,
        rollout_bytes=4 if dtype == "float32" else 2,
        has_adapters=has_adapters,
        is_frozen=has_adapters and config.warm_start is None,  # a warm start trains all weights
    )
    graph = load_pipeline(**config.pipeline.source())
    planned = plan(graph, cluster, settings)
    devices = f"{options.gpus} GPUs" if options.gpus else f"{options.cpus} cores"
    print(f"{graph.graph_id} on {options.nodes} × {devices}\n")
    print(to_table(planned))
    if options.model:
        print("Memory counts weights and optimizers, without activations, adapters, key-value caches and simulators.\n")
    print(to_mermaid(graph, planned))
    if draw is not None and options.picture is not None:
        drawn = draw(graph, planned)
        try:
            options.picture.write_text(drawn)
        except OSError as error:
            raise ConfigError(f"--picture={options.picture}: cannot be written: {error.strerror}") from error
        print(f"picture={options.picture}")
    return 0
