"""``embodyflow port``: the pipeline file for a workflow file of siiRL, and a report of what changed."""

import re
import sys
import tempfile
from pathlib import Path

from embodyflow.cli.plain_text import in_one_line
from embodyflow.config.base import RUN_NAME_PATTERN
from embodyflow.errors import ConfigError
from embodyflow.graph.siirl.porting import Ported, port_workflow
from embodyflow.graph.yaml_loader import load_yaml
from embodyflow.project import is_project


def port(workflow: Path, out: Path | None, experiment: str | None = None, share_weights: bool = False) -> int:
    """Port a workflow file; report changes, and what is left to do, on standard error, one line each.

    Args:
        workflow: YAML or JSON file of siiRL.
        out: File to write; ``None`` prints the pipeline file.
        experiment: Name of the experiment that gets the settings of several agents.
        share_weights: Whether agents that have weights of their own in siiRL share one policy here.

    Raises:
        ConfigError: The file cannot be ported or its graph has problems, one line each. No file is written.
    """
    if experiment is not None and not re.fullmatch(RUN_NAME_PATTERN, experiment):
        raise ConfigError(
            f"--experiment={in_one_line(experiment)}: allowed are letters, digits, '.', '_' and '-', such as mine"
        )
    settings = None if experiment is None else Path("configs", "experiment", f"{experiment}.yaml")
    for option, path in (("--out", out), ("--experiment", settings)):
        if path is not None and path.exists():
            raise ConfigError(f"{option}={path}: exists; allowed is a new file")
    ported = port_workflow(workflow, share_weights)
    _check_options(ported, workflow, out, experiment)
    for line in ported.changes:
        print(f"changed: {line}", file=sys.stderr)
    for line in ported.left:
        print(f"to do: {line}", file=sys.stderr)
    if not ported.changes and not ported.left:
        print("nothing to change", file=sys.stderr)
    _check(ported.text, workflow)
    if out is None:
        print(ported.text, end="")
        return 0
    _write("--out", out, ported.text)
    print(f"pipeline.yaml={out}", file=sys.stderr)
    if ported.agents is not None and settings is not None and experiment is not None:
        _write("--experiment", settings, ported.agents.experiment(experiment, str(out), workflow.name))
        print(f"experiment={experiment}", file=sys.stderr)
    return 0


def _check_options(ported: Ported, workflow: Path, out: Path | None, experiment: str | None) -> None:
    """Check that a graph with several agents gets both files, and that no other one gets an experiment."""
    if ported.agents is None:
        if experiment is not None:
            raise ConfigError(f"--experiment={experiment}: {workflow} has one agent, and no settings of a run")
        return
    if out is None or experiment is None:
        raise ConfigError(
            f"{workflow}: has the agents {', '.join(ported.agents.members)}; --out=<file> and --experiment=<name> name "
            "the files of the graph and of their settings"
        )
    if not is_project(Path.cwd()):
        raise ConfigError(
            f"--experiment={experiment}: {Path.cwd()} is no project; run this in one, or make one with "
            "`embodyflow init <folder>`"
        )


def _write(option: str, path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option}={path}: cannot be written: {error.strerror}") from error


def _check(text: str, workflow: Path) -> None:
    """Load the graph as a run does; its problems name the given file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / workflow.name
        path.write_text(text, encoding="utf-8")
        try:
            load_yaml(path)
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(path), str(workflow))) from error
