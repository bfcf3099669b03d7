"""The ``embodyflow`` command."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.error import URLError

from embodyflow import __version__
from embodyflow.errors import ConfigError
from embodyflow.project import make_importable, older_rooms


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 failure, 2 bad input, 130 or 143 stopped by a signal."""
    options = _parser().parse_args(arguments)
    make_importable()  # the project's rooms and the user's own modules, as for `python -m flows.grpo`
    # Each command imports what it needs when it runs, so --help is quick.
    from embodyflow.stack.processes import exit_on_signals
    from embodyflow.stack.stack import StackError

    exit_on_signals()
    try:
        code = int(options.command(options))
        sys.stdout.flush()
        return code
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except StackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output, such as head, closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit does not fail too
        return 1
    except (URLError, ConnectionError) as error:
        print(f"error: the Prefect server went away: {error}", file=sys.stderr)
        return 1


_DESCRIPTION = "Prefect runs the experiment, Ray runs the tensors."
_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="embodyflow", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_project_commands(commands)
    _add_stack_commands(commands)
    _add_run(commands.add_parser("run", help="run an experiment; start and stop a local stack if none is up"))
    _add_record_commands(commands)
    _add_plan(commands.add_parser("plan", help="show where a pipeline's nodes would run on a cluster"))
    return parser


def _add_project_commands(commands: _Commands) -> None:
    init = commands.add_parser("init", help="create a project in a new folder")
    init.add_argument("folder", type=Path, help="folder of the project, such as mine")
    init.set_defaults(command=_init)
    commands.add_parser("doctor", help="show what this machine offers").set_defaults(command=_doctor)

    check = commands.add_parser("check-env", help="check an environment: seeds, determinism, speed; exit 1 on failure")
    check.add_argument(
        "words",
        nargs="+",
        metavar="id or key=value",
        help="Gymnasium id, or module:id; experiment, env and overrides, as for a run; 'env.' may be left out",
    )
    check.set_defaults(command=_check_env)

    config = commands.add_parser("config", help="show every key of a run's configuration and what it means")
    config.add_argument("--flow", help="training flow (default: the one of the chosen algorithm)")
    config.add_argument("words", nargs="*", metavar="key=value", help="experiment and overrides, as for a run")
    config.set_defaults(command=_config)

    port = commands.add_parser("port", help="port a workflow file of siiRL; exit 2 if it cannot be ported")
    port.add_argument("workflow", type=Path, help="YAML or JSON file of siiRL")
    port.add_argument("--out", type=Path, help="file to write (default: print it)")
    port.set_defaults(command=_port)


def _add_stack_commands(commands: _Commands) -> None:
    up = commands.add_parser("up", help="start Ray, the Prefect server and a Prefect worker; Ctrl-C stops them")
    up.add_argument("--detach", action="store_true", help="return as soon as the stack is ready")
    up.set_defaults(command=_up)
    commands.add_parser("down", help="stop the stack from another terminal").set_defaults(command=_down)
    commands.add_parser("status", help="show the running stack; exit 1 if none is up").set_defaults(command=_status)


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument("--flow", help="training flow (default: the one of the chosen algorithm)")
    run.add_argument("--experiment", help="name of a file in configs/experiment (default: embodied)")
    run.add_argument("--seed", type=int, help="seed of every random draw (default: the experiment's)")
    run.add_argument("words", nargs="*", metavar="key=value", help="iterations, run_id, resume or Hydra overrides")
    run.set_defaults(command=_run)


def _add_record_commands(commands: _Commands) -> None:
    folder = "folder of the run, such as runs/mine"
    ledger = commands.add_parser("ledger", help="show and check the record of a run")
    ledger.add_argument("run", type=Path, help=folder)
    ledger.set_defaults(command=_ledger)
    episodes = commands.add_parser("episodes", help="list the episodes that a run keeps")
    episodes.add_argument("run", type=Path, help=folder)
    episodes.set_defaults(command=_episodes)
    replay = commands.add_parser("replay", help="replay an episode; exit 1 if it differs from the record")
    replay.add_argument("run", type=Path, help=folder)
    replay.add_argument("uid", type=int, help="uid of the episode")
    replay.set_defaults(command=_replay)


def _add_plan(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("--flow", help="training flow (default: the one of the chosen algorithm)")
    plan.add_argument("--nodes", type=int, default=1, help="number of machines (default: %(default)s)")
    plan.add_argument("--cpus", type=int, default=2, help="cores per machine (default: %(default)s)")
    plan.add_argument("--gpus", type=int, default=0, help="GPUs per machine (default: none)")
    plan.add_argument("--device-gib", type=float, help="memory per GPU, or per core's share (default: not checked)")
    plan.add_argument("--model", help="number of parameters, such as 7B (default: memory is left out)")
    plan.add_argument(
        "--placement",
        choices=("colocated", "disaggregated", "hybrid"),
        default="colocated",
        help="how groups share devices (default: %(default)s)",
    )
    plan.add_argument("--tensor-parallel", type=int, default=1, help="ranks that share one copy of a rollout model")
    plan.add_argument("--picture", type=Path, help="file to draw to, ending in .svg, .dot or .mmd (Mermaid)")
    plan.add_argument("words", nargs="*", metavar="key=value", help="pipeline.yaml=… and other overrides")
    plan.set_defaults(command=_plan)


def _init(options: argparse.Namespace) -> int:
    from embodyflow.cli.init import init

    return init(options.folder)


def _ledger(options: argparse.Namespace) -> int:
    from embodyflow.cli.ledger import show_ledger

    return show_ledger(options.run)


def _episodes(options: argparse.Namespace) -> int:
    from embodyflow.cli.replay import show_episodes

    return show_episodes(options.run)


def _replay(options: argparse.Namespace) -> int:
    from embodyflow.cli.replay import replay

    return replay(options.run, options.uid)


def _up(options: argparse.Namespace) -> int:
    from embodyflow.cli import up

    _note_older_rooms()
    return up.detached() if options.detach else up.foreground()


def _down(options: argparse.Namespace) -> int:
    from embodyflow.stack.stack import stop_stack
    from embodyflow.stack.stack_folder import StackFolder

    print("stopped" if stop_stack(StackFolder.here()) else "no stack is up here")
    return 0


def _status(options: argparse.Namespace) -> int:
    from embodyflow.cli import up

    return up.status()


def _doctor(options: argparse.Namespace) -> int:
    from embodyflow.cli.doctor import report

    print(report())
    return 0


def _check_env(options: argparse.Namespace) -> int:
    from embodyflow.cli.check_env import show

    first, *rest = options.words
    return show(None, options.words) if "=" in first else show(first, rest)


def _config(options: argparse.Namespace) -> int:
    from embodyflow.cli.config import show_config

    return show_config(options.flow, options.words)


def _port(options: argparse.Namespace) -> int:
    from embodyflow.cli.port import port

    return port(options.workflow, options.out)


def _plan(options: argparse.Namespace) -> int:
    from embodyflow.cli.plan import show_plan

    return show_plan(options)


def _run(options: argparse.Namespace) -> int:
    from embodyflow.cli.run import run_experiment

    _note_older_rooms()
    flags = [f"{key}={value}" for key in ("experiment", "seed") if (value := getattr(options, key)) is not None]
    return run_experiment(options.flow, [*flags, *options.words])


def _note_older_rooms() -> None:
    if (note := older_rooms(Path.cwd())) is not None:
        print(note, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
