"""``embodyflow port``: the pipeline file for a workflow file of siiRL, and a report of what changed."""

import sys
import tempfile
from pathlib import Path

from embodyflow.errors import ConfigError
from embodyflow.graph.porting import port_workflow
from embodyflow.graph.yaml_loader import load_yaml


def port(workflow: Path, out: Path | None) -> int:
    """Port a workflow file; report changes, and what is left to do, on standard error, one line each.

    Args:
        workflow: YAML or JSON file of siiRL.
        out: File to write; ``None`` prints the pipeline file.

    Raises:
        ConfigError: The file cannot be ported or its graph has problems, one line each. No file is written.
    """
    if out is not None and out.exists():
        raise ConfigError(f"--out={out}: exists; allowed is a new file")
    ported = port_workflow(workflow)
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
    try:
        out.write_text(ported.text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out={out}: cannot be written: {error.strerror}") from error
    print(f"pipeline.yaml={out}", file=sys.stderr)
    return 0


def _check(text: str, workflow: Path) -> None:
    """Load the graph as a run does; its problems name the given file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / workflow.name
        path.write_text(text, encoding="utf-8")
        try:
            load_yaml(path)
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(path), str(workflow))) from error
