"""Tables of jobs on GPUs."""

from collections.abc import Mapping

from docs.generator.benchmark_tables.results import read
from docs.generator.markdown import code, table

OURS_ON_GPU, PEER_ON_GPU = "embodyflow hf", "transformers generate"
GPU_NODES = ("rollout", "old_log_prob", "ref_log_prob", "train_actor")


def gpu() -> str:
    """Return tokens per second of generation on a GPU."""
    report = read("gpu")
    [rates] = [each["figures"] for each in report["comparisons"] if each["part"] == "generation"]
    rows = [
        (batch, *(f"{each[name]:,.0f}" for name in (OURS_ON_GPU, PEER_ON_GPU)), _ratio_of(each), report["device"])
        for batch, each in rates.items()
    ]
    return table(("Completions", OURS_ON_GPU, PEER_ON_GPU, "Ratio", "Machine"), rows)


def _ratio_of(rates: Mapping[str, float]) -> str:
    return f"**{rates[OURS_ON_GPU] / rates[PEER_ON_GPU]:.2f}**"


def gpu_jobs() -> str:
    """Return what an iteration of jobs on a GPU takes."""
    report = read("gpu")
    rows = []
    for each in report["comparisons"]:
        if (seconds := each["figures"].get("medians")) is not None:
            nodes = (f"{seconds[f'perf/{node}_seconds']:.1f} s" for node in ("iteration", *GPU_NODES))
            rows.append((code(each["part"]), *nodes, report["device"]))
    return table(("Job", "Iteration", *(code(node) for node in GPU_NODES), "Machine"), rows)


TABLES = (
    gpu,
    gpu_jobs,
)
