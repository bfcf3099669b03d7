"""Random interruptions of a run of SAC that is to end with the weights of an undisturbed one."""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import find_test_modules

find_test_modules()

from small_runs import SMALL_SAC, Runs, training_records  # noqa: E402

UNDISTURBED = "undisturbed"

Facts = dict[str, Any]


def train_undisturbed(runs: Runs, iterations: int) -> None:
    """Train without interruptions."""
    words = (f"iterations={iterations}", "seed=1", f"run_root={runs.root}", f"run_id={UNDISTURBED}")
    runs.start(*SMALL_SAC, *words, flow="sac").communicate()


def interrupt(
    once: Callable[[int, float], Facts | None], number: int, bounds: tuple[float, float], seed: int
) -> list[Facts]:
    """Interrupt a run some times; return what was seen each time, less often if it ends before.

    Args:
        once: Function that interrupts the run, from the number of the interruption, from 0, and the seconds to wait
            before it to what was seen; ``None`` if the run has ended.
        number: Number of interruptions.
        bounds: Bounds of the seconds.
        seed: Seed of the seconds.
    """
    rng, seen = np.random.default_rng(seed), list[Facts]()
    for index in range(number):
        facts = once(index, float(rng.uniform(*bounds)))
        if facts is None:
            break
        seen.append(facts)
        print(json.dumps(facts), flush=True)
    return seen


def has_same_weights(runs: Runs, run_id: str, undisturbed: Runs, iterations: int) -> bool:
    """Return True if a run has the weights of the undisturbed one after each iteration, which changes them."""
    expected = _digests(undisturbed, UNDISTURBED)
    return _digests(runs, run_id) == expected and len(set(expected)) == iterations


def report(watch: Callable[[Path], Facts], results: Path) -> None:
    """Watch a run in a temporary folder, write what was seen, and exit with 1 if its weights differ."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        result = watch(Path(folder))
        result["minutes"] = round((time.perf_counter() - started) / 60, 1)
    results.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    sys.exit(not result["same_weights"])


def _digests(runs: Runs, run_id: str) -> list[str]:
    return [str(record["weights_digest"]) for record in training_records(runs.records(run_id))]
