"""Does one policy learn in several kinds of environments at once? Success of each member before and after training.

    python -m benchmarks.robots.members --seeds 0 1 2 --folder /tmp/members

Each seed is a run of ``experiment=mixed`` without Ray and Prefect (``benchmarks.control.in_process``), evaluated on the
unseen goals of each member. Finished seeds in the folder are reused. Results go to ``benchmarks/results/members.json``.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT
from benchmarks.control.in_process import InProcessRun

MODES = ("greedy", "sampled")


def train(seed: int, words: Sequence[str]) -> dict[str, Any]:
    """Train the mixed experiment; return success by moment, mode and task."""
    run = InProcessRun(["experiment=mixed", "evaluation.video=false", f"seed={seed}", *words])
    run.warm_start()
    facts: dict[str, Any] = {"seed": seed, "num_goals": run.config.evaluation.num_goals, "curve": []}
    facts["before"] = rates(run)
    for iteration in range(1, run.config.iterations + 1):
        facts["curve"].append(run.iterate(iteration)["rollout/success_rate"])
        print(f"seed {seed}, iteration {iteration}: success {facts['curve'][-1]:.2f}", flush=True)
    return facts | {"after": rates(run)}


def rates(run: InProcessRun) -> dict[str, dict[str, float]]:
    """Return the success rates on unseen goals by mode and task."""
    return {mode: dict(zip(run.tasks, run.success(mode), strict=True)) for mode in MODES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, help="folder of the finished seeds; default: a temporary one")
    parser.add_argument("words", nargs="*", help="further overrides")
    arguments = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for seed in arguments.seeds:
            file = folder / f"{seed}.json"
            if not file.exists():
                file.write_text(json.dumps(train(seed, arguments.words)))
            runs.append(json.loads(file.read_text()))
    report = {"words": arguments.words, "runs": runs}
    (ROOT / "benchmarks/results/members.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
