"""``embodyflow plan``: the placement of a pipeline's nodes on a cluster, computed without one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.errors import ConfigError
from embodyflow.graph import load_pipeline
from embodyflow.graph.drawing import to_dot, to_mermaid, to_svg, to_table
from embodyflow.graph.planning.memory_estimate import FORWARD_BYTES, ModelSize, checkpoint_bytes, parse_num_params
from embodyflow.graph.planning.planner import Cluster, Layout, Plan, PlanSettings, plan
from embodyflow.graph.planning.process_memory import ProcessMemory, process_memory
from embodyflow.orchestration.request.compatibility import check_compatibility
from embodyflow.orchestration.request.replay_space import replayed_bytes
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
        model: Number of parameters, such as ``7B``; ``None`` is the configured policy's.
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


def planned_memory(words: Sequence[str]) -> ProcessMemory:
    """Return the memory of a run's processes on one machine without GPUs, each rank a core.

    Args:
        words: Words ``key=value`` of the run.

    Raises:
        ConfigError: The configuration is wrong, or its policy cannot be sized.
    """
    config = compose_config(parse_arguments(words, None).hydra_overrides())
    cores = config.rollout.num_workers + config.trainer.num_ranks
    return process_memory(divided(config, PlanOptions(words, cpus=cores), config.trainer.num_ranks))


def divided(config: RunConfig, options: PlanOptions, num_ranks: int) -> Plan:
    """Return the plan of a configuration with some devices for its trainer and the others for its rollout workers.

    Args:
        config: Configuration; its graph is planned.
        options: Cluster and model.
        num_ranks: Devices that train; if they are all, they also roll out.
    """
    cluster = Cluster(options.nodes, options.cpus, options.gpus, options.device_gib)
    settings = _settings(options, config)
    if num_ranks < cluster.num_workers:
        share = num_ranks / cluster.num_workers
        settings = replace(settings, placement="disaggregated", train_share=share)
    return plan(load_pipeline(**config.pipeline.source()), cluster, settings)


def show_plan(options: PlanOptions) -> int:
    """Print the plan as tables and as Mermaid; write its picture if ``--picture`` is given.

    Raises:
        ConfigError: The configuration, the graph or the cluster is wrong; one line per mistake.
    """
    draw = PICTURES.get(options.picture.suffix) if options.picture is not None else None
    if options.picture is not None and draw is None:
        raise ConfigError(f"--picture={options.picture}: allowed are files ending in {', '.join(PICTURES)}")
    if options.device_gib is not None and not 0 < options.device_gib < math.inf:
        raise ConfigError(f"--device-gib={options.device_gib:g}: must be above 0")
    if options.tensor_parallel < 1:
        raise ConfigError(f"--tensor-parallel={options.tensor_parallel}: must be at least 1")
    config = compose_config(parse_arguments(options.words, options.flow).hydra_overrides())
    check_compatibility(config)
    cluster = Cluster(options.nodes, options.cpus, options.gpus, options.device_gib)
    graph = load_pipeline(**config.pipeline.source())
    planned = plan(graph, cluster, _settings(options, config))
    devices = f"{options.gpus} GPUs" if options.gpus else f"{options.cpus} cores"
    print(f"{graph.graph_id} on {options.nodes} × {devices}\n")
    print(to_table(planned))
    print(memory_notes(planned))
    print(f"{disk_note(config, planned.settings)}\n")
    print(to_mermaid(graph, planned))
    if draw is not None and options.picture is not None:
        drawn = draw(graph, planned)
        try:
            options.picture.write_text(drawn)
        except OSError as error:
            raise ConfigError(f"--picture={options.picture}: cannot be written: {error.strerror}") from error
        print(f"picture={options.picture}")
    return 0


def _settings(options: PlanOptions, config: RunConfig) -> PlanSettings:
    """Return the settings of a plan; the sizes of models are the configuration's unless ``--model`` is given."""
    dtype = config.precisions.get("rollout.generation.dtype", "float32")
    has_adapters = config.trainer.lora is not None
    if options.model:
        num_params = parse_num_params(options.model, "--model")
        only_adapters = has_adapters and config.warm_start is None  # a warm start trains all weights
        model, critic = ModelSize(num_params, num_trained=0 if only_adapters else None), None
    else:
        model, critic = run_sizes(config)
    return PlanSettings(
        placement=options.placement,
        branches="serial",  # as at run time: every node uses all ranks of its group
        rollout_layout=Layout(tensor=options.tensor_parallel),
        train_layout=Layout(tensor=config.trainer.tensor_parallel_size),
        model=model,
        critic=critic,
        rollout_bytes=4 if dtype == "float32" else 2,
        has_adapters=has_adapters,
    )


def run_sizes(config: RunConfig) -> tuple[ModelSize, ModelSize | None]:
    """Return the sizes of a run's policy, and of its critic if it has one.

    A micro-batch has ``trainer.micro_batch_rows`` rows, or a rank's share of a mini-batch, of full-length episodes.

    Raises:
        ConfigError: A model cannot be sized; see :mod:`embodyflow.training.model_sizes`.
    """
    from embodyflow.rollouts.embodied.embodied_rollout import SMALLEST_BATCH  # these take seconds to import
    from embodyflow.training.model_sizes import count_critic, count_policy

    policy, critic, trainer = count_policy(config), count_critic(config), config.trainer
    kept, passed = 0, 0
    if isinstance(config, EmbodiedConfig):
        share = -(-config.full_batch // (trainer.num_minibatches * trainer.num_ranks))
        rows = trainer.micro_batch_rows or share
        kept = policy.training_activations * rows * config.num_decisions
        passed = policy.acting_activations * max(config.rollout.envs_per_worker, SMALLEST_BATCH)
    model = ModelSize(policy.num_params, policy.num_trained, kept, passed)
    return model, None if critic is None else ModelSize(critic.num_params, critic.num_trained)


def memory_notes(planned: Plan) -> str:
    """Return the lines about memory under the tables."""
    model = planned.settings.model
    sized = f"{model.num_params:,.0f} parameters, {model.trained:,.0f} of them trained."
    known = "" if model.training_activations else "activations, "
    counted = f"Memory counts weights and optimizers, without {known}key-value caches and simulators."
    if planned.cluster.gpus_per_node:
        return f"{sized} {counted}\n"
    processes = process_memory(planned)
    sizes = {"rollout worker": processes.rollout, "trainer, rank 0": processes.trainer, "/dev/shm": processes.shared}
    peaks = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in sizes.items())
    return f"{sized} {counted}\nPeak GiB of processes, without environments: {peaks}.\n"


def disk_note(config: RunConfig, settings: PlanSettings) -> str:
    """Return a line about the disk of a run's folder: checkpoints, and the images of a replay buffer.

    While a checkpoint is written, the disk has that of iteration 0, which includes the frozen weights, those that the
    run keeps, and the new one.
    """
    models = [each for each in (settings.model, settings.critic) if each is not None]
    each = sum(map(checkpoint_bytes, models))
    frozen = FORWARD_BYTES * sum(model.num_params - model.trained for model in models)
    most = each * (config.kept_checkpoints + 2) + frozen
    images = replayed_bytes(config) if isinstance(config, EmbodiedConfig) else 0
    replay = f", and at most {images / 1e9:.3g} GB for the images of the replay buffer" if images else ""
    return (
        f"Disk of run_root: {each / 1e9:.3g} GB for a checkpoint, at most {most / 1e9:.3g} GB for all of them{replay}."
    )
