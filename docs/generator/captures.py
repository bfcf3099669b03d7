"""Captures of the terminal in the pages, from a real run in tmux: ``python -m docs.generator.captures``.

``make docs`` leaves them as they are, because the run takes minutes.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from embodyflow.orchestration.display.progress_bar import STAGES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "watch-a-run.md"

_CAPTURE = re.compile(r"(<!-- capture: (?P<name>[\w ]+) -->\n```text\n)(?P<text>.*?)(?=```\n)", re.DOTALL)
_LINE = re.compile(r"^(warm start|evaluated|iteration|training) .*\d+/\d+")
_RUN = [sys.executable, "-m", "embodyflow.cli.main", "run", "--experiment", "embodied", "--seed", "2"]
_SIZES = [
    *("iterations=12", "rollout.num_workers=1", "rollout.num_groups=4", "rollout.group_size=4"),
    *("rollout.envs_per_worker=8", "rollout.chunk_correlation=1", "env.max_steps=80", "policy.hidden_size=64"),
    *("warm_start.num_demos=4", "warm_start.steps=60", "evaluation.num_goals=4", "evaluation.video=false"),
]
TIMEOUT = 600.0
"""Seconds that the run has to show a line."""


class Terminal:
    """A terminal of tmux, on a server of its own, in which one command runs.

    Args:
        command: Program and arguments.
        folder: Working directory.
        env: Whole environment of the command.
        width: Number of columns.
    """

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str], width: int) -> None:
        self._socket, self._env = str(folder / "tmux"), dict(env)
        size = ["-x", str(width), "-y", "50"]
        # The terminal outlives its command and Ctrl-C, so that the last lines can be read.
        held = f"trap : INT; {shlex.join(command)}; sleep {TIMEOUT:.0f}"
        self._tmux("-f", os.devnull, "new-session", "-d", "-s", "run", "-c", str(folder), *size, held)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(subprocess.CalledProcessError):  # it has ended already
            self._tmux("kill-server")

    def resize(self, width: int) -> None:
        """Give the terminal another number of columns."""
        self._tmux("resize-window", "-t", "run", "-x", str(width))

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._tmux("send-keys", "-t", "run", "C-c")

    def lines(self) -> list[str]:
        """Return the lines on the screen, without empty ones."""
        return [line.rstrip() for line in self._tmux("capture-pane", "-p", "-t", "run").splitlines() if line.strip()]

    def wait_for(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """Return the lines as soon as they meet a condition.

        Raises:
            TimeoutError: They did not; the message holds them.
        """
        deadline = time.monotonic() + TIMEOUT
        while not condition(lines := self.lines()):
            if time.monotonic() > deadline:
                raise TimeoutError("\n".join(lines))
            time.sleep(0.2)
        return lines

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", self._socket, *words]
        return subprocess.run(command, env=self._env, check=True, capture_output=True, text=True).stdout


def with_captures(text: str, captures: Mapping[str, Sequence[str]]) -> str:
    """Return a page with other lines in the blocks below ``<!-- capture: name -->``.

    Raises:
        KeyError: A block has no capture.
    """
    return _CAPTURE.sub(lambda found: found[1] + "".join(f"{line}\n" for line in captures[found["name"]]), text)


def captured(page: Path) -> dict[str, list[str]]:
    """Return the captures of a page by name."""
    return {found["name"]: found["text"].splitlines() for found in _CAPTURE.finditer(page.read_text())}


def main() -> None:
    """Run an experiment at 80 and 120 columns until it is interrupted, and one into a pipe; write what they show."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="captures-") as folder:
        PAGE.write_text(with_captures(PAGE.read_text(), _capture(Path(folder))))


def _capture(folder: Path) -> dict[str, list[str]]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "screen-256color", "LANG": "C.UTF-8"}
    for name in ("PREFECT_API_URL", "RAY_ADDRESS", "TMUX", "NO_COLOR"):
        env.pop(name, None)
    project = folder / "project"
    subprocess.run([sys.executable, "-m", "embodyflow.cli.main", "init", str(project)], env=env, check=True)
    with Terminal([*_RUN, "run_id=shown", *_SIZES], project, env, 80) as terminal:
        narrow = terminal.wait_for(lambda lines: _shows(lines, "training", 7))
        terminal.resize(120)
        wide = terminal.wait_for(lambda lines: _shows(lines, "training", 8))
        terminal.interrupt()
        stopped = terminal.wait_for(lambda lines: "resume=shown" in "".join(lines[-1:]))
    command = [*_RUN, "run_id=piped", *_SIZES, "iterations=2"]
    done = subprocess.run(command, cwd=project, env=env, check=True, capture_output=True, text=True)
    return {
        "80 columns": [line for line in narrow if _LINE.match(line)],
        "120 columns": [line for line in wide if _LINE.match(line)][-3:],
        "pipe": [line for line in done.stderr.splitlines() if line in STAGES.values() or _LINE.match(line)],
        "interrupt": [line.removeprefix("^C") for line in stopped[-2:]],
    }


def _shows(lines: Sequence[str], kind: str, iteration: int) -> bool:
    return any(line.startswith(kind) and f" {iteration}/12 " in line for line in lines)


if __name__ == "__main__":
    main()
