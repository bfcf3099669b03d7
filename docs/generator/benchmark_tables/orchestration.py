"""Tables of the control plane and the data plane."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from docs.generator.benchmark_tables.results import machine, percent, read
from docs.generator.markdown import code, table


def orchestration() -> str:
    """Return the times of an iteration of empty nodes."""
    report = read("orchestration")["milliseconds"]
    names = {
        "raw": "seven bare Ray calls",
        "plain": "Prefect: an empty flow of seven empty tasks",
        "ours": "ours: seven empty nodes, with commit",
        "one": "ours with `pipeline.task_runs=iteration`",
    }
    rows = [(text, *(f"{report[db][key]['median']:.0f} ms" for db in report)) for key, text in names.items()]
    return table(("Iteration", *report), rows)


def start() -> str:
    """Return the time of a start, and the CPU time of its parts."""
    report = read("start")
    rounds = report["comparisons"]
    names = list(rounds[0])

    def medians(key: str) -> list[str]:
        found = [[each[name][key] for each in rounds if key in each[name]] for name in names]
        return [f"{median(values):.1f} s" if values else "–" for values in found]

    rows = [("workers ready", *medians("seconds"))]
    for part in rounds[0][names[0]]["cpu_seconds"]:
        cpu = (f"{median(each[name]['cpu_seconds'][part] for each in rounds):.1f} s" for name in names)
        who = "the flow and its watchers" if part == "flow" else part
        rows.append((f"CPU time of {who} until then", *cpu))
    rows.append(("first iteration done", *medians("seconds_to_first_iteration")))
    return table(("", *names, "Machine"), [(*row, machine(report)) for row in rows])


def planning() -> str:
    """Return the times to plan a redistribution."""
    rows = []
    for each in read("planning"):
        case = f"{each['rows']:,} rows, {each['sources']} → {each['targets']} ranks, Ray nodes: {each['nodes']}"
        peer = f"{each['verl_ms']:,.0f} ms" if "verl_ms" in each else "–"
        rows.append((case, f"{each['ours_ms']:,.0f} ms", peer, f"{each['ours_imbalance']:.1e}"))
    return table(("Case", "Ours", "verl", "Our imbalance"), rows)


def tracing() -> str:
    """Return the cost of a span, and of all spans of a job's busiest process."""
    report = read("tracing")
    [found] = report["comparisons"]
    ways = {"off": "without a trace", "on": "with `tracking.trace=true`"}
    spans = [(way, f"{found[f'microseconds_per_span_{key}']:g} µs") for key, way in ways.items()]
    jobs = [
        (code(name), each["process"], f"{each['spans']:g}", f"{each['seconds']:.2f} s", percent(each["share"]))
        for name, each in report["jobs"].items()
    ]
    header = ("Job", "Busiest process", "Spans", "Iteration", "Cost of its spans")
    return f"{table(('A span', 'Time'), spans)}\n\n{table(header, jobs)}"


def evaluations() -> str:
    """Return what evaluations cost training, by where they run."""
    report = read("evaluation_beside")
    rows = [
        (
            each["arm"],
            f"{median(each['seconds_per_iteration']):.2f} s",
            f"**{percent(each['cost'])}**",
            ", ".join(percent(cost) for cost in sorted(each["costs"])),
        )
        for each in report["comparisons"][1:]
    ]
    header = ("Evaluated", "An iteration and its waits", "Cost, median", "Cost of each round")
    return f"{table(header, rows)}\n\nOn {machine(report)}."


def durability() -> str:
    """Return the cost of durability as shares of an iteration."""
    rows = []
    for job, each in read("durability").items():
        low, high = map(percent, each["interval"])
        most, compared = percent(each["account"]["most_share"]), percent(each["overhead"])
        rows.append((code(job), f"at most {most}", f"{compared} ({low} to {high})"))
    return table(("Experiment", "Added up", "Compared"), rows)


def forecasts() -> str:
    """Return how far forecasts of iteration time were off."""
    rows = []
    for run in read("forecast")["comparisons"]:
        order = "synchronous" if not run["staleness"] else f"{run['staleness']} ahead"
        what = (run["job"], f"{run['workers']}, {run['ranks']}", order, f"{run['cores_of_others']:.1f}")
        errors = (_error(run, source) for source in ("from_one", "from_two", "from_three"))
        low, *_, high = run["repeats"]
        rows.append((*what, f"{run['measured']:.2f} s ({low:.2f} to {high:.2f})", *errors))
    errors_from = ("from one", "from two", "from three")
    return table(("Job", "Workers, ranks", "Order", "Others", "Measured", *errors_from), rows)


def _error(run: Mapping[str, Any], source: str) -> str:
    error = run.get(source, {}).get("error")
    return "–" if error is None else f"{error:+.0%}"


def data_plane() -> str:
    """Return the speed of rows between workers."""
    rows = []
    for each in read("data_plane")["results"]:
        if each["megabytes"] == 500:
            continue
        (sources, targets), ratios = each["layout"], each["ratios"]
        rows.append(
            (
                f"{each['megabytes']} MB {each['kind']}, {sources} → {targets}",
                f"{each['ours']['deliver_ms']:.0f} ms",
                f"{each['calls']['deliver_ms']:.0f} ms",
                *(f"{ratios[peer]:.1f}" if peer in ratios else "–" for peer in ("transfer queue", "verl", "ray refs")),
                percent(ratios["memcpy"]),
                f"{each['ours']['driver_bytes'] / 1000:.1f} kB",
            )
        )
    header = (
        "Rows, sources → targets",
        "Ours",
        "Calls",
        "TransferQueue ÷ ours",
        "verl ÷ ours",
        "Ray references ÷ ours",
        "Share of memcpy",
        "By the driver",
    )
    return table(header, rows)


def weights_memory() -> str:
    """Return how much memory grows while weights are published, before and now."""
    report = read("weights_memory")
    rows = [
        (
            {"before": "whole"}.get(each["code"], each["code"]),
            str(each["ranks"]),
            *(", ".join(f"{value:.2f}" for value in each["growth"][role]) for role in ("trainer", "rollout")),
            *(f"{min(each['seconds'][role]):.1f} s" for role in ("trainer", "rollout")),
        )
        for each in sorted(report["comparisons"], key=lambda each: (each["ranks"], each["code"]))
    ]
    names = ("Weights travel", "Trainer ranks", "Rank 0", "Rollout worker", "Publication", "Loading")
    return table(names, rows)


def heads() -> str:
    """Return the memory of a large vocabulary's head, as a whole and in pieces."""
    report = read("head_memory")
    works = {"score": "log-probs", "train": "log-probs and gradients"}
    rows = [
        (
            works[each["work"]],
            {"whole": "as a whole", "pieces": "in pieces"}[each["head"]],
            f"{each['memory_gb']:.2f} GB",
            f"{each['cpu_seconds']:.1f} s",
        )
        for each in report["comparisons"]
    ]
    return table(("Pass", "Head", "Memory", "CPU time"), rows)


TABLES = (
    heads,
    weights_memory,
    data_plane,
    planning,
    orchestration,
    start,
    tracing,
    evaluations,
    forecasts,
    durability,
)
