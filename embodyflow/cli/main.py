"""The ``embodyflow`` command."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError

from embodyflow.errors import ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0, 1 failed, 2 refused, 130 and 143 stopped by a signal."""
    options = _parser().parse_args(arguments)
    if (here := os.getcwd()) not in sys.path:  # modules of the user's are found as by `python -m flows.grpo`
        sys.path.insert(0, here)
    # What the commands need is imported when one runs: --help is quick.
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
    except BrokenPipeError:  # whoever read our output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is not tried again at exit
        return 1
    except (URLError, ConnectionError) as error:
        print(f"error: the Prefect server went away: {error}", file=sys.stderr)
        return 1


_DESCRIPTION = "Prefect runs the experiment, Ray runs the tensors."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="embodyflow", description=_DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="command")

    up = commands.add_parser("up", help="start Ray, Prefect server and worker; Ctrl-C stops them")
    up.add_argument("--detach", action="store_true", help="return as soon as they run")
    up.set_defaults(command=_up)
    commands.add_parser("down", help="stop them from another terminal").set_defaults(command=_down)
    commands.add_parser("status", help="show what runs").set_defaults(command=_status)
    ledger = commands.add_parser("ledger", help="show what a run has on record, and check it")
    ledger.add_argument("run", type=Path, help="its folder, such as runs/mine")
    ledger.set_defaults(command=_ledger)
    episodes = commands.add_parser("episodes", help="list the episodes that a run keeps")
    episodes.add_argument("run", type=Path, help="its folder, such as runs/mine")
    episodes.set_defaults(command=_episodes)
    replay = commands.add_parser("replay", help="play an episode again; 1 if it is not the one on record")
    replay.add_argument("run", type=Path, help="its folder, such as runs/mine")
    replay.add_argument("uid", type=int, help="of the episode")
    replay.set_defaults(command=_replay)
    commands.add_parser("doctor", help="show what this machine offers").set_defaults(command=_doctor)

    check = commands.add_parser("check-env", help="check an environment: seeds, determinism, speed; 1 if it fails")
    check.add_argument("id", help="Gymnasium id, or module:id")
    check.add_argument("words", nargs="*", metavar="key=value", help="of env: kwargs.size=3, adapter.success_info=…")
    check.set_defaults(command=_check_env)

    config = commands.add_parser("config", help="show all keys of a run's configuration, with what they mean")
    config.add_argument("--flow", help="training flow (default: the one of the chosen algorithm)")
    config.add_argument("words", nargs="*", metavar="key=value", help="experiment and overrides, as of a run")
    config.set_defaults(command=_config)

    run = commands.add_parser("run", help="run an experiment, with a stack of its own if none is up")
    run.add_argument("--flow", help="training flow (default: the one of the chosen algorithm)")
    run.add_argument("--experiment", help="one of configs/experiment (default: embodied)")
    run.add_argument("--seed", type=int, help="of every random draw (default: the experiment's own)")
    run.add_argument("words", nargs="*", metavar="key=value", help="iterations, run_id, resume or Hydra overrides")
    run.set_defaults(command=_run)

    _add_plan(
        commands.add_parser("plan", help="show where a pipeline's nodes would run on a cluster, as table and picture")
    )
    return parser


def _add_plan(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("--flow", help="training flow (default: the one of the chosen algorithm)")
    plan.add_argument("--nodes", type=int, default=1, help="machines (default: %(default)s)")
    plan.add_argument("--cpus", type=int, default=2, help="cores of a machine (default: %(default)s)")
    plan.add_argument("--gpus", type=int, default=0, help="GPUs of a machine (default: none)")
    plan.add_argument("--device-gib", type=float, help="memory of a GPU, or of a core's share (default: unchecked)")
    plan.add_argument("--model", help="its parameters, such as 7B (default: memory is left out)")
    plan.add_argument("--placement", choices=("colocated", "disaggregated", "hybrid"), default="colocated")
    plan.add_argument("--tensor-parallel", type=int, default=1, help="ranks that a rollout model is cut over")
    plan.add_argument("--picture", type=Path, help="write one: a file ending in .svg, .dot or .mmd (Mermaid)")
    plan.add_argument("words", nargs="*", metavar="key=value", help="pipeline.yaml=… and other overrides")
    plan.set_defaults(command=_plan)


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

    return up.detached() if options.detach else up.foreground()


def _down(options: argparse.Namespace) -> int:
    from embodyflow.stack.stack import stop_stack
    from embodyflow.stack.stack_folder import StackFolder

    print("stopped" if stop_stack(StackFolder.here()) else "nothing is up here")
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

    return show(options.id, options.words)


def _config(options: argparse.Namespace) -> int:
    from embodyflow.cli.config import show_config

    return show_config(options.flow, options.words)


def _plan(options: argparse.Namespace) -> int:
    from embodyflow.cli.plan import show_plan

    return show_plan(options)


def _run(options: argparse.Namespace) -> int:
    from embodyflow.cli.run import run_experiment

    flags = [f"{key}={value}" for key in ("experiment", "seed") if (value := getattr(options, key)) is not None]
    return run_experiment(options.flow, [*flags, *options.words])


if __name__ == "__main__":
    sys.exit(main())
