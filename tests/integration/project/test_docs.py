"""Every command of the tutorials and how-to guides is run, in one folder for each page: pages cannot rot."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet
from pages import DOCS, PAGES, ROOT, Commands, File, blocks

from embodyflow.record.metric_names import RECORD_KEYS, documented

pytestmark = pytest.mark.integration

SECONDS = 240
READERS_OWN = {"policy/ratio"}  # metrics of functions that a page shows


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the command ``embodyflow`` of this checkout."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "embodyflow"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m embodyflow.cli.main "$@"\n')
    script.chmod(0o755)
    return folder


def has_commands(page: Path) -> bool:
    return any(isinstance(block, Commands) and not block.reason for block in blocks(page))


def as_parameter(page: Path) -> ParameterSet:
    """Return a page as a test's parameter: pages that start runs are slow, apart from the first one that users read."""
    starts_runs = any(isinstance(block, Commands) and block.starts_runs() for block in blocks(page))
    return pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (starts_runs and page.stem != "first-robot"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [as_parameter(each) for each in PAGES if has_commands(each)])
def test_the_commands_of_a_page_run(
    page: Path, commands: Path, prefect_api: str, ray_env: dict[str, str], tmp_path: Path
) -> None:
    """A page's blocks share a folder, which is a project; files with a title are written to it."""
    project = tmp_path / "project"
    shutil.copytree(ROOT / "deployments", project / "deployments")
    env = {
        **os.environ,
        "PATH": os.pathsep.join((str(commands), str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": str(ROOT),
        "PREFECT_API_URL": prefect_api,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "OMP_NUM_THREADS": "1",
        **ray_env,
    }
    for block in blocks(page):
        if isinstance(block, File):
            path = project / block.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif not block.reason:
            done = run(block.script(), project, env)
            assert done.returncode == 0, f"{block.script()}\n{done.stdout[-4000:]}"
    undocumented = {name for name in metrics(project) if not documented(name)} - RECORD_KEYS.keys() - READERS_OWN
    assert not undocumented, f"embodyflow/record/metric_names.py lacks {', '.join(sorted(undocumented))}"


def run(script: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    print(script)
    command = ["bash", "-euo", "pipefail", "-c", script]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, cwd=folder, env=env, text=True, timeout=SECONDS, check=False, **output)


def metrics(folder: Path) -> Iterator[str]:
    """Yield the names in all ``metrics.jsonl``."""
    for path in folder.rglob("metrics.jsonl"):
        for line in path.read_text().splitlines():
            yield from json.loads(line)


def test_a_block_that_is_not_run_says_why() -> None:
    for page in PAGES:
        for block in blocks(page):
            if isinstance(block, Commands):
                assert block.lines, page
                assert not block.reason or len(block.reason.split()) > 2, f"{page}: {block.reason}"


def test_every_page_is_listed_in_the_navigation() -> None:
    nav = (ROOT / "zensical.toml").read_text()
    missing = [str(page.relative_to(DOCS)) for page in PAGES if f'"{page.relative_to(DOCS)}"' not in nav]
    assert not missing
