"""The ``embodyflow`` command: its options, and what each of its commands calls."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from embodyflow import __version__
from embodyflow.cli.completion import complete_experiment, complete_flow, complete_run, complete_run_name
from embodyflow.cli.exit_codes import returns_code
from embodyflow.cli.plain_text import given_path
from embodyflow.errors import ConfigError
from embodyflow.project import rooms_note

app = typer.Typer(
    help="Prefect runs the experiment, Ray runs the tensors.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback
    context_settings={"help_option_names": ["-h", "--help"]},
)

Flow = Annotated[
    str | None,
    typer.Option(
        help="training flow (default: the one of the chosen algorithm)",
        metavar="NAME",
        autocompletion=complete_flow,
    ),
]
RunFolderPath = Annotated[
    Path,
    typer.Argument(
        help="folder of the run, such as runs/mine", metavar="RUN", autocompletion=complete_run, parser=given_path
    ),
]
RunName = Annotated[
    str, typer.Argument(help="name of the run, or its folder", metavar="RUN", autocompletion=complete_run_name)
]
RunRoot = Annotated[Path, typer.Option(help="folder that holds the runs' folders", metavar="FOLDER", parser=given_path)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 failure, 2 bad input, 130 or 143 stopped by a signal."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may hold what no text and no terminal can
        sys.stdout.reconfigure(errors="backslashreplace")
    is_given = bool(sys.argv[1:] if arguments is None else arguments)  # no words show the help, which Typer prints
    try:
        code = app(arguments, prog_name="embodyflow", standalone_mode=not is_given)
    except SystemExit as end:
        code = end.code
    except typer.TyperException as mistake:
        print(_in_one_line(mistake), file=sys.stderr)
        return mistake.exit_code
    return code if isinstance(code, int) else 0


def _in_one_line(mistake: typer.TyperException) -> str:
    """Return a mistake in the words of a command line, with the command that it belongs to."""
    command = getattr(getattr(mistake, "ctx", None), "command_path", "embodyflow")
    message = " ".join(mistake.format_message().split()).rstrip(".")
    return f"{command}: {message}; `{command} --help` says what is allowed"


def _show_version(asked: bool) -> None:
    if asked:
        print(f"embodyflow {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="show the version and exit", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


# --- A project and what it runs on --------------------------------------------------------------------------------


@app.command("init", help="create a project in a new folder, or upgrade one")
@returns_code
def _init(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="folder of the project, such as mine; with --upgrade by default the current one", parser=given_path
        ),
    ] = None,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="bring a project to the installed version; keep your changes")
    ] = False,
) -> int:
    from embodyflow.cli.project import init
    from embodyflow.cli.project import upgrade as upgrading

    if upgrade:
        return upgrading.upgrade(folder or Path())
    if folder is None:
        raise ConfigError("folder: must be given, such as in `embodyflow init mine`")
    return init.init(folder)


@app.command("doctor", help="show what this machine offers")
@returns_code
def _doctor() -> int:
    from embodyflow.cli.doctor import report

    print(report())
    return 0


@app.command("check-env", help="check an environment: seeds, determinism, speed; exit 1 on failure")
@returns_code
def _check_env(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="id|key=value",
            help="Gymnasium id, or module:id; experiment, env and overrides, as for a run; 'env.' may be left out",
        ),
    ],
) -> int:
    from embodyflow.cli.environments.check_env import show

    first, *rest = words
    return show(None, words) if "=" in first else show(first, rest)


@app.command("config", help="show every key of a run's configuration and what it means")
@returns_code
def _config(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="key=value", help="experiment and overrides, as for a run")
    ] = None,
    flow: Flow = None,
) -> int:
    from embodyflow.cli.config import show_config

    return show_config(flow, words or [])


@app.command("port", help="port a workflow file of siiRL; exit 2 if it cannot be ported")
@returns_code
def _port(
    workflow: Annotated[Path, typer.Argument(help="YAML or JSON file of siiRL", parser=given_path)],
    out: Annotated[
        Path | None, typer.Option(help="file to write (default: print it)", metavar="FILE", parser=given_path)
    ] = None,
    experiment: Annotated[str | None, typer.Option(help="experiment to write with the settings of agents")] = None,
    share_weights: Annotated[bool, typer.Option("--share-weights", help="train one policy for all agents")] = False,
) -> int:
    from embodyflow.cli.project.port import port

    return port(workflow, out, experiment, share_weights)


# --- The stack ----------------------------------------------------------------------------------------------------


@app.command("up", help="start Ray, the Prefect server and a Prefect worker; Ctrl-C stops them")
@returns_code
def _up(
    detach: Annotated[bool, typer.Option("--detach", help="return as soon as the stack is ready")] = False,
) -> int:
    from embodyflow.cli import up

    _note_rooms()
    return up.detached() if detach else up.foreground()


@app.command("down", help="stop the stack from another terminal; name the runs that this stops")
@returns_code
def _down() -> int:
    from embodyflow.cli import up

    return up.down()


@app.command("status", help="show the running stack; exit 1 if none is up")
@returns_code
def _status() -> int:
    from embodyflow.cli import up

    _note_rooms()
    return up.status()


# --- Runs ---------------------------------------------------------------------------------------------------------


@app.command("run", help="run an experiment; start and stop a local stack if none is up")
@returns_code
def _run(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="key=value", help="iterations, run_id, resume, if_exists=resume or Hydra overrides"),
    ] = None,
    flow: Flow = None,
    experiment: Annotated[
        str | None,
        typer.Option(
            help="name of a file in configs/experiment (default: embodied)",
            metavar="NAME",
            autocompletion=complete_experiment,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="seed of every random draw (default: the experiment's)")] = None,
) -> int:
    from embodyflow.cli.run import run_experiment

    _note_rooms()
    flags = {"experiment": experiment, "seed": seed}
    given = [f"{key}={value}" for key, value in flags.items() if value is not None]
    return run_experiment(flow, [*given, *(words or [])])


@app.command("runs", help="list the runs: state, experiment, iteration, success, age, folder")
@returns_code
def _runs(run_root: RunRoot = Path("runs")) -> int:
    from embodyflow.cli.run_folders.runs import show_runs

    return show_runs(run_root)


@app.command("logs", help="print the log of a run, its run.log")
@returns_code
def _logs(
    run: RunName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="print further lines until the run ends")] = False,
    run_root: RunRoot = Path("runs"),
) -> int:
    from embodyflow.cli.run_folders.runs import show_log

    return show_log(run_root, run, follow=follow)


@app.command("answer", help="answer the question of a paused run; without an answer, show the question")
@returns_code
def _answer(
    run: RunName,
    answer: Annotated[
        Literal["go_on", "roll_back", "cancel"] | None, typer.Argument(help="how the run goes on (default: ask)")
    ] = None,
    run_root: RunRoot = Path("runs"),
) -> int:
    from embodyflow.cli.run_folders.answer import give_answer

    return give_answer(run_root, run, answer)


@app.command("explain", help="say where the time of a run goes, and what would make it faster")
@returns_code
def _explain(run: RunName, run_root: RunRoot = Path("runs")) -> int:
    from embodyflow.cli.speed.explain import show_explanation

    return show_explanation(run_root, run)


@app.command("compare", help="compare runs: results, time, configuration, curves")
@returns_code
def _compare(
    runs: Annotated[
        list[str],
        typer.Argument(help="names of the runs, or their folders", metavar="RUN", autocompletion=complete_run_name),
    ],
    picture: Annotated[
        Path | None,
        typer.Option(help="file to draw curves to, ending in .png or .svg", metavar="FILE", parser=given_path),
    ] = None,
    run_root: RunRoot = Path("runs"),
) -> int:
    from embodyflow.cli.comparison.compare import show_comparison

    return show_comparison(run_root, runs, picture)


@app.command("trace", help="join the trace of a run into one file, which Perfetto opens")
@returns_code
def _trace(
    run: RunName,
    otlp: Annotated[
        str | None,
        typer.Option(help="collector of OpenTelemetry to send it to, such as http://localhost:4318", metavar="ADDRESS"),
    ] = None,
    run_root: RunRoot = Path("runs"),
) -> int:
    from embodyflow.cli.run_folders.trace import show_trace

    return show_trace(run_root, run, otlp)


@app.command("ledger", help="show and check the record of a run")
@returns_code
def _ledger(run: RunFolderPath) -> int:
    from embodyflow.cli.run_folders.ledger import show_ledger

    return show_ledger(run)


@app.command("reproduce", help="train again from the record of a run and compare every digest; exit 1 at a difference")
@returns_code
def _reproduce(
    run: RunName,
    iterations: Annotated[
        str | None, typer.Option(help="iterations to repeat, such as 3..7 (default: all)", metavar="FIRST..LAST")
    ] = None,
    run_root: RunRoot = Path("runs"),
) -> int:
    from embodyflow.cli.reproduction.reproduce import reproduce

    return reproduce(run_root, run, iterations)


@app.command("episodes", help="list the episodes that a run keeps")
@returns_code
def _episodes(
    run: RunFolderPath,
    iteration: Annotated[int | None, typer.Option(help="iteration that played them (default: all)")] = None,
    task: Annotated[str | None, typer.Option(help="name of their task (default: all)", metavar="NAME")] = None,
    outcome: Annotated[
        Literal["success", "failure"] | None, typer.Option(help="how they ended (default: both)")
    ] = None,
    page: Annotated[int, typer.Option(help="page to show", min=1)] = 1,
    page_size: Annotated[int, typer.Option(help="most episodes of a page; 0 shows all", min=0)] = 100,
) -> int:
    from embodyflow.cli.episodes.episode_list import EpisodeFilter, show_episodes

    return show_episodes(run, EpisodeFilter(iteration, task, outcome, page, page_size))


@app.command("replay", help="replay an episode; exit 1 if it differs from the record")
@returns_code
def _replay(run: RunFolderPath, uid: Annotated[int, typer.Argument(help="uid of the episode", metavar="UID")]) -> int:
    from embodyflow.cli.episodes.replay import replay

    return replay(run, uid)


@app.command("export-dataset", help="replay the episodes that a run keeps; write them as a LeRobot data set")
@returns_code
def _export_dataset(
    run: RunFolderPath,
    output: Annotated[
        Path | None,
        typer.Option(
            help="folder to write (default: dataset in the run's folder)", metavar="FOLDER", parser=given_path
        ),
    ] = None,
    iteration: Annotated[int | None, typer.Option(help="iteration that played them (default: all)")] = None,
    task: Annotated[str | None, typer.Option(help="name of their task (default: all)", metavar="NAME")] = None,
    outcome: Annotated[
        Literal["success", "failure"] | None, typer.Option(help="how they ended (default: both)")
    ] = None,
    images: Annotated[
        Literal["video", "png"], typer.Option(help="files of images: mp4, or PNG, which loses nothing")
    ] = "video",
    fps: Annotated[float | None, typer.Option(help="frames per second (default: the environment's render_fps)")] = None,
) -> int:
    from embodyflow.cli.episodes.episode_list import EpisodeFilter
    from embodyflow.cli.episodes.export_dataset import ExportOptions, export_dataset

    return export_dataset(run, EpisodeFilter(iteration, task, outcome), ExportOptions(output, images, fps))


Cores = Annotated[int | None, typer.Option(help="cores per machine (default: 2; of a forecast, those of this machine)")]
NumParams = Annotated[
    str | None, typer.Option(help="number of parameters, such as 7B (default: those of the configured policy)")
]
SharedDevices = Annotated[
    Literal["colocated", "disaggregated", "hybrid"] | None,
    typer.Option(help="how groups share devices (default: colocated)"),
]
ForecastFrom = Annotated[
    list[str] | None,
    typer.Option("--from", help="forecast from a run's record; further runs tell what does not scale with rows"),
]
Assumptions = Annotated[
    list[str] | None, typer.Option(metavar="name=number", help="assumption of a forecast, such as tflops=312")
]


@app.command("plan", help="show where a pipeline's nodes would run on a cluster")
@returns_code
def _plan(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="key=value", help="pipeline.yaml=… and other overrides")
    ] = None,
    flow: Flow = None,
    nodes: Annotated[int, typer.Option(help="number of machines")] = 1,
    cpus: Cores = None,
    gpus: Annotated[int, typer.Option(help="GPUs per machine")] = 0,
    device_gib: Annotated[
        float | None, typer.Option(help="memory per GPU, or per core's share (default: not checked)")
    ] = None,
    model: NumParams = None,
    placement: SharedDevices = None,
    tensor_parallel: Annotated[int, typer.Option(help="ranks that share one copy of a rollout model")] = 1,
    picture: Annotated[
        Path | None,
        typer.Option(help="file to draw to, ending in .svg, .dot or .mmd (Mermaid)", metavar="FILE", parser=given_path),
    ] = None,
    runs: ForecastFrom = None,
    assume: Assumptions = None,
    run_root: RunRoot = Path("runs"),
) -> int:
    from embodyflow.cli.plan import PlanOptions, show_plan

    if runs:
        from embodyflow.cli.forecast import ForecastOptions, show_forecast

        if flow or placement or device_gib is not None:
            raise ConfigError("--flow, --placement and --device-gib: only used without --from")
        return show_forecast(
            ForecastOptions(
                runs=runs,
                words=words or [],
                nodes=nodes,
                cpus=cpus,
                gpus=gpus,
                model=model,
                tensor_parallel=tensor_parallel,
                assume=assume or [],
                picture=picture,
                run_root=run_root,
            )
        )
    if assume:
        raise ConfigError("--assume: only used with --from")
    return show_plan(
        PlanOptions(
            words=words or [],
            flow=flow,
            nodes=nodes,
            cpus=2 if cpus is None else cpus,
            gpus=gpus,
            device_gib=device_gib,
            model=model,
            placement=placement or "colocated",
            tensor_parallel=tensor_parallel,
            picture=picture,
        )
    )


def _note_rooms() -> None:
    if (note := rooms_note(Path.cwd())) is not None:
        print(note, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
