"""SmolVLA at its published size makes two iterations of GRPO on two cores: its memory and its seconds.

    LIBERO_ASSETS=… python -m benchmarks.robots.full_size --folder /tmp/full-size

The checkpoint has SmolVLM2-500M's vision tower, tokens and first 16 layers, and SmolVLA's expert, as LeRobot publishes
them: 450 million weights, here random ones. The run is what a user starts, ``python -m flows.grpo … policy=smolvla
policy.path=…``, on LIBERO-Object with the images of both cameras: a group of 2 episodes, each a chunk of 50 actions.
Every other episode is rewarded, since random weights never succeed. One rollout worker and one trainer rank have a core
each.

Every second the script reads the proportional set size (PSS) of each process of the run and what lies in ``/dev/shm``.
``--trained all`` trains all weights instead of the expert's. What ``embodyflow plan`` expects is written beside it;
``--only-plan`` plans the runs of the report again and runs nothing.
"""

import argparse
import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.commands import ROOT, check_command, running
from benchmarks.report import write_report
from embodyflow.algorithms.credit.shaping import place_on_last_token
from embodyflow.cli.plan import planned_memory
from embodyflow.graph.building_blocks import policy_gradient
from embodyflow.nodes.declarations import node
from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import VLM, Description
from embodyflow.policies.embodied.flow_vla.export_flow_vla import write_checkpoint
from embodyflow.policies.embodied.lerobot_processors import ACTION, IMAGES, STATE, WEIGHTS
from embodyflow.policies.embodied.smolvla.checkpoint_smolvla import DEFAULTS, LAYOUT
from embodyflow.policies.embodied.smolvla.configuration_smolvla import SmolVLAConfig
from embodyflow.policies.embodied.smolvla.modeling_smolvla import SmolVLA
from embodyflow.types import Batch, NodeOutput
from pipelines import NodeRole, Pipeline, TaskGraph

RESULTS = ROOT / "benchmarks/results/full_size.json"
CAMERAS = ("image", "wrist_image")
STATE_DIM, ACTION_DIM, CHUNK, IMAGE_SIZE, DECISIONS = 8, 7, 50, 256, 1
ENVIRONMENT_BYTES = 1.03 * 2**30
"""Private memory that a process takes to open a task of LIBERO-Object with images, measured on two cores."""
TOKENIZER = "embodyflow.policies.embodied.flow_vla.tokenizer_flow_vla:build_tokenizer"
TEXT = {
    **{"model_type": "llama", "vocab_size": 49_280, "hidden_size": 960, "intermediate_size": 2560, "head_dim": 64},
    **{"num_hidden_layers": 32, "num_attention_heads": 15, "num_key_value_heads": 5, "rms_norm_eps": 1e-5},
}
VISION = {
    **{"model_type": "smolvlm_vision", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12},
    **{"num_attention_heads": 12, "image_size": 512, "patch_size": 16},
}
WORDS = (
    *("experiment=embodied", "env=libero_images", "env.tasks=[libero_object/0]", f"env.max_steps={DECISIONS * CHUNK}"),
    *(f"env.kwargs.cameras=[{','.join(CAMERAS)}]", f"env.kwargs.image_size={IMAGE_SIZE}"),
    *("policy=smolvla", f"policy.chunk_size={CHUNK}", f"policy.cameras=[{','.join(CAMERAS)}]"),
    "policy.max_prompt_tokens=64",  # a token is a letter: the published tokenizer is not at hand
    *("rollout.num_workers=1", "rollout.num_groups=1", "rollout.group_size=2", "rollout.envs_per_worker=2"),
    *("rollout.env_processes=1", "rollout.pipelined=false"),
    *("trainer.num_ranks=1", "trainer.epochs=1", "trainer.micro_batch_rows=1", "trainer.learning_rate=1e-5"),
    *("pipeline.custom_fn=benchmarks.robots.full_size:graph", "filter.drop_uniform=false", "warm_start=null"),
    *("evaluation.num_goals=1", "evaluation.video=false", "iterations=2"),
    *("cluster.start_timeout=900", "cluster.node_timeout=3000"),
)


