"""Tables of language jobs."""

from statistics import median

from docs.generator.benchmark_tables.results import machine, read
from docs.generator.markdown import code, table


def trl() -> str:
    """Return TRL's time by ours."""
    return _trl("llm_grpo")


def trl_published() -> str:
    """Return TRL's time by ours with a published model."""
    return _trl("llm_grpo_gemma")


def _trl(name: str) -> str:
    report = read(name)
    rows = []
    for each in report["comparisons"]:
        ratios = (f"{each['trl / embodyflow'][part]['wall']:.2f}" for part in ("total", "generate", "train"))
        rows.append((each["workload"], *ratios, machine(report)))
    version = report["versions"]["trl"]
    return table((f"Workload, TRL {version}", "Whole iteration", "Generation", "Training", "Machine"), rows)


def llm_bound() -> str:
    """Return the seconds of an iteration with a published model, and those of its matrix products alone."""
    rows = [
        (
            each["workload"],
            *(f"{each[name]:.1f} s" for name in ("trl", "ours", "products")),
            f"{each['products'] / each['operations']:.0%}".replace("%", " %"),
            f"{each['largest_ratio']:.2f}",
        )
        for each in read("llm_bound")["comparisons"]
    ]
    return table(("Workload", "TRL", "Ours", "Products alone", "Share of our operations", "TRL ÷ products"), rows)


def generation() -> str:
    """Return tokens per second of generation engines."""
    return _generation("generation")


def generation_published() -> str:
    """Return tokens per second of generation engines with a published model."""
    return _generation("generation_gemma")


def _generation(name: str) -> str:
    report = read(name)
    workloads = report["comparisons"]
    rows = [
        (name, *(f"{each['contenders'][name]['tokens_per_wall_second']:,.0f}" for each in workloads), machine(report))
        for name in workloads[0]["contenders"]
    ]
    return table(("Engine", *(each["workload"] for each in workloads), "Machine"), rows)


def staleness() -> str:
    """Return speed and success with rollouts ahead."""
    report = read("staleness")
    rows = []
    for each in report["comparisons"]:
        mean = each["mean"]
        exact = f"{mean['success_rate_before']:.2f} → {mean['success_rate_after']:.3f}"
        rows.append((each["arm"], f"{each['speed']:.2f}", f"{each['seconds_to_half']:.0f} s", exact, machine(report)))
    rows.append(("bound", f"{report['bound']:.2f}", "–", "–", machine(report)))
    header = ("Arm", "Speed of an iteration", "Half of the sums right after", "Exact match, 80 iterations", "Machine")
    return table(header, rows)


def streaming() -> str:
    """Return the speed of streamed groups where episodes take very different times."""
    report = read("streaming")
    rows = [
        (code(job["job"]), each["arm"], f"{median(each['samples_per_second']):.1f}", f"{each['ratio']:.2f}")
        for job in report["comparisons"]
        for each in job["arms"]
    ]
    return f"{table(('Job', 'Arm', 'Samples/s', 'By the synchronous run'), rows)}\n\nOn {machine(report)}."


def published() -> str:
    """Return what training adds to a published model."""
    report = read("real_model")
    (comparison,) = report["comparisons"]
    rows = []
    for run in comparison["runs"]:
        greedy, sampled = (
            f"{run['before'][mode]['mean']:.2f} → {run['after'][mode]['mean']:.2f}" for mode in ("greedy", "sampled")
        )
        lift, gap = run["lift"], max(point.get("parity/log_prob_gap", 0.0) for point in run["curve"])
        gained = f"+{lift['mean']:.2f} ({lift['low']:.2f} to {lift['high']:.2f})"
        minutes, memory = (
            f"{len(run['curve'])} in {run['train_seconds'] / 60:.0f} min",
            f"{run['peak_memory_gb']:.1f} GB",
        )
        rows.append((str(run["seed"]), greedy, sampled, gained, minutes, memory, f"{gap:.1e}"))
    header = ("Seed", "Greedy", "Sampled", "Gained, 95 % interval", "Iterations", "Memory", "Log-probs differ by")
    return f"{table(header, rows)}\n\nOn {machine(report)}."


TABLES = (
    trl,
    trl_published,
    llm_bound,
    generation,
    generation_published,
    staleness,
    streaming,
    published,
)
