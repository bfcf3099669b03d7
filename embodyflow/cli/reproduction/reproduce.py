"""``embodyflow reproduce``: train again from a run's record, and compare every digest."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from embodyflow.cli.reproduction.comparison import SHOWN, difference, evaluation_difference, num_digests
from embodyflow.cli.reproduction.scratch_run import prepare
from embodyflow.cli.reproduction.span import Span, span_of
from embodyflow.cli.run_folders.found_runs import find_run
from embodyflow.config import RunConfig
from embodyflow.config.agents.agent import AgentJobConfig
from embodyflow.config.composition.compose import validate_recorded
from embodyflow.config.composition.words import word_of
from embodyflow.errors import ConfigError, DamageError
from embodyflow.graph import load_pipeline
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder, unrestorable_lines

POLL_SECONDS = 0.5
STOP_SECONDS = 30.0
"""How long a scratch run may take to stop."""


def reproduce(run_root: Path, run: str, iterations: str | None) -> int:
    """Train again from the record of a run; print a line for each iteration; return 1 at the first difference.

    Args:
        run_root: Folder that holds the runs' folders.
        run: Name of the run, or its folder.
        iterations: Text ``first..last``; ``None`` means all that are committed.

    Raises:
        ConfigError: There is no such run, or its folder lacks what the iterations start from.
    """
    folder = find_run(run_root, run)
    try:
        return _reproduce(folder, iterations)
    except DamageError as error:
        print(error, file=sys.stderr)
        return 1


def _reproduce(folder: RunFolder, iterations: str | None) -> int:
    if not folder.ledger_path.is_file():
        raise ConfigError(f"{folder.path}: has no ledger.jsonl; allowed is the folder of a training run")
    config = validate_recorded(folder.config(), str(folder.path))
    ledger = Ledger(folder.ledger_path)
    span = span_of(iterations, folder, config, ledger)
    for line in _cautions(folder, config, span, ledger):
        print(line, flush=True)
    root = Path(tempfile.mkdtemp(prefix=f".reproduce-{folder.path.name}-", dir=folder.path.parent))
    try:
        scratch = prepare(root / folder.path.name, folder, ledger, span, config.rollout.max_staleness)
        with _trained(scratch, config, span) as process:
            found = _follow(process, ledger, scratch, config, span)
    except BaseException:  # also if a signal ends the command
        shutil.rmtree(root)
        raise
    if found is not None:
        print(f"{found}\nthe reproduction is kept in {scratch.path}", flush=True)
        return 1
    shutil.rmtree(root)
    number = sum(num_digests(ledger, each) for each in range(span.first, span.last + 1))
    print(f"equal: {number} digests of iterations {span.first} to {span.last}")
    return 0


def _cautions(folder: RunFolder, config: RunConfig, span: Span, ledger: Ledger) -> Iterator[str]:
    """Yield a line for whatever the run's folder does not hold, before anything starts."""
    done = max(entry.iteration for entry in ledger.entries if entry.kind == "commit")
    if span.last == config.iterations < done:
        yield f"iterations {span.last + 1} to {done} are left out: a resume stretched their trainer.schedule"
    if changed := ledger.values_after(span.last).items() - ledger.values_after(span.first - 1).items():
        keys = ", ".join(sorted(key for key, _ in changed))
        yield f"iterations after {span.last} are left out: a roll-back changed {keys}"
    yield f"starts from the checkpoint of iteration {span.first - 1}, which is not trained again"
    if isinstance(config, AgentJobConfig):
        yield "tools and programs are called again: a run keeps their answers only until it has trained on them"
    yield from unrestorable_lines(folder.unrestorable())


@contextmanager
def _trained(scratch: RunFolder, config: RunConfig, span: Span) -> Iterator["subprocess.Popen[bytes]"]:
    """Train the scratch run in a process, which is stopped at the end of the block."""
    schedule = config.trainer.schedule_iterations or config.iterations
    words = (
        *(f"resume={scratch.path.name}", word_of("run_root", str(scratch.path.parent))),
        *(f"iterations={span.last}", f"trainer.schedule_iterations={schedule}"),
    )
    with (scratch.path / "output").open("wb") as output:
        command = [sys.executable, "-m", f"flows.{config.flow}", *words]
        with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
            try:
                yield process
            finally:
                _stop(process)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _follow(
    process: "subprocess.Popen[bytes]", recorded: Ledger, scratch: RunFolder, config: RunConfig, span: Span
) -> str | None:
    """Compare iterations as they are committed, and evaluations in the end; return the first difference."""
    nodes = load_pipeline(**config.pipeline.source()).get_execution_order()
    for iteration in range(span.first, span.last + 1):
        repeated = _committed(process, scratch, iteration)
        if repeated is None:
            return f"iteration {iteration}: was not trained: {_last_line(scratch)}"
        if found := difference(recorded, repeated, iteration, nodes):
            return f"iteration {iteration}: {found}"
        weights = str((recorded.newest("commit", iteration) or {})["weights_digest"])
        print(f"iteration {iteration}: equal, weights {weights[:SHOWN]}", flush=True)
    if process.wait() != 0:
        return f"the reproduction failed after its last iteration: {_last_line(scratch)}"
    return _compare_evaluations(recorded, Ledger(scratch.ledger_path), range(span.first, span.last + 1))


def _compare_evaluations(recorded: Ledger, repeated: Ledger, iterations: Sequence[int]) -> str | None:
    found = ((each, evaluation_difference(recorded, repeated, each)) for each in iterations)
    return next((f"after iteration {each}: {line}" for each, line in found if line is not None), None)


def _committed(process: "subprocess.Popen[bytes]", scratch: RunFolder, iteration: int) -> Ledger | None:
    """Wait until an iteration is committed; return the ledger then, or ``None`` if the process ended before."""
    while True:
        has_ended = process.poll() is not None
        ledger = Ledger(scratch.ledger_path)
        if ledger.newest("commit", iteration) is not None:
            return ledger
        if has_ended:
            return None
        time.sleep(POLL_SECONDS)


def _last_line(scratch: RunFolder) -> str:
    lines = (scratch.path / "output").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "the process ended without a word"