@node(reads=("uid", "loss_mask"), writes=("rewards",))
def reward_every_other(batch: Batch, config: Any = None, **kwargs: Any) -> NodeOutput:
    """Reward every other episode by 1, so that each group has a better and a worse one."""
    mask, scores = batch["loss_mask"], (batch["uid"] % 2).float()
    batch["rewards"] = place_on_last_token(scores, mask.flatten(1)).view(mask.shape)
    return NodeOutput(batch)


def graph() -> TaskGraph:
    """Return the graph of GRPO whose rewards are those of :func:`reward_every_other`."""

    def reward(pipeline: Pipeline, after: str) -> str:
        ref = "benchmarks.robots.full_size:reward_every_other"
        pipeline.add_node("reward", ref, [after], node_role=NodeRole.REWARD)
        return "reward"

    return policy_gradient("full_size", "GRPO with arbitrary rewards", reward)


def write_random(folder: Path, num_layers: int) -> dict[str, int]:
    """Write a checkpoint of random weights, in bfloat16 as published; return the number of weights of each part.

    Args:
        folder: Folder to write.
        num_layers: Layers of language model and expert; published are 16.
    """
    from safetensors.torch import load_file, save_file

    from embodyflow.policies.embodied.flow_vla.tokenizer_flow_vla import build_tokenizer

    images = {f"{IMAGES}{name}": {"type": "VISUAL", "shape": [3, 512, 512]} for name in CAMERAS}
    described = {
        **DEFAULTS,
        **{"type": LAYOUT.kind, "vlm_model_name": VLM, "num_vlm_layers": num_layers},
        "input_features": {STATE: {"type": "STATE", "shape": [STATE_DIM]}, **images},
        "output_features": {ACTION: {"type": "ACTION", "shape": [ACTION_DIM]}},
    }
    vlm = {
        **{"model_type": "smolvlm", "architectures": ["SmolVLMForConditionalGeneration"], "scale_factor": 4},
        **{"image_token_id": 49_190, "pad_token_id": 2, "text_config": TEXT, "vision_config": VISION},
    }
    torch.manual_seed(0)
    description = Description(described, vlm, {}, None, None)
    model = SmolVLA(description, train_expert_only=True)
    keys: dict[str, Any] = {"path": str(folder), "tokenizer": TOKENIZER, "cameras": CAMERAS, "chunk_size": CHUNK}
    config = SmolVLAConfig(**keys)
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    write_checkpoint(LAYOUT, config, description, build_tokenizer(), weights, folder)
    halved = {name: value.bfloat16() for name, value in load_file(folder / WEIGHTS).items()}
    save_file(halved, folder / WEIGHTS)
    return count_weights(model)


def count_weights(model: SmolVLA) -> dict[str, int]:
    """Return the number of weights of each part, of all, and of those that are trained with the expert only."""
    vlm: Any = model.model.vlm
    parts = {
        "vision tower": vlm.model["vision_model"],
        "connector": vlm.model["connector"],
        "language model": vlm.model["text_model"],
        "language head": vlm.lm_head,
        "expert": model.model.vlm_with_expert["lm_expert"],
    }
    counts = {name: sum(value.numel() for value in part.parameters()) for name, part in parts.items()}
    counts["all"] = sum(value.numel() for value in model.parameters())
    counts["projections"] = counts["all"] - sum(count for name, count in counts.items() if name != "all")
    counts["trained"] = sum(value.numel() for value in model.parameters() if value.requires_grad)
    return counts


