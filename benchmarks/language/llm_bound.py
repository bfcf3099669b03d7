"""The time that matrix products take in our iteration of GRPO on a published model, beside TRL's whole iteration.

    python -m benchmarks.language.llm_bound --model <file.gguf>

One round of each workload of :mod:`benchmarks.language.llm_grpo` runs under torch's profiler, after a warm-up, with one
thread. Matrix products are those of linear layers, forward and backward, and attention. An implementation with the
same products and nothing else would take that long, so TRL's seconds by theirs, for as many tokens, are the largest
ratio that it could have. TRL's seconds are those in ``benchmarks/results/llm_grpo_gemma.json``, of the same processor.

Writes ``benchmarks/results/llm_bound.json``.
"""

import argparse
import json
import os
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from benchmarks.commands import ROOT
from benchmarks.language.llm_grpo import OURS, TRL, WORKLOADS, Job, ours, save_model
from benchmarks.report import write_report

MEASURED = ROOT / "benchmarks/results/llm_grpo_gemma.json"
RESULTS = ROOT / "benchmarks/results/llm_bound.json"
PRODUCTS = ("mkldnn::_linear_pointwise", "aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm")
ATTENTION = "aten::_scaled_dot_product"
NUM_PROMPTS = 2


class ProfiledRounds:
    """The other end of a contender's pipe: it asks for two rounds and profiles the second."""

    def __init__(self) -> None:
        self.rounds: list[Any] = []

    def recv(self) -> None:
        """Begin a round."""
        from torch.profiler import ProfilerActivity, profile

        if self.rounds:
            self._profile = profile(activities=[ProfilerActivity.CPU])
            self._profile.start()

    def send(self, found: Any) -> None:
        """End a round."""
        if self.rounds:
            self._profile.stop()
        self.rounds.append(found)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of the second round: of its products, and of all operations."""
        events = self._profile.key_averages()
        products = sum(each.self_cpu_time_total for each in events if each.key.startswith((*PRODUCTS, ATTENTION)))
        return {"products": products / 1e6, "operations": sum(each.self_cpu_time_total for each in events) / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="published model, a GGUF file or a folder")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    measured = {each["workload"]: each for each in json.loads(MEASURED.read_text())["comparisons"]}
    import torch

    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), ("policy=causal_lm", f"policy.path={arguments.model}"), end="\n")
        words = ("policy=causal_lm", f"policy.path={folder}")
        for name in arguments.workloads:
            job, pipe = Job(Path(folder), words, NUM_PROMPTS, *WORKLOADS[name], 2), ProfiledRounds()
            ours(job, cast(Connection, pipe))
            name = name.replace("64", str(job.num_rows))
            of_trl, of_ours = (measured[name]["seconds"][who]["total"]["cpu"] for who in (TRL, OURS))
            seconds, tokens = pipe.seconds(), pipe.rounds[-1]["tokens"]
            more = tokens / measured[name]["tokens"][OURS]  # a round of longer responses has more products
            row = {"workload": name, **seconds, "tokens": tokens, "ours": of_ours, "trl": of_trl}
            rows.append(row | {"largest_ratio": of_trl * more / seconds["products"]})
            print(rows[-1], flush=True)
    write_report(arguments.output, ("torch", "transformers"), rows)


if __name__ == "__main__":
    main()
