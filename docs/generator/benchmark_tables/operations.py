"""Tables of faults, health and long operation."""

from collections.abc import Mapping, Sequence
from typing import Any

from docs.generator.benchmark_tables.results import machine, percent, read
from docs.generator.markdown import code, table


def faults() -> str:
    """Return the number of runs that differ after random deaths."""
    chaos, env = read("chaos"), read("env_faults")
    runs, differ = sum(chaos["runs"].values()), len(chaos["runs_that_differ"])
    rows = [
        ("parts of runs killed or stopped at random", f"{chaos['faults']} in {runs} runs", f"{differ}"),
        (
            "faults in environments: aborts, hangs, kills, NaN",
            f"{env['faults']} in 1 run",
            f"{int(not env['same_weights'])}",
        ),
    ]
    return table(("What happened", "How often", "Runs that differ"), rows)


def evictions() -> str:
    """Return the outcomes of random evictions of a flow run's pods."""
    report = read("evictions")
    seen = report["evictions"]
    progress = sum(each["iterations"][1] > each["iterations"][0] for each in seen)
    overlaps, left = (sum(each[key] for each in seen) for key in ("overlaps", "left"))
    rows = [
        ("evictions, with a second pod beside the first", f"{len(seen)}, {overlaps}"),
        ("evictions before the pod's first commit, and later ones", f"{len(seen) - progress}, {progress}"),
        ("same weights after each iteration", "yes" if report["same_weights"] else "**no**"),
        ("state of the flow run at the end", code(report["state"])),
        ("processes left after an eviction, and at the end", f"{left}, {len(report['left'])}"),
    ]
    return table(("What", "Found"), rows)


def requeues() -> str:
    """Return the outcomes of random requeues of a Slurm job."""
    report = read("requeues")
    seen = report["requeues"]
    ways = [each["way"] for each in seen]
    progress = sum(each["iterations"][1] > each["iterations"][0] for each in seen)
    rows = [
        ("requeues after a signal, and as at a preemption", f"{ways.count('signal')}, {ways.count('preemption')}"),
        ("requeues before the job's first commit, and later ones", f"{len(seen) - progress}, {progress}"),
        ("same weights after each iteration", "yes" if report["same_weights"] else "**no**"),
        ("state of the job at the end", code(report["state"])),
        ("processes left after a requeue, and at the end", f"{sum(each['left'] for each in seen)}, {report['left']}"),
    ]
    return table(("What", "Found"), rows)


def queued_runs() -> str:
    """Return how queued flow runs of a work pool with a limit were scheduled."""
    report = read("queued_runs")
    rows = [
        ("queued flow runs, and the limit of their work pool", f"{report['runs']}, {report['limit']}"),
        ("completed", f"{report['completed']}"),
        ("most at once", f"{report['most_at_once']}"),
        ("places by which a run started out of order, at most", f"{report['largest_displacement']}"),
        ("seconds", f"{report['seconds']:.0f}"),
    ]
    return table(("What", "Found"), rows)


def health() -> str:
    """Return what became of planted collapses, with detectors that only report and with detectors that act."""
    rows = []
    for each in sorted(read("health")["comparisons"], key=lambda each: (not each["real"], each["job"], each["title"])):
        first, *others = ([iteration, code(name)] for iteration, name in each["alarms"] or [[0, ""]])
        alarms = f"{first[1]} in {first[0]}" + (f", {len(others)} more" if others else "")
        rows.append(
            (
                code(each["job"]),
                each["title"],
                "yes" if each["real"] else "no",
                f"{each['healthy_success']:.2f}",
                _end(each["success_without"], each["ended_without"]),
                alarms if each["alarms"] else "none",
                f"{len(each['roll_backs'])}",
                _end(each["success"], each["ended"]),
            )
        )
    header = ("Job", "Planted", "Real", "Healthy", "Reported only", "First alarm", "Roll-backs", "Rolled back")
    return table(header, rows)


def _end(success: float, ended: str | None) -> str:
    """Return a run's result, or that it did not reach its end."""
    return f"{success:.2f}" if ended is None else f"ended at {success:.2f}"


def false_alarms() -> str:
    """Return the alarms of healthy runs."""
    report = read("health")
    rows = [
        (code(job), f"{count}", f"{report['false_alarms'][job]}", _alarms_of(job, report["healthy_runs"]))
        for job, count in report["healthy"].items()
    ]
    return table(("Job", "Healthy runs", "With an alarm", "Alarms"), rows)


def _alarms_of(job: str, runs: Sequence[Mapping[str, Any]]) -> str:
    found = [code(detector) for run in runs if run["job"] == job for _, detector in run["alarms"]]
    return ", ".join(sorted(set(found))) or "–"


def growth() -> str:
    """Return the growth over many iterations, or many runs."""
    rows = [
        (name, f"{each['end']:,.0f}", f"{each['growth']:+,.1f} per 1,000 iterations")
        for name, each in read("endurance")["per_1000_iterations"].items()
    ]
    used = [each["used MB"] for each in read("retention")["after_each"]]
    rows.append(
        ("Prefect database in use MB, runs ten days apart", f"{used[-1]:.1f}", f"{used[2]:.1f} after three runs")
    )
    soak = read("soak")
    shares = (percent(soak["growth"][part]) for part in ("driver", "buffer"))
    rows.append(
        ("buffer that spills MB", f"{soak['resident_mb']['buffer']:.0f}", "driver {}, buffer {}".format(*shares))
    )
    return table(("Quantity", "At the end", "Growth"), rows)


def full_database() -> str:
    """Return the slowest request of each page of the Prefect UI over a database with many iterations."""
    report = read("full_database")
    rows = [
        (name, str(each["requests"]), code(each["slowest"]), f"{each['seconds']:.2f} s")
        for name, each in report["pages"].items()
    ]
    return table(("Page", "Requests", "Slowest request", "Its time"), rows)


def slow_link() -> str:
    """Return the seconds of an iteration on one machine, and on two with a fast and a slow link between them."""
    rows = []
    report = read("slow_link")
    for each in report["comparisons"]:
        parts = (each[f"{part}_seconds"] for part in ("iteration", "wait_for_rollout", "train_actor", "commit"))
        lost = f"{each['lost']:,} of {each['packets']:,}" if each["packets"] else "–"
        same = "yes" if each["same_weights"] else "**no**"
        rows.append((f"{each['ranks']}", each["cluster"], *(f"{part:.2f} s" for part in parts), lost, same))
    header = ("Ranks", "Machines", "Iteration", "Wait for rollouts", "Train", "Commit", "Packets lost")
    return f"{table((*header, 'Same weights'), rows)}\n\nOn {machine(report)}."


TABLES = (
    faults,
    evictions,
    requeues,
    queued_runs,
    health,
    false_alarms,
    growth,
    full_database,
    slow_link,
)