@dataclass
class Sampler:
    """Memory of a run's processes over time.

    Attributes:
        root: Process whose descendants are sampled, with itself.
        before: Bytes in ``/dev/shm`` before the run.
        samples: Seconds, PSS by process id, and bytes in ``/dev/shm`` beyond ``before``.
        parents, commands: Parent and command line of every process.
    """

    root: psutil.Process
    before: int
    samples: list[tuple[float, dict[int, int], int]] = field(default_factory=list)
    parents: dict[int, int] = field(default_factory=dict)
    commands: dict[int, str] = field(default_factory=dict)

    def take(self) -> None:
        """Take a sample."""
        found: dict[int, int] = {}
        for process in [self.root, *self.root.children(recursive=True)]:
            try:
                if process.pid not in self.parents:
                    self.parents[process.pid], self.commands[process.pid] = process.ppid(), " ".join(process.cmdline())
                found[process.pid] = pss(process.pid)
            except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
                continue  # it has ended
        self.samples.append((time.time(), found, shutil.disk_usage("/dev/shm").used - self.before))

    def peaks(self, pids: Mapping[str, int]) -> dict[str, Any]:
        """Return the peaks in GiB by role and in total; ``pids`` has the run's processes by name."""
        names = {pid: name for name, pid in pids.items()}
        by_role: dict[str, int] = {}
        for _, found, _ in self.samples:
            held: dict[str, int] = {}
            for pid, size in found.items():
                role = self._role(pid, names)
                held[role] = held.get(role, 0) + size
            by_role = {role: max(held.get(role, 0), by_role.get(role, 0)) for role in {*held, *by_role}}
        return {
            "by_role": {role: in_gib(size) for role, size in sorted(by_role.items())},
            "processes": in_gib(max(sum(found.values()) for _, found, _ in self.samples)),
            "dev_shm": in_gib(max(shared for _, _, shared in self.samples)),
            "workers": in_gib(max(self._workers(found, names) for _, found, _ in self.samples)),
            "seconds_of_peak": round(max(self.samples, key=lambda each: sum(each[1].values()))[0] - self.samples[0][0]),
            "samples": len(self.samples),
        }

    def _workers(self, found: Mapping[int, int], names: Mapping[int, str]) -> int:
        """Return the bytes of all trainers and rollout workers, private and shared."""
        return sum(size for pid, size in found.items() if self._role(pid, names).startswith(("trainer", "rollout")))

    def _role(self, pid: int, names: Mapping[int, str]) -> str:
        if pid in names:
            return "buffer" if names[pid].startswith("buffer") else names[pid]
        if names.get(self.parents[pid], "").startswith("rollout"):
            return "environments"
        command = self.commands[pid]
        if "server" in command and ("prefect" in command or "embodyflow" in command):
            return "Prefect server"
        return "Ray" if "ray" in command else "other"


@contextmanager
def sampling(root: psutil.Process, every: float = 1.0) -> Iterator[Sampler]:
    """Sample the memory of a process and its descendants within the block."""
    sampler, ended = Sampler(root, shutil.disk_usage("/dev/shm").used), threading.Event()

    def work() -> None:
        while not ended.wait(every):
            sampler.take()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield sampler
    finally:
        ended.set()
        thread.join()


