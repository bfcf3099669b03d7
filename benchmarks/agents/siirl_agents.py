"""Do siiRL's workflow files with several agents (MARFT) train here, on Ray, with siiRL's own functions?

    python -m benchmarks.agents.siirl_agents --checkout <folder of a git clone of siiRL> --folder /tmp/siirl_agents

The script copies ``examples`` and ``siirl`` of the clone's HEAD, unchanged, and puts the copy on the import path. In a
new project it ports each file with several agents by ``embodyflow port``, and trains it for three iterations of 64
episodes: with the file's own ``train_cycle``, and with turns of one iteration. What runs before and after a turn, the
environment and its grader are siiRL's. A small Qwen has learned to write right and wrong answers at random. The results
are in ``benchmarks/results/siirl_agents.json``, with the reason for each older version of a file that is not ported. A
further call with the same folder runs what is missing.
"""

import argparse
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from safetensors.torch import load_file

from benchmarks.agents.scripted_ring import Script, save_model
from benchmarks.orchestration.siirl_graphs import has_agents, save, versions
from benchmarks.report import write_report
from embodyflow.errors import ConfigError
from embodyflow.graph.siirl.porting import port_workflow
from embodyflow.prompts.prompts import Prompt

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "siirl_agents.json"
STAND_INS = ROOT / "benchmarks" / "stand_ins"
ROUNDS, EPISODES, ITERATIONS = 3, 64, 3
SMALL = (
    *("algorithm=ppo", "seed=1", f"iterations={ITERATIONS}", "rollout.num_workers=1", "cluster.start_timeout=600"),
    *(f"rollout.num_groups={EPISODES}", "rollout.group_size=1", f"rollout.agent.max_turns={ROUNDS}"),
    *("rollout.max_prompt_tokens=256", "rollout.max_response_tokens=1024", "rollout.agent.max_turn_tokens=8"),
    *("trainer.learning_rate=1e-3", "critic.epochs=1", "evaluation.num_prompts=4", "tracking.tensorboard=false"),
)


class Task(NamedTuple):
    """Prompts that suit an environment of siiRL.

    Attributes:
        questions: Texts, each with what the environment compares the answer with.
        answers: Texts that the last agent writes, right or wrong.
        verdict: Text that the environment puts behind a wrong answer.
    """

    questions: Sequence[tuple[str, str]]
    answers: Sequence[str]
    verdict: str


TASKS = {
    "MathEnv": Task(
        [(f"{left}+{right}=", str(left + right)) for left in range(5) for right in range(5)],
        [f"\\boxed{{{number}}}" for number in range(9)],
        " This answer is wrong.",
    ),
    "CodeEnv": Task(
        [
            (
                f"Read a number and print it plus {more}.",
                json.dumps({"inputs": ["1\n", f"{more}\n"], "outputs": [f"{1 + more}\n", f"{2 * more}\n"]}),
            )
            for more in range(4)
        ],
        [f"```python\nprint(int(input()) + {more})\n```" for more in range(4)],
        ". This answer is wrong.",
    ),
}
"""Tasks by the class of the environment."""


