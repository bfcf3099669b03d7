"""What the files of ``deployments/`` refer to: settings, programs and their options, images."""

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import typer
from prefect.cli._app import _app as prefect_app
from prefect.settings import Settings
from prefect.settings.legacy import _get_valid_setting_names

from embodyflow.cli.main import app as embodyflow_app

ROOT = Path(__file__).resolve().parents[3]
DEPLOYMENTS = ROOT / "deployments"

OF_POSTGRES = {"POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB", "PGDATA"}
OF_RAY = {"RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}
SECRET = re.compile(r"PASSWORD|TOKEN|AUTH_STRING|CONNECTION_URL|API_KEY")


def unknown_settings(names: Iterable[str]) -> list[str]:
    """Return the environment variables that neither Postgres, Ray nor Prefect reads.

    Those of Prefect's integration with Kubernetes are checked where it is installed.
    """
    prefix = "PREFECT_INTEGRATIONS_KUBERNETES_"
    known = OF_POSTGRES | OF_RAY | set(_get_valid_setting_names(Settings))
    return sorted(name for name in names if name not in known and not name.startswith(prefix))


def check_command(words: Sequence[str]) -> None:
    """Parse a command as its program does; raise an error of the program for an unknown subcommand or option."""
    program, *rest = words
    if program == "prefect":
        rest = rest[1:] if rest[0] == "--no-prompt" else rest
        prefect_app.parse_args(rest, print_error=False, exit_on_error=False)
    elif program == "ray":
        from ray.scripts.scripts import cli as ray_cli  # imports Ray Serve, which takes seconds

        ray_cli.commands[rest[0]].make_context(rest[0], list(rest[1:]))
    elif program == "embodyflow":
        typer.main.get_command(embodyflow_app).commands[rest[0]].make_context(rest[0], list(rest[1:]))  # type: ignore[attr-defined]
    else:
        raise AssertionError(f"{program}: no program of ours")


def commands_in(script: str) -> list[list[str]]:
    """Return the commands of our programs in a shell script."""
    joined = script.replace("\\\n", " ")
    parts = re.split(r"&&|\|\||;|\n|&(?=\s|$)", joined)
    found = [shlex.split(part.strip().removeprefix("exec "), comments=True) for part in parts if "'" not in part]
    return [words for words in found if words and words[0] in ("prefect", "ray", "embodyflow")]


def is_pinned(image: str) -> bool:
    """Return True if an image has a tag with a version."""
    _, colon, tag = image.rpartition(":")
    return bool(colon) and re.match(r"\d+\.\d+", tag) is not None
