"""``embodyflow plan --from RUN``: how long an iteration would take elsewhere, from the record of a run."""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from embodyflow.cli.plan import PlanOptions, divided, memory_notes, run_sizes
from embodyflow.cli.run_folders.found_runs import find_run
from embodyflow.config import RunConfig
from embodyflow.config.grouped import GroupedConfig
from embodyflow.errors import ConfigError
from embodyflow.forecast.candidates import other_orders, placements
from embodyflow.forecast.forecast import SIMULATIONS, Forecast, forecast
from embodyflow.forecast.gantt import to_gantt
from embodyflow.forecast.machine import Machine
from embodyflow.forecast.record import RunRecord, read_runs
from embodyflow.forecast.report import of_bytes, seconds, table
from embodyflow.forecast.roofline import Target, assumed, on_devices
from embodyflow.forecast.scaling import changed, pooled, scaled, shape_of
from embodyflow.forecast.schedule import Shape
from embodyflow.graph.planning.memory_estimate import ModelSize, parse_num_params
from embodyflow.orchestration.request.request import split_word
from embodyflow.stack.services import num_cores

WIDTH = 80
MOST_CANDIDATES = 5
"""Largest number of candidates that are shown."""
FEW_SIMULATIONS = 3
"""Simulations of each candidate, to choose those that are shown."""


@dataclass(frozen=True)
class ForecastOptions:
    """The runs to forecast from, and what to forecast.

    Attributes:
        runs: Names of the runs, or their folders; the first one's iterations are scaled.
        words: Words ``key=value`` that differ from the first run's.
        nodes: Number of machines.
        cpus: Cores per machine; ``None`` is those of this machine.
        gpus: GPUs per machine; 0 forecasts machines like the one of the run.
        model: Number of parameters, such as ``7B``; ``None`` is the run's policy.
        tensor_parallel: Ranks that share one copy of a rollout model.
        assume: Words ``name=number`` of assumptions about devices.
        picture: SVG file to draw to; ``None`` draws nothing.
        run_root: Folder that holds the runs' folders.
    """

    runs: Sequence[str]
    words: Sequence[str] = ()
    nodes: int = 1
    cpus: int | None = None
    gpus: int = 0
    model: str | None = None
    tensor_parallel: int = 1
    assume: Sequence[str] = ()
    picture: Path | None = None
    run_root: Path = Path("runs")


def show_forecast(options: ForecastOptions) -> int:
    """Print a forecast and its candidates, write its picture if one is asked for, and return the exit code.

    Raises:
        ConfigError: A run has no record to forecast from, or a word or an option is wrong.
    """
    if options.picture is not None and options.picture.suffix != ".svg":
        raise ConfigError(f"--picture={options.picture}: allowed with --from are files ending in .svg")
    records = read_runs([find_run(options.run_root, run) for run in options.runs], Machine(num_cores()))
    for each in records[1:]:
        if each.graph.nodes.keys() != records[0].graph.nodes.keys():
            raise ConfigError(
                f"--from {each.name}: has other nodes than {records[0].name}; allowed are runs of one job"
            )
    record, *others = pooled(records)
    config = changed(record.config, dict(split_word(word, "rollout.num_workers=4") for word in options.words))
    if options.gpus:
        found = _on_gpus(options, record, config)
    else:
        if options.model or options.assume:
            raise ConfigError("--model and --assume: only used with --gpus, for whose devices there are formulas")
        found = _on_cores(options, record, others, config)
    _write_picture(options.picture, found)
    return 0


def _on_cores(options: ForecastOptions, record: RunRecord, others: Sequence[RunRecord], config: RunConfig) -> Forecast:
    """Print the forecast on machines like the one of the run, and return it."""
    cores = float(options.nodes * (options.cpus or num_cores()))
    samples, shape = scaled(record, config, others), shape_of(config)
    simulated = partial(forecast, record.graph, machine=replace(record.machine, cores=cores))
    as_it_ran = forecast(record.graph, record.samples, shape_of(record.config), machine=record.machine)
    asked = simulated(samples, shape)
    candidates = _fastest(
        other_orders(config, shape), lambda each, number: simulated(samples, each, simulations=number)
    )
    print("\n".join([*_facts(record, as_it_ran), *_lines(asked, cores, candidates)]))
    planned = divided(config, PlanOptions(cpus=shape.workers + shape.ranks), shape.ranks)
    _print_wrapped(f"{moved_bytes(record, config)}\n{memory_notes(planned)}")
    return asked


def _facts(record: RunRecord, as_it_ran: Forecast) -> Iterator[str]:
    """Yield lines on the run and on how well the simulation repeats it."""
    measured, queued = median(record.measured), median(record.queued)
    number = len(record.samples)
    yield f"{record.name}: {number} iteration{'s' * (number != 1)}, without the first; {record.machine.cores:g} cores"
    without = f", {seconds(queued)} s of them without a core" if queued >= 0.005 * measured else ""
    yield f"As it ran: {seconds(measured)} s measured{without}; {seconds(as_it_ran.seconds)} s simulated."