def main() -> None:
    """Port and train the files of HEAD, name the older ones, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="folder of a git clone of siiRL, bare or not")
    parser.add_argument("--folder", type=Path, required=True, help="folder for the copy, the project and the runs")
    arguments = parser.parse_args()
    checkout, folder = arguments.checkout.resolve(), arguments.folder.resolve()
    copy, project = folder / "siirl", folder / "project"
    if not copy.exists():
        archive = _git(checkout, "archive", "HEAD", "examples", "siirl")
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(copy, filter="data")
    sys.path.insert(0, str(copy))
    if not project.exists():
        _run(folder, "-m", "embodyflow.cli.main", "init", str(project))
    head = _git(checkout, "rev-parse", "HEAD").decode().strip()
    entries = _git(checkout, "ls-tree", "-r", head).decode().splitlines()
    newest = {entry.split()[2]: entry.partition("\t")[2] for entry in entries}
    rows, refused = [], []
    for blob, name in versions(checkout).items():
        given, label = save(checkout, folder, blob), f"{Path(name).name} ({blob[:7]})"
        if not has_agents(given):
            continue
        if blob in newest:
            rows += train(project, copy / newest[blob], label)
        else:
            refused.append({"file": label, "reasons": reasons(given)})
    packages = ["ray", "prefect", "torch", "transformers"]
    write_report(RESULTS, packages, rows, commit=head, stand_ins=_stand_ins(), refused=refused)


def reasons(path: Path) -> list[str]:
    """Return why a file cannot be ported.

    Raises:
        ValueError: It is ported, so this script should train it.
    """
    try:
        port_workflow(path)
    except ConfigError as error:
        return [line.removeprefix(f"{path}: ") for line in str(error).splitlines()[1:]]
    raise ValueError(f"{path} is ported, and is no file of HEAD")


def train(project: Path, path: Path, name: str) -> list[dict[str, Any]]:
    """Port a file, train it with each kind of turns unless that is there, and return a row for each."""
    experiment = path.stem
    settings = project / "configs" / "experiment" / f"{experiment}.yaml"
    if not settings.exists():
        words = (str(path), "--out", f"pipelines/{experiment}.yaml", "--experiment", experiment)
        _run(project, "-m", "embodyflow.cli.main", "port", *words)
    agent = yaml.safe_load(settings.read_text())["rollout"]["agent"]
    model = project / "tasks_of" / experiment / "model"
    words = write_task(model, agent["ring"])
    rows = []
    for cycle in (agent["train_cycle"], 1):
        run_id = f"{experiment}-{cycle}"
        folder = project.parent / "runs" / run_id
        if not (folder / "summary.json").exists():
            turns = f"rollout.agent.train_cycle={cycle}"
            where = (f"run_root={folder.parent}", f"run_id={run_id}")
            _run(project, "-m", "flows.ppo", f"experiment={experiment}", *SMALL, *words, turns, *where)
        records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        iterations = [figures(each, [*agent["ring"]["members"]]) for each in records if "digests" in each]
        row = {"file": name, "train_cycle": cycle, "changed": changes(iterations)}
        rows.append(row | {"as_at_start": untouched(folder, model), "iterations": iterations})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def write_task(model: Path, ring: Mapping[str, Any]) -> list[str]:
    """Write a model and the rows of a ring beside it, unless they are there; return the words that choose them."""
    task = TASKS[ring["environment"].rpartition(":")[2]]
    folder, rows = model.parent, model.parent / "rows.jsonl"
    chats = [[{"role": "user", "content": question}] for question, _ in task.questions]
    if not (model / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            {"data_source": folder.name, "prompt": chat, "reward_model": {"ground_truth": truth}}
            for chat, (_, truth) in zip(chats, task.questions, strict=True)
        ]
        rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
        prompts = [Prompt(number, None, chat, None, folder.name) for number, chat in enumerate(chats)]
        texts: dict[str, Sequence[str]] = dict.fromkeys(ring["members"], ("count on", "add both", "guess"))
        texts[[*ring["members"]][-1]] = task.answers
        save_model(model, Script(_as_read(ring["members"]), prompts, texts, task.verdict), ROUNDS)
    words = [f"data.train=[{rows}]", f"data.validation=[{rows}]", "data.shared_prompts=keep"]
    return [*words, f"policy.path={model}"]


def figures(record: Mapping[str, Any], agents: Sequence[str]) -> dict[str, Any]:
    """Return figures of an iteration; an agent that does not train in it has no gradient norm."""
    return {
        "episodes": int(record["rollout/num_episodes"]),
        "rounds": record["rollout/turns"] / len(agents),
        "success_rate": record["rollout/success_rate"],
        "rewards": {name: record[f"rollout/reward_{name}"] for name in agents},
        "grad_norms": {name: round(record[key], 4) for name in agents if (key := f"train/grad_norm/{name}") in record},
        "critic_grad_norm": round(record["critic/grad_norm"], 4),
        "weights_digests": {name: int(record[f"policy/weights_digest/{name}"]) for name in agents},
    }


def changes(iterations: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the agents whose weights each iteration after the first changed."""
    return [
        [name for name, digest in after["weights_digests"].items() if digest != before["weights_digests"][name]]
        for before, after in pairwise(iterations)
    ]


def untouched(run: Path, model: Path) -> list[str]:
    """Return the agents that end with the weights of the model that they began with, bit by bit."""
    start = load_file(model / "model.safetensors")
    ends = {path.parent.name: load_file(path) for path in sorted(run.glob("policy/*/model.safetensors"))}
    return [name for name, end in ends.items() if all(torch.equal(end[key], value) for key, value in start.items())]


def _as_read(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of agents as a run reads them: without the mark before a literal ``${``."""
    return json.loads(json.dumps(members).replace("\\\\${", "${"))


def _stand_ins() -> list[str]:
    """Return the modules of ``stand_ins`` whose package is missing."""
    return [path.stem for path in STAND_INS.glob("*.py") if importlib.util.find_spec(path.stem) is None]


def _run(folder: Path, *words: str) -> None:
    """Run Python in a folder, with the copy and this repository on the import path."""
    paths = [*sys.path[:1], str(ROOT), *([str(STAND_INS)] if _stand_ins() else [])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, *words], cwd=folder, env=environment, check=True)


def _git(checkout: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", checkout, *words], capture_output=True, check=True).stdout


if __name__ == "__main__":
    main()