def pss(pid: int) -> int:
    """Return the proportional set size of a process in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


def in_gib(size: float) -> float:
    return round(size / 2**30, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="folder of checkpoint and runs")
    parser.add_argument("--trained", choices=("expert", "all"), default="expert")
    parser.add_argument("--num-layers", type=int, default=16, help="layers of language model and expert")
    parser.add_argument("--minutes", type=float, default=60, help="a run that takes longer is stopped")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--only-plan", action="store_true", help="plan the runs of the report again")
    arguments = parser.parse_args()
    if arguments.only_plan:
        plan_again(arguments.folder, arguments.output)
        return
    checkpoint = arguments.folder / f"checkpoint-{arguments.num_layers}"
    counts = write_random(checkpoint, arguments.num_layers)
    name = f"{arguments.trained}-{arguments.num_layers}"
    words = (*WORDS, f"policy.path={checkpoint}", f"policy.tokenizer={TOKENIZER}")
    words = (*words, f"policy.train_expert_only={str(arguments.trained == 'expert').lower()}")
    print(name, counts, flush=True)
    figures = run(arguments.folder, name, words, arguments.minutes)
    check(figures["iterations"])
    shown_words = [word.replace(str(checkpoint), "<checkpoint>") for word in words]
    measured = {"name": name, "weights": counts, "words": shown_words, **figures, "planned": planned(words)}
    print(json.dumps(measured, indent=1))
    found = json.loads(arguments.output.read_text())["comparisons"] if arguments.output.exists() else []
    others = [each for each in found if each["name"] != name]
    write_report(arguments.output, ("torch", "transformers", "ray", "prefect"), [*others, measured])


def plan_again(folder: Path, output: Path) -> None:
    """Write the planned memory of each run of a report, whose measurements stay as they are."""
    report = json.loads(output.read_text())
    for each in report["comparisons"]:
        checkpoint = folder / f"checkpoint-{each['name'].rpartition('-')[2]}"
        if not checkpoint.exists():
            write_random(checkpoint, int(each["name"].rpartition("-")[2]))
        each["planned"] = planned([word.replace("<checkpoint>", str(checkpoint)) for word in each["words"]])
    output.write_text(json.dumps(report, indent=1) + "\n")


def planned(words: Sequence[str]) -> dict[str, float]:
    """Return the planned peaks in GiB by role; the rollout worker's has its environment's."""
    memory = planned_memory(words)
    rollout = memory.rollout + ENVIRONMENT_BYTES
    sizes = {"rollout/0": rollout, "trainer/0": memory.trainer, "dev_shm": memory.shared}
    return {name: in_gib(size) for name, size in {**sizes, "workers": rollout + memory.trainer}.items()}


def shown(name: str) -> bool:
    """Return True if the report has the metric: times, gradients, the distance to the reference, digests."""
    others = ("iteration", "weights_digest", "train/grad_norm", "policy/kl_to_reference", "rollout/num_steps")
    return name in others or (name.startswith("perf/") and name.endswith(("_seconds", "_bytes")))


def check(iterations: Sequence[Mapping[str, Any]]) -> None:
    """Require finite gradients, new weights in each iteration, and a reference that differs once the policy has moved.

    Raises:
        SystemExit: One line that says what is wrong.
    """
    norms = [line["train/grad_norm"] for line in iterations]
    if not all(math.isfinite(norm) and norm > 0 for norm in norms):
        sys.exit(f"not met: gradients must be finite and not zero; their norms are {norms}")
    if len({line["weights_digest"] for line in iterations}) < len(iterations):
        sys.exit("not met: an iteration left the weights as they were")
    distances = [line["policy/kl_to_reference"] for line in iterations]
    if distances[0] != 0 or not distances[-1] > 0:
        sys.exit(f"not met: the policy must begin at its reference and move away; the divergences are {distances}")


def run(folder: Path, name: str, words: Sequence[str], minutes: float) -> dict[str, Any]:
    """Run a job; return its seconds by node and iteration, and its memory."""
    log, run_dir = folder / f"{name}.log", folder / name
    shutil.rmtree(run_dir, ignore_errors=True)
    command = [sys.executable, "-m", "flows.grpo", *words, f"run_root={folder}", f"run_id={name}"]
    started = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with running(command, log, environment) as process, sampling(psutil.Process(process.pid)) as sampler:
        try:
            code = process.wait(60 * minutes)
        except psutil.TimeoutExpired:
            code = None
    check_command(command, log, code)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "train/grad_norm" in line]  # the others are evaluations
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "iterations": [{name: value for name, value in line.items() if shown(name)} for line in trained],
        "memory": sampler.peaks(json.loads((run_dir / "processes.json").read_text())),
    }


if __name__ == "__main__":
    main()
