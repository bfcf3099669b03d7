"""The run that a word on the command line names."""

import difflib
from pathlib import Path

from embodyflow.errors import ConfigError
from embodyflow.record.run_folder import RunFolder


def find_run(run_root: Path, run: str) -> RunFolder:
    """Return a run by its name or its folder.

    Args:
        run_root: Folder that holds the runs' folders.
        run: Name of the run, or its folder.

    Raises:
        ConfigError: There is no such run.
    """
    for path in (Path(run), run_root / run) if run else ():  # an empty name would be the current folder
        if (path / "config.yaml").is_file():
            return RunFolder(path.resolve() if path.name in ("", "..") else path)  # so that `.` has a name
    known = [path.parent.name for path in run_root.glob("[!.]*/config.yaml") if path.is_file()]
    near = difflib.get_close_matches(Path(run).name, known, 1)
    hint = f"did you mean {near[0]}?" if near else "`embodyflow runs` lists them"
    shown = run if run and run.isprintable() else repr(run)
    raise ConfigError(f"{shown}: {run_root}/ has no such run; {hint}")
