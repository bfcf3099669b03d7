"""Do siiRL's own single-agent workflow files train here, on Ray, after ``embodyflow port``?

    python -m benchmarks.orchestration.siirl_graphs --checkout <folder of a git clone of siiRL> --folder /tmp/siirl

The script ports every version of every workflow file in the clone's history. Files whose ported graphs are equal share
a run: a small robot or language job of one iteration, by the flow that fits the graph. The results are in
``benchmarks/results/siirl_graphs.json``. Files with several agents are those of :mod:`benchmarks.agents.siirl_agents`.
A further call with the same folder runs what is missing.
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.report import write_report
from embodyflow.graph import TaskGraph
from embodyflow.graph.siirl.porting import port_workflow
from embodyflow.graph.yaml_loader import load_yaml, read_workflow

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "siirl_graphs.json"
SMALL = ("seed=1", "iterations=1", "rollout.num_workers=1", "cluster.start_timeout=600", "tracking.tensorboard=false")
ROBOT = (
    *("experiment=embodied", "rollout.num_groups=4", "rollout.group_size=4", "rollout.envs_per_worker=8"),
    *("rollout.chunk_correlation=1", "env.max_steps=80", "evaluation.num_goals=4", "evaluation.video=false"),
    *("warm_start.num_demos=4", "warm_start.steps=60", "policy.hidden_size=64"),
)
LANGUAGE = (
    *("experiment=math", "policy.scratch.hidden_size=32", "policy.scratch.num_hidden_layers=1"),
    *("rollout.num_groups=16", "rollout.group_size=4", "warm_start.num_demos=400", "warm_start.steps=300"),
    *("warm_start.until=null", "warm_start.batch_size=32", "warm_start.learning_rate=6e-3"),
    *("evaluation.num_prompts=16", "trainer.num_minibatches=1", "trainer.schedule.name=constant"),
    *("trainer.schedule.warmup_iterations=0", "trainer.micro_batch_tokens=500"),
)


def versions(checkout: Path) -> dict[str, str]:
    """Return every version of every workflow file in the history: its path by the name of its blob."""

    def git(*words: str) -> str:
        command = ["git", "-C", checkout, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    lines = git("log", "--all", "--raw", "--no-abbrev", "--pretty=format:").splitlines()
    changes = [words for line in lines if len(words := line.split()) > 5]
    found = {words[3]: words[-1] for words in changes if Path(words[-1]).match("*work*flow_*.yaml")}
    return {blob: path for blob, path in sorted(found.items()) if set(blob) != {"0"}}


def save(checkout: Path, folder: Path, blob: str) -> Path:
    """Write the file of a blob; return its path."""
    path = folder / f"{blob[:7]}.yaml"
    text = subprocess.run(["git", "-C", checkout, "cat-file", "blob", blob], capture_output=True, check=True).stdout
    path.write_bytes(text)
    return path


def has_agents(path: Path) -> bool:
    """Return True if several nodes of a file play."""
    nodes = read_workflow(path)[0]["nodes"]
    return sum(str(node.get("node_role")).upper() == "ROLLOUT" for node in nodes) > 1


def train(path: Path, graph: TaskGraph, robot: bool, folder: Path) -> dict[str, Any]:
    """Run one iteration of a graph by the flow that fits it, unless it is there; return figures of its training."""
    flow = "ppo" if any("train_critic" in node.executable_ref for node in graph.nodes.values()) else "grpo"
    words = (f"pipeline.yaml={path}", f"run_root={folder / 'runs'}", f"run_id={graph.digest[:7]}")
    command = [sys.executable, "-m", f"flows.{flow}", *(ROBOT if robot else LANGUAGE), *SMALL, *words]
    run = folder / "runs" / graph.digest[:7]
    if not (run / "summary.json").exists():
        subprocess.run(command, check=True, cwd=ROOT)
    records = (run / "metrics.jsonl").read_text().splitlines()
    [last] = [record for record in map(json.loads, records) if "train/optimizer_steps" in record]
    names = ("rollout/num_episodes", "groups/num_kept_rows", "train/optimizer_steps", "train/grad_norm")
    return {"flow": flow} | {name: last[name] for name in names if name in last}


def main() -> None:
    """Port all files, run the distinct graphs, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="folder of a git clone of siiRL")
    parser.add_argument("--folder", type=Path, required=True, help="folder for the files and the runs")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    same_graph: dict[str, list[tuple[str, str, Path]]] = defaultdict(list)
    for blob, name in versions(arguments.checkout).items():
        given = save(arguments.checkout, arguments.folder, blob)
        if not has_agents(given):
            path = given.with_suffix(".ported.yaml")
            path.write_text(port_workflow(given).text)
            same_graph[load_yaml(path).digest].append((blob, name, path))
    rows = []
    for files in same_graph.values():
        graph = load_yaml(files[0][2])
        nodes = [graph.nodes[each].executable_ref.partition(":")[2] for each in graph.get_execution_order()]
        row: dict[str, Any] = {"files": [f"{Path(name).name} ({blob[:7]})" for blob, name, _ in files], "nodes": nodes}
        row |= train(files[0][2], graph, "embodied" in files[0][1], arguments.folder)
        print(json.dumps(row), flush=True)
        rows.append(row)
    write_report(RESULTS, ["ray", "prefect", "torch"], rows)


if __name__ == "__main__":
    main()
