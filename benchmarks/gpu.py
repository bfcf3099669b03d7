"""What one GPU does: generation, a language job and VLAs at their published sizes, with random weights.

    python -m benchmarks.gpu --folder /tmp/gpu
    python -m benchmarks.gpu --folder /tmp/gpu --parts generation smolvla

Needs a CUDA device. The parts:

- ``generation``: our transformers engine against transformers' own ``generate``, in bfloat16, for a model of the sizes
  of Qwen3-0.6B with its 151,936 tokens. Contenders take turns, and the figure is completion tokens per second.
- ``language``: GRPO for the same model, on responses of 256 tokens.
- ``smolvla``: GRPO for SmolVLA at the widths and depths that are published, on images of Meta-World.
- ``openvla``: GRPO with LoRA for OpenVLA-OFT at the sizes of its 7-billion language model, on the same images.

Each job is what a user runs, ``python -m flows.grpo … cluster=gpu``, in a process of its own. Its figures are medians
over the iterations after the first, which warms up. Nothing is learned: the weights are random, and few iterations are
made. The MFU of training counts 6 operations per weight and token, without attention, and takes the rate of a large
bfloat16 product on the same device as its peak.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT, run_command
from benchmarks.report import write_report
from embodyflow.prompts.word_tokenizer import word_tokenizer
from embodyflow.rewards.interface import Sample, Score

RESULTS = ROOT / "benchmarks/results/gpu.json"
VOCAB_SIZE = 151_936
QWEN = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
}
BFLOAT16 = ("trainer.precision=bfloat16", "trainer.parity_tolerance=0.2")
IMAGES = (
    *("experiment=embodied", "+env.kwargs.image_size=224", "env.max_steps=80", "rollout.chunk_correlation=0.5"),
    *("rollout.num_workers=1", "rollout.num_groups=4", "rollout.group_size=8", "rollout.envs_per_worker=32"),
    *("warm_start.num_demos=2", "evaluation.num_goals=4", "evaluation.video=false", "filter.drop_uniform=false"),
)
SMOLVLA = {
    **{"image_size": 512, "patch_size": 16, "pixel_shuffle": 4, "vision_hidden_size": 780, "num_vision_layers": 12},
    **{"hidden_size": 960, "intermediate_size": 2560, "num_layers": 16},
    **{"num_attention_heads": 15, "num_key_value_heads": 5, "max_state_dim": 64, "max_action_dim": 32},
}
OPENVLA = {
    **{"image_size": 224, "patch_size": 14, "vision_hidden_size": 1024, "num_vision_layers": 25},
    **{"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
}


def scratch(sizes: dict[str, int]) -> tuple[str, ...]:
    """Return the words that set the sizes of a policy of random weights."""
    return tuple(f"policy.scratch.{name}={size}" for name, size in sizes.items())


JOBS: dict[str, tuple[str, ...]] = {
    "language": (
        *("experiment=math", *scratch(QWEN), "policy.tokenizer=benchmarks.gpu:build_tokenizer", "warm_start=null"),
        *("rollout.num_workers=1", "rollout.num_groups=16", "rollout.group_size=8", "rollout.max_response_tokens=256"),
        *("rollout.generation.dtype=bfloat16", "rollout.generation.max_num_seqs=128", "rollout.probe_tolerance=0.2"),
        *("reward=custom", "reward.function.function=benchmarks.gpu:share_of_low_ids", "filter.drop_uniform=false"),
        *("trainer.learning_rate=1e-6", "trainer.num_minibatches=1", "trainer.micro_batch_tokens=16384"),
        *("evaluation.num_prompts=4", "evaluation.num_samples=1", "evaluation.num_shown=1"),
    ),
    "smolvla": (
        *(*IMAGES, "policy=tiny_smolvla", *scratch(SMOLVLA), "policy.chunk_size=10", "policy.num_steps=10"),
        *("policy.train_expert_only=true", "warm_start.steps=20", "warm_start.batch_size=16"),
        "trainer.micro_batch_rows=4",
    ),
    "openvla": (
        *(*IMAGES, "policy=tiny_openvla", *scratch(OPENVLA), "trainer.lora.rank=32"),
        *("trainer.activation_checkpointing=true", "warm_start.steps=2", "warm_start.batch_size=8"),
        "trainer.micro_batch_rows=2",
    ),
}
SHARED = ("cluster=gpu", "iterations=3", *BFLOAT16)


def build_tokenizer() -> Any:
    """Return a tokenizer of as many tokens as Qwen3 has; each is one character, but for those of sums."""
    sums = (*"0123456789+=,", " is ", " #### ")
    special = 4  # tokens that every tokenizer of words has
    letters = (chr(code) for code in range(0x4E00, 0x110000) if not 0xD800 <= code < 0xE000)
    words = [*sums, *(next(letters) for _ in range(VOCAB_SIZE - special - len(sums)))]
    return word_tokenizer(words, end="<eos>", chat_template="{{ messages[0]['content'] }}", begins=True)


def share_of_low_ids(sample: Sample) -> Score:
    """Score the share of tokens from the first half of the vocabulary, so that siblings have different rewards."""
    share = sum(token < VOCAB_SIZE // 2 for token in sample.token_ids) / max(len(sample.token_ids), 1)
    return Score(share, share > 0.5)


def peak_rate() -> float:
    """Return the operations per second of a bfloat16 product of 8192 × 8192 matrices of random numbers."""
    import torch

    left, right = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)

    def multiply(times: int) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(times):
            left @ right
        torch.cuda.synchronize()
        return times * 2 * 8192**3 / (time.perf_counter() - started)

    multiply(3)
    return multiply(20)


def generation(rounds: int) -> dict[str, Any]:
    """Return the tokens per second of our engine and of transformers' ``generate``, in turns, by batch size."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

    from embodyflow.config.generation import HFConfig
    from embodyflow.generation.engines import build_generation_engine
    from embodyflow.generation.interface import Request, Sampling

    torch.manual_seed(0)
    folder = Path(tempfile.mkdtemp())
    config = Qwen3Config(vocab_size=VOCAB_SIZE, tie_word_embeddings=True, bos_token_id=None, eos_token_id=0, **QWEN)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).cuda().eval()
    num_tokens, found = 128, {}
    for batch in (16, 64, 256):
        prompts = torch.randint(1, VOCAB_SIZE, (batch // 8, 100)).repeat_interleave(8, 0)
        requests = [Request(tuple(prompt), seed) for seed, prompt in enumerate(prompts.tolist())]
        engine = build_generation_engine(HFConfig(max_num_seqs=batch, dtype="bfloat16"), folder, "cuda")

        def ours(requests: Sequence[Request] = requests, engine: Any = engine) -> int:
            return sum(len(one.token_ids) for one in engine.generate(requests, Sampling(max_tokens=num_tokens)))

        @torch.inference_mode()
        def theirs(prompts: Any = prompts) -> int:
            options = {"max_new_tokens": num_tokens, "do_sample": True, "pad_token_id": 0, "eos_token_id": None}
            return int(model.generate(prompts.cuda(), **options)[:, prompts.shape[1] :].numel())

        found[str(batch)] = in_turns({"embodyflow hf": ours, "transformers generate": theirs}, rounds)
        print(batch, found[str(batch)], flush=True)
        engine.close()
    return found


def in_turns(contenders: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Return the median tokens per second of each contender; the first round warms up."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, play in contenders.items():
            started = time.perf_counter()
            tokens = play()  # tokens that have arrived: nothing is left to wait for on the device
            rates[name].append(tokens / (time.perf_counter() - started))
    return {name: statistics.median(each[1:]) for name, each in rates.items()}


def job(name: str, folder: Path, minutes: float, peak: float) -> dict[str, Any]:
    """Run a job and return its figures."""
    log, run_dir = folder / f"{name}.log", folder / name
    command = [sys.executable, "-m", "flows.grpo", *JOBS[name], *SHARED, f"run_root={folder}", f"run_id={name}"]
    with used_device(folder / f"{name}.smi") as usage:
        started = time.perf_counter()
        run_command(command, log, timeout=60 * minutes)
        seconds = time.perf_counter() - started
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "digests" in line][1:]
    names = {key for line in trained for key in line if key.startswith(("perf/", "rollout/num_", "parity/"))}
    medians = {key: statistics.median(line[key] for line in trained if key in line) for key in sorted(names)}
    figures = {"words": [*JOBS[name], *SHARED], "seconds": seconds, "device": usage, "medians": medians}
    if name == "language":
        figures |= language_rates(medians, peak)
    print(name, json.dumps(figures, indent=1), flush=True)
    return figures


def language_rates(medians: dict[str, float], peak: float) -> dict[str, float]:
    """Return tokens per second of generation and training, and the MFU of training."""
    layers, hidden = QWEN["num_hidden_layers"], QWEN["hidden_size"]
    width, keys = (QWEN[name] * QWEN["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    weights = layers * hidden * (2 * width + 2 * keys + 3 * QWEN["intermediate_size"]) + VOCAB_SIZE * hidden
    tokens, train = medians["rollout/num_steps"], medians["perf/train_actor_seconds"]
    return {
        "weights": weights,
        "rollout_tokens_per_second": tokens / medians["perf/rollout_seconds"],
        "train_tokens_per_second": tokens / train,
        "train_mfu": 6 * weights * tokens / train / peak,
    }


@contextmanager
def used_device(log: Path) -> Iterator[dict[str, float]]:
    """Yield a mapping that receives the device's peak memory in MiB and its mean utilization in percent."""
    query = ["nvidia-smi", "--query-gpu=memory.used,utilization.gpu", "--format=csv,noheader,nounits", "-lms", "500"]
    usage: dict[str, float] = {}
    with log.open("w") as output:
        watcher = subprocess.Popen(query, stdout=output)
        try:
            yield usage
        finally:
            watcher.terminate()
            watcher.wait()
    samples = [[float(value) for value in line.split(",")] for line in log.read_text().splitlines() if "," in line]
    usage["peak_memory_mib"] = max(memory for memory, _ in samples)
    usage["mean_utilization"] = statistics.mean(busy for _, busy in samples)


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--parts", nargs="+", default=["generation", *JOBS], choices=["generation", *JOBS])
    parser.add_argument("--rounds", type=int, default=3, help="rounds of generation")
    parser.add_argument("--minutes", type=float, default=10, help="a job that takes longer is killed")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    found = json.loads(arguments.output.read_text())["comparisons"] if arguments.output.exists() else []
    parts = {each["part"]: each for each in found}
    peak = peak_rate()
    torch.cuda.empty_cache()
    for part in arguments.parts:
        if part == "generation":
            figures = generation(arguments.rounds)
        else:
            figures = job(part, arguments.folder, arguments.minutes, peak)
        parts[part] = {"part": part, "figures": figures}
        device = {"device": torch.cuda.get_device_name(), "peak_operations_per_second": peak}
        write_report(arguments.output, ("torch", "transformers", "ray", "prefect"), [*parts.values()], **device)


if __name__ == "__main__":
    main()
