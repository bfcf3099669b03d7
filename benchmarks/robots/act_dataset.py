"""ACT cloned from a LeRobot data set of ours beside ACT cloned from the episodes themselves, and trained by GRPO.

    python -m benchmarks.robots.act_dataset --seeds 11841 11842 11843

Each run is one process without Ray and Prefect (:mod:`benchmarks.control.in_process`). A scripted expert plays
``DEMONSTRATIONS`` episodes of push-v3. One ACT is cloned from them. They are then written as a LeRobot data set by the
writer of ``embodyflow export-dataset``, and another ACT with the same seed is cloned from that folder by
``warm_start.dataset``. The greedy policies play the 64 goals of the evaluation split. GRPO then trains an ACT from a
short clone on reach-v3.

Each seed is added to ``benchmarks/results/act_dataset.json``, where it replaces figures of the same seed.
"""

import argparse
import json
import statistics
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from tensordict import TensorDict

from benchmarks.commands import ROOT
from benchmarks.control.in_process import InProcessRun
from benchmarks.control.ppo_control import with_run
from benchmarks.report import write_report
from embodyflow.data.batches import to_batch
from embodyflow.datasets.feature_names import ACTION
from embodyflow.datasets.lerobot.writer import DatasetDescription, LeRobotWriter
from embodyflow.simulation.make_env import make_env

RESULTS = ROOT / "benchmarks/results/act_dataset.json"
DEMONSTRATIONS, STEPS = 10, 1000
CLONING = ("experiment=push", "policy=tiny_act", f"warm_start.steps={STEPS}", f"warm_start.num_demos={DEMONSTRATIONS}")
GRPO = (
    "experiment=embodied",
    "policy=tiny_act",
    "warm_start.steps=400",
    "rollout.chunk_correlation=0.5",
    "iterations=10",
)


def write_dataset(config: Any, demos: TensorDict, folder: Path) -> int:
    """Write demonstrations of a run's only task as a LeRobot data set; return its number of steps."""
    with closing(make_env(config.env, config.env.tasks[0], "train")) as env:
        task, fps = env.get_wrapper_attr("instruction"), float(env.metadata["render_fps"])
    writer = LeRobotWriter(folder, DatasetDescription(fps, config.env.id))
    for row in range(len(demos)):
        counted = slice(int(demos["num_steps"][row]))
        columns = {"observation.state": demos["state"], ACTION: demos["actions"]}
        writer.add(task, {name: values[row, counted].numpy() for name, values in columns.items()})
    writer.finish()
    return int(demos["num_steps"].sum())


def cloned(*words: str) -> tuple[InProcessRun, float]:
    """Clone a policy; return the run, and its success on unseen goals."""
    run = InProcessRun([*CLONING, "iterations=1", *words])
    run.warm_start()
    return run, statistics.mean(run.success())


def compare(seed: int, folder: Path) -> dict[str, Any]:
    """Return the success of all contenders with a seed, and of GRPO before and after training."""
    run, from_episodes = cloned(f"seed={seed}")
    demos = to_batch(run.rollout.demonstrate())
    num_steps = write_dataset(run.config, demos[demos["uid"].argsort()], folder / "push")
    _, from_dataset = cloned(f"seed={seed}", f"warm_start.dataset={folder / 'push'}")
    row = {"seed": seed, "steps": num_steps, "from_episodes": from_episodes, "from_dataset": from_dataset}
    trained = InProcessRun([*GRPO, f"seed={seed}"]).train()
    kept = ("success_rate_before", "success_rate_after", "sampled_success_rate_before", "sampled_success_rate_after")
    return row | {"grpo": {name: trained[name] for name in (*kept, "num_episodes")}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11841, 11842, 11843])
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = json.loads(arguments.output.read_text())["comparisons"] if arguments.output.exists() else []
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as folder:
            row = compare(seed, Path(folder))
        print(row, flush=True)
        rows = sorted(with_run(rows, row, ("seed",)), key=lambda each: each["seed"])
        settings = {"demonstrations": DEMONSTRATIONS, "cloning": CLONING, "grpo": GRPO}
        write_report(arguments.output, ("torch", "metaworld", "mujoco"), rows, **settings)


if __name__ == "__main__":
    main()