def _lines(asked: Forecast, cores: float, candidates: Sequence[Forecast]) -> Iterator[str]:
    """Yield the table of the forecast and that of the fastest candidates."""
    yield f"\nForecast of an iteration on {cores:g} cores, with its commit and without evaluations:"
    yield from table([asked])
    yield "\nFastest of the candidates; idle are rollout workers, then trainer ranks:"
    yield from table(candidates)


def _fastest(shapes: Iterable[Shape], forecast_of: Callable[[Shape, int], Forecast]) -> list[Forecast]:
    """Return the forecasts of the fastest shapes, which a few simulations tell; the fastest first."""
    roughly = sorted((forecast_of(shape, FEW_SIMULATIONS) for shape in shapes), key=_preference)
    return sorted((forecast_of(each.shape, SIMULATIONS) for each in roughly[:MOST_CANDIDATES]), key=_preference)


def _preference(found: Forecast) -> tuple[float, int, int]:
    """Return seconds by three digits; of shapes that are as fast, the one with fresher rows comes first."""
    return float(f"{found.seconds:.3g}"), found.shape.staleness, found.shape.num_groups or 0


def _on_gpus(options: ForecastOptions, record: RunRecord, config: RunConfig) -> Forecast:
    """Print the forecast of the fastest placement on GPUs, and return it."""
    if not isinstance(config, GroupedConfig):
        raise ConfigError(f"--gpus={options.gpus}: formulas know robot and language jobs, not job={config.kind}")
    target, number = target_of(options, config), options.nodes * options.gpus
    shapes = list(placements(config, number, options.tensor_parallel))
    if not shapes:
        raise ConfigError(
            f"--gpus={options.gpus}: {number} devices are more than {config.rollout.num_groups} groups and "
            f"{config.full_batch} rows have work for; raise rollout.num_groups"
        )
    candidates = _fastest(
        shapes,
        lambda each, number: forecast(record.graph, on_devices(record, config, target, each), each, simulations=number),
    )
    best = candidates[0]
    print(f"{record.name} on {options.nodes} × {options.gpus} GPUs, {target.model.num_params:,.0f} parameters")
    print("\nFastest of the candidates, by formulas of --assume's figures:")
    print("\n".join(table(candidates)))
    machines = PlanOptions(
        nodes=options.nodes, gpus=options.gpus, model=options.model, tensor_parallel=options.tensor_parallel
    )
    planned = divided(config, machines, best.shape.ranks)
    largest = max(planned.memory) / 2**30
    _print_wrapped(f"{_weights_bytes(target)} Largest memory of a device: {largest:.3g} GiB.\n{memory_notes(planned)}")
    return best


def target_of(options: ForecastOptions, config: RunConfig) -> Target:
    """Return the machines and the model that the options name."""
    given = assumed(dict(split_word(word, "tflops=312") for word in options.assume))
    if options.model:
        model = critic = ModelSize(parse_num_params(options.model, "--model"))
    else:
        model, sized = run_sizes(config)
        critic = sized or model
        if config.critic.features == "policy":  # a pass of the head is one of the policy too
            critic = ModelSize(model.num_params, critic.num_trained)
    cpus = options.cpus or num_cores()
    return Target(options.nodes, cpus, model, critic, options.tensor_parallel, given)


def moved_bytes(record: RunRecord, config: RunConfig) -> str:
    """Return a line on the bytes of an iteration: each worker reads the weights, and rows move with their number."""
    before, after = record.config, config
    weights = 4.0 * run_sizes(before)[0].num_params
    of_rows = max(record.bytes_moved - weights * (before.rollout.num_workers + 1), 0.0)
    of_rows *= after.rows_per_iteration / before.rows_per_iteration
    read = weights * (after.rollout.num_workers + 1)
    return f"Bytes in an iteration: {of_bytes(of_rows)} of rows, {of_bytes(read)} of weights."


def _weights_bytes(target: Target) -> str:
    moved = 4.0 * target.model.num_params * (1 + target.machines)
    return f"Bytes of weights in an iteration: {of_bytes(moved)}, gathered and sent to each machine."


def _print_wrapped(text: str) -> None:
    """Print an empty line and a text, each of its lines in as many as a terminal needs."""
    print("", *(part for line in text.splitlines() for part in textwrap.wrap(line, WIDTH)), sep="\n")


def _write_picture(path: Path | None, found: Forecast) -> None:
    if path is None:
        return
    try:
        path.write_text(to_gantt(found))
    except OSError as error:
        raise ConfigError(f"--picture={path}: cannot be written: {error.strerror}") from error
    print(f"picture={path}")
