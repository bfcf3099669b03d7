"""The tables of the page of benchmarks, from the figures in ``benchmarks/results``."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from docs.generator.markdown import code, table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

_FIGURES = re.compile(r"<!-- figures: (?P<name>\w+) -->\n.*?<!-- end -->", re.DOTALL)
SAC_CONTENDERS = ("embodyflow", "stable-baselines3")
OURS_ON_GPU, PEER_ON_GPU = "embodyflow hf", "transformers generate"
GPU_NODES = ("rollout", "old_log_prob", "ref_log_prob", "train_actor")
_PROCESSORS = {"GenuineIntel": "two cores of an Intel Xeon", "AuthenticAMD": "two cores of an AMD EPYC"}

_read_so_far: set[str] = set()


def page(problems: list[str]) -> str:
    """Return the page with the tables as the figures are now; its text is written by hand.

    Args:
        problems: Takes a line for each file of figures that the page leaves out.
    """
    _read_so_far.clear()
    text = _FIGURES.sub(lambda found: _between(found["name"]), PAGE.read_text())
    if left_out := sorted({path.stem for path in RESULTS.glob("*.json")} - _read_so_far):
        problems.append(f"no table shows benchmarks/results of {', '.join(left_out)}")
    return text


def _between(name: str) -> str:
    return f"<!-- figures: {name} -->\n\n{TABLES[name]()}\n\n<!-- end -->"


def _read(name: str) -> Any:
    _read_so_far.add(name)
    return json.loads((RESULTS / f"{name}.json").read_text())


def _machine(report: Mapping[str, Any]) -> str:
    processor = str(report.get("machine", {}).get("processor", ""))
    return next((name for word, name in _PROCESSORS.items() if word in processor), "two cores")


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _lift(mean: Mapping[str, float]) -> tuple[str, str, str]:
    after = f"**{mean['success_rate_after']:.2f}**"
    return f"{mean['success_rate_before']:.2f}", after, f"{mean['lowest_success_rate_after']:.2f}"


def _medians(arm: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the medians before and after training, and the lowest rate after, of an arm's runs."""
    before, after = ([run[f"success_rate_{moment}"] for run in arm["runs"]] for moment in ("before", "after"))
    return f"{median(before):.2f}", f"**{median(after):.2f}**", f"{min(after):.2f}"


def suite() -> str:
    """Return the comparisons in their quick forms, with the date and the machine of their measurement."""
    if not (RESULTS / "suite.json").exists():
        return "No results of the suite are committed yet; `make bench` measures them and writes `suite.json`."
    rows = _read("suite")["rows"]
    machines = sorted({_machine(row) for row in rows})
    dates = sorted({row["measured"] for row in rows})
    when = f"on {dates[0]}" if len(dates) == 1 else f"from {dates[0]} to {dates[-1]}"
    header = ("Comparison", "Case", "Peer", "Ours", "Its", "Unit", "Ratio", "Spread", "Machine")
    figures = table(header, [(*_suite_cells(row), _machine(row)) for row in rows])
    return f"Measured {when} on {' and on '.join(machines)}.\n\n{figures}"


def _suite_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a row of the suite; one without figures has the reason in place of its ratio."""
    names = (row["title"], row["case"] or "–", row["peer"] or "–")
    spread = "–" if row["spread"] is None else f"{row['spread']:.0%}"
    if row["status"] != "measured":
        return (*names, "–", "–", row["unit"] or "–", f"{row['status']}: {row['note']}", spread)
    figures = (f"{row[who]:,.0f}" if row[who] >= 100 else f"{row[who]:.3g}" for who in ("ours", "theirs"))
    return (*names, *figures, row["unit"], f"**{row['ratio']:.2f}**", spread)


def learning() -> str:
    """Return the success rates that each experiment has learned."""
    rows = []
    for experiment, name, task, demonstrations in (
        ("embodied", "learning", "reach-v3, the default", "6"),
        ("push", "learning_push", "push-v3", "4"),
        ("push_diffusion", "learning_push_diffusion", "push-v3, a diffusion policy by DPPO", "2"),
        ("drawer_open", "learning_drawer_open", "drawer-open-v3", "1"),
        ("pick_place", "learning_pick_place", "pick-place-v3", "4"),
        ("mt10", "learning_mt10", "MT10's ten tasks, one policy", "2 of each"),
        ("libero", "learning_libero", "five tasks of LIBERO-Object, by states", "2 of each"),
    ):
        report = _read(name)["grpo"]
        seeds, curve = str(len(report["runs"])), f"[curve](images/{name}.png)"
        rows.append((code(experiment), task, demonstrations, *_medians(report), seeds, curve))
    sums = next(each for each in _read("math")["comparisons"] if each["flow"] == "grpo")
    rows.append(
        (
            code("math"),
            "sums, a small Qwen",
            "–",
            *_medians(sums),
            str(len(sums["runs"])),
            "[curve](images/math.png)",
        )
    )
    control = _read("learning")["control"]
    rows.append((code("embodied"), "control", "6", *_medians(control), str(len(control["runs"])), ""))
    return table(("`experiment=`", "Task", "Demonstrations", "Before", "After", "Lowest after", "Seeds", "Curve"), rows)


def algorithms() -> str:
    """Return the success rates of several algorithms on the same task."""
    rows = []
    for name, each in _read("algorithms").items():
        episodes = [run["num_episodes"] for run in each["runs"]]
        mean_episodes = f"{sum(episodes) / len(episodes):,.0f}"
        rows.append((code(name), "reach-v3", *_lift(each["mean"]), str(len(episodes)), mean_episodes))
    for each in _read("math")["comparisons"]:
        rows.append((code(each["flow"]), "sums", *_lift(each["mean"]), str(len(each["runs"])), "–"))
    return table(("Algorithm", "Task", "Before", "After", "Lowest after", "Seeds", "Episodes"), rows)


def srpo() -> str:
    """Return the iterations that SRPO needs for GRPO's final success."""
    rows = []
    for name, task in (("srpo", "FetchReach from scratch, to 2.5 cm"), ("srpo_reach", "reach-v3, one demonstration")):
        report = _read(name)
        grpo, ours = report["grpo"], report["srpo"]
        rows.append(
            (
                task,
                f"{grpo['final']:.2f} after {grpo['reached_at']}",
                f"after {ours['reached_at']}",
                f"{ours['final']:.2f}",
                str(len(grpo["runs"])),
                f"[curves](images/{name}.png)",
            )
        )
    header = ("Task", "GRPO's success, iterations", "SRPO has it", "SRPO's in the end", "Seeds", "Curves")
    return table(header, rows)


def trl() -> str:
    """Return TRL's time by ours."""
    report = _read("llm_grpo")
    rows = []
    for each in report["comparisons"]:
        ratios = (f"{each['trl / embodyflow'][part]['wall']:.2f}" for part in ("total", "generate", "train"))
        rows.append((each["workload"], *ratios, _machine(report)))
    version = report["versions"]["trl"]
    return table((f"Workload, TRL {version}", "Whole iteration", "Generation", "Training", "Machine"), rows)


def generation() -> str:
    """Return tokens per second of generation engines."""
    report = _read("generation")
    workloads = report["comparisons"]
    rows = [
        (name, *(f"{each['contenders'][name]['tokens_per_wall_second']:,.0f}" for each in workloads), _machine(report))
        for name in workloads[0]["contenders"]
    ]
    return table(("Engine", *(each["workload"] for each in workloads), "Machine"), rows)


def gpu() -> str:
    """Return tokens per second of generation on a GPU."""
    report = _read("gpu")
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
    report = _read("gpu")
    rows = []
    for each in report["comparisons"]:
        if (seconds := each["figures"].get("medians")) is not None:
            nodes = (f"{seconds[f'perf/{node}_seconds']:.1f} s" for node in ("iteration", *GPU_NODES))
            rows.append((code(each["part"]), *nodes, report["device"]))
    return table(("Job", "Iteration", *(code(node) for node in GPU_NODES), "Machine"), rows)


def staleness() -> str:
    """Return speed and success with rollouts ahead."""
    report = _read("staleness")
    rows = []
    for each in report["comparisons"]:
        mean = each["mean"]
        exact = f"{mean['success_rate_before']:.2f} → {mean['success_rate_after']:.3f}"
        rows.append((each["arm"], f"{each['speed']:.2f}", f"{each['seconds_to_half']:.0f} s", exact, _machine(report)))
    rows.append(("bound", f"{report['bound']:.2f}", "–", "–", _machine(report)))
    header = ("Arm", "Speed of an iteration", "Half of the sums right after", "Exact match, 80 iterations", "Machine")
    return table(header, rows)


def streaming() -> str:
    """Return the speed of streamed groups where episodes take very different times."""
    report = _read("streaming")
    rows = [
        (each["arm"], f"{median(each['samples_per_second']):.1f}", f"{each['ratio']:.2f}", _machine(report))
        for each in report["comparisons"]
    ]
    return table(("Arm", "Samples/s", "By the synchronous run", "Machine"), rows)


def slow_environments() -> str:
    """Return the speed and the success of streamed episodes where each step of an environment is slow."""
    report = _read("slow_environments")
    rows = []
    for job in report["comparisons"]:
        for each in job["arms"]:
            speed = median(each["samples_per_second"])
            rates = {key: median(values) for key, values in each["success"].items()}
            lifts = (
                f"{rates[f'{kind}success_rate_before']:.2f} → {rates[f'{kind}success_rate_after']:.2f}"
                for kind in ("", "sampled_")
            )
            rows.append((code(job["job"]), each["arm"], f"{speed:.2f}", f"{each['ratio']:.2f}", *lifts))
    header = ("Experiment", "Arm", "Samples/s", "By the synchronous run", "Greedy success", "Sampled success")
    return f"{table(header, rows)}\n\nOn {_machine(report)}."


def full_size() -> str:
    """Return memory by role and seconds by node of SmolVLA at its published size."""
    report = _read("full_size")
    each = next(each for each in report["comparisons"] if each["name"] == "expert-16")
    memory, last = each["memory"], each["iterations"][-1]
    roles = {
        **memory["by_role"],
        "workers": memory["workers"],
        "all processes": memory["processes"],
        "`/dev/shm`": memory["dev_shm"],
    }
    nodes = ("rollout", "old_log_prob", "ref_log_prob", "train_actor", "commit", "iteration")
    planned = {**each["planned"], "`/dev/shm`": each["planned"]["dev_shm"]}
    forecasts = {role: f"{planned[role]:.2f}" if role in planned else "–" for role in roles}
    rows = [(role, f"{gib:.2f}", forecasts[role]) for role, gib in roles.items()]
    held = table(("Role", "Peak, GiB", "Planned"), rows)
    seconds = [(code(node), f"{last[f'perf/{node}_seconds']:.1f} s") for node in nodes]
    return f"{held}\n\n{table(('Node', 'Second iteration'), seconds)}\n\nOn {_machine(report)}."


def soft_actor_critic() -> str:
    """Return returns and speed of SAC beside Stable-Baselines3's."""
    rows = []
    for name, each in _read("sac_control")["comparisons"].items():
        ours, theirs = (", ".join(f"{value:.0f}" for value in each["final_returns"][who]) for who in SAC_CONTENDERS)
        overlap = f"{each['overlapping_points']} of {each['num_points']}"
        rows.append((code(name), ours, theirs, overlap, f"{each['cpu_seconds_ratio']:.2f}"))
    return table(("Experiment", "Our returns", "Its returns", "Points that overlap", "Our CPU time ÷ its"), rows)


def offline() -> str:
    """Return returns and speed of implicit Q-learning beside d3rlpy's."""
    rows = []
    for each in _read("offline")["comparisons"]:
        returns = (each["data_return"], *(each[who]["return"] for who in ("embodyflow", "d3rlpy", "imitation")))
        ratio = each["embodyflow"]["cpu"] / each["d3rlpy"]["cpu"]
        rows.append((str(each["seed"]), *(f"{value:.0f}" for value in returns), f"{ratio:.2f}"))
    head = ("Seed", "Return of the data", "Our return", "Its return", "Imitation alone", "Our CPU time ÷ its")
    return table(head, rows)


def dagger() -> str:
    """Return success on unseen goals of DAgger and of cloning with equal optimizer steps."""
    rows = []
    for each in _read("dagger")["comparisons"]:
        cloned = [f"{other['success']:.2f}" for other in each["cloning"]]
        ours = each["dagger"]
        rows.append((str(each["seed"]), *cloned, f"**{ours['success']:.2f}**", f"{ours['labels']:,}"))
    head = ("Seed", *(f"Cloning {number}" for number in (4, 8, 16, 40)), "DAgger from 4", "Its labels")
    return table(head, rows)


def dsrl() -> str:
    """Return success on unseen goals of a frozen policy, and of the one that steers it."""
    rows = [
        (
            str(run["seed"]),
            *(f"{value:.2f}" for value in (run["frozen_success"], run["points"][0]["success"])),
            f"**{run['points'][-1]['success']:.2f}**",
            f"{run['episodes']:,}",
            f"{run['steps']:,}",
        )
        for run in _read("dsrl_push")["runs"]
    ]
    head = ("Seed", "Frozen, from standard normals", "Frozen, from zeros", "Steered", "Episodes", "Steps")
    return table(head, rows)


def control() -> str:
    """Return returns and speed beside Stable-Baselines3."""
    rows = []
    reports = {"": _read("ppo_control"), ", compiled": _read("ppo_control_compiled")}
    for how, report in reports.items():
        for name, each in report["comparisons"].items():
            ours, theirs = (_mean(each["final_returns"][who]) for who in ("embodyflow", "stable-baselines3"))
            speeds = (f"{each[f'steps_per_{clock}_second_ratio']:.2f}" for clock in ("wall", "cpu"))
            rows.append((f"{code(name)}{how}", f"{ours:.1f}", f"{theirs:.1f}", *speeds))
    bare = next(each for each in _read("ppo_bound")["comparisons"] if each["contender"] == "bare")
    rows.append(("bound of `half_cheetah`", "–", "–", f"{bare['wall_ratio']:.2f}", f"{bare['cpu_ratio']:.2f}"))
    return table(("Experiment", "Our return", "Its return", "Our steps per second ÷ its", "Per CPU second"), rows)


def normalised_control() -> str:
    """Return returns beside Stable-Baselines3's with normalised observations and rewards."""
    comparison = _read("ppo_normalized")["comparison"]
    rows = [
        (name, str(len(returns)), f"{_mean(returns):.0f}", f"{min(returns):.0f}", f"{max(returns):.0f}")
        for name, returns in comparison["last_returns"].items()
    ]
    overlap = f"{100 * comparison['overlapping_points']:.0f} % of {comparison['num_points']} points"
    difference = f"{comparison['difference_in_deviations']:+.2f} standard deviations over seeds"
    figures = table(("Contender", "Seeds", "Mean", "Lowest", "Highest"), rows)
    return f"{figures}\n\nOurs minus theirs: {difference}. The ranges overlap at {overlap}."


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def replay() -> str:
    """Return memory, disk and time of a replay buffer of a million transitions."""
    report = _read("replay")
    memory, draws = report["anonymous_mb_each_100_000"], report["batch_of_256_cpu_milliseconds"]
    rows = [
        ("own memory after 100 000 transitions, and after all", f"{memory[0]:.1f} MB, {memory[-1]:.1f} MB"),
        ("on disk", f"{report['disk_mb']:.0f} MB"),
        ("append, per transition", f"{report['append_cpu_microseconds_per_transition']:.2f} µs"),
        ("commit", f"{report['commit_cpu_milliseconds']:.2f} ms"),
        ("draw 256, of one step and of three", f"{draws['1']:.2f} ms, {draws['3']:.2f} ms"),
        ("reopen at a commit, with all digests", f"{report['reopen_cpu_seconds']:.2f} s"),
    ]
    return table(("Replay buffer", "CPU time or size"), rows)


def vector_env() -> str:
    """Return steps per second of vector environments."""
    report = _read("vector_env")
    rows = []
    for each in report["comparisons"]:
        ours, peer = (each["contenders"][each[who]]["steps_per_second"] for who in ("ours", "best_peer"))
        peers = f"{peer:,.0f} ({each['best_peer']})"
        case = f"{each['environment']}, chunks of {each['chunk_size']}"
        rows.append((case, f"{ours:,.0f}", peers, f"{each['wall_ratio']:.2f}", _machine(report)))
    return table(("Environment", "Ours", "Best peer", "Ratio", "Machine"), rows)


def libero() -> str:
    """Return steps per second of LIBERO's environments."""
    rows = []
    for each in _read("libero_images")["comparisons"]:
        ours, peer = (each["rates"][who]["steps_per_wall_second"] for who in ("embodyflow", "LIBERO SubprocVectorEnv"))
        case, ratio = f"images, chunks of {each['chunk_size']}", each["steps_per_wall_second_ratio"]
        rows.append((case, f"{ours:.0f}", f"{peer:.0f} (LIBERO's SubprocVectorEnv)", f"{ratio:.1f}"))
    for task, rates in _read("libero_steps")["steps_per_cpu_second"].items():
        ours, peer = rates["ours"], rates["robosuite"]
        rows.append((f"states of {task}", f"{ours:.0f}", f"{peer:.0f} (robosuite)", f"{ours / peer:.1f}"))
    return table(("What is shown", "Ours", "Peer", "Ratio"), rows)


def data_plane() -> str:
    """Return the speed of rows between workers."""
    rows = []
    for each in _read("data_plane")["results"]:
        if each["megabytes"] == 500:
            continue
        (sources, targets), ratios = each["layout"], each["ratios"]
        rows.append(
            (
                f"{each['megabytes']} MB {each['kind']}, {sources} → {targets}",
                f"{each['ours']['deliver_ms']:.0f} ms",
                f"{ratios['verl']:.1f}" if "verl" in ratios else "–",
                f"{ratios['ray refs']:.1f}",
                _percent(ratios["memcpy"]),
                f"{each['ours']['driver_bytes'] / 1000:.1f} kB",
            )
        )
    header = (
        "Rows, sources → targets",
        "Ours",
        "verl ÷ ours",
        "Ray references ÷ ours",
        "Share of memcpy",
        "By the driver",
    )
    return table(header, rows)


def forecasts() -> str:
    """Return how far forecasts of iteration time were off."""
    rows = []
    for run in _read("forecast")["comparisons"]:
        order = "synchronous" if not run["staleness"] else f"{run['staleness']} ahead"
        what = (run["job"], f"{run['workers']}, {run['ranks']}", order, f"{run['cores_of_others']:.1f}")
        alone = f"{run['with_cores']:.2f} s" if "with_cores" in run else "–"
        of_alone = (_error(run, source, "error_with_cores") for source in ("from_one", "from_two"))
        of_measured = (_error(run, source, "error") for source in ("from_one", "from_two"))
        rows.append((*what, alone, *of_alone, f"{run['measured']:.2f} s", *of_measured))
    errors = ("from one", "from two")
    return table(("Job", "Workers, ranks", "Order", "Others", "With cores", *errors, "Measured", *errors), rows)


def _error(run: Mapping[str, Any], source: str, name: str) -> str:
    error = run.get(source, {}).get(name)
    return "–" if error is None else f"{error:+.0%}"


def tracing() -> str:
    """Return the cost of a span."""
    [found] = _read("tracing")["comparisons"]
    ways = {"off": "without a trace", "on": "with `tracking.trace=true`"}
    rows = [(name, f"{found[f'microseconds_per_span_{way}']:g} µs") for way, name in ways.items()]
    return table(("A span", "Time"), rows)


def planning() -> str:
    """Return the times to plan a redistribution."""
    rows = []
    for each in _read("planning"):
        case = f"{each['rows']:,} rows, {each['sources']} → {each['targets']} ranks, Ray nodes: {each['nodes']}"
        peer = f"{each['verl_ms']:,.0f} ms" if "verl_ms" in each else "–"
        rows.append((case, f"{each['ours_ms']:,.0f} ms", peer, f"{each['ours_imbalance']:.1e}"))
    return table(("Case", "Ours", "verl", "Our imbalance"), rows)


def orchestration() -> str:
    """Return the times of an iteration of empty nodes."""
    report = _read("orchestration")["milliseconds"]
    names = {
        "raw": "seven bare Ray calls",
        "plain": "Prefect: an empty flow of seven empty tasks",
        "ours": "ours: seven empty nodes, with commit",
        "one": "ours with `pipeline.task_runs=iteration`",
    }
    rows = [(text, *(f"{report[db][key]['median']:.0f} ms" for db in report)) for key, text in names.items()]
    return table(("Iteration", *report), rows)


def faults() -> str:
    """Return the number of runs that differ after random deaths."""
    chaos, env = _read("chaos"), _read("env_faults")
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


def health() -> str:
    """Return what became of planted collapses, with detectors that only report and with detectors that act."""
    rows = []
    for each in sorted(_read("health")["comparisons"], key=lambda each: (not each["real"], each["job"], each["title"])):
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
    report = _read("health")
    rows = [
        (code(job), f"{count}", f"{report['false_alarms'][job]}", _alarms_of(job, report["healthy_runs"]))
        for job, count in report["healthy"].items()
    ]
    return table(("Job", "Healthy runs", "With an alarm", "Alarms"), rows)


def _alarms_of(job: str, runs: Sequence[Mapping[str, Any]]) -> str:
    found = [code(detector) for run in runs if run["job"] == job for _, detector in run["alarms"]]
    return ", ".join(sorted(set(found))) or "–"


def durability() -> str:
    """Return the cost of durability as shares of an iteration."""
    rows = []
    for job, each in _read("durability").items():
        low, high = map(_percent, each["interval"])
        most, compared = _percent(each["account"]["most_share"]), _percent(each["overhead"])
        rows.append((code(job), f"at most {most}", f"{compared} ({low} to {high})"))
    return table(("Experiment", "Added up", "Compared"), rows)


def growth() -> str:
    """Return the growth over many iterations, or many runs."""
    rows = [
        (name, f"{each['end']:,.0f}", f"{each['growth']:+,.1f} per 1,000 iterations")
        for name, each in _read("endurance")["per_1000_iterations"].items()
    ]
    used = [each["used MB"] for each in _read("retention")["after_each"]]
    rows.append(
        ("Prefect database in use MB, runs ten days apart", f"{used[-1]:.1f}", f"{used[2]:.1f} after three runs")
    )
    soak = _read("soak")
    shares = (_percent(soak["growth"][part]) for part in ("driver", "buffer"))
    rows.append(
        ("buffer that spills MB", f"{soak['resident_mb']['buffer']:.0f}", "driver {}, buffer {}".format(*shares))
    )
    return table(("Quantity", "At the end", "Growth"), rows)


def full_database() -> str:
    """Return the slowest request of each page of the Prefect UI over a database with many iterations."""
    report = _read("full_database")
    rows = [
        (name, str(each["requests"]), code(each["slowest"]), f"{each['seconds']:.2f} s")
        for name, each in report["pages"].items()
    ]
    return table(("Page", "Requests", "Slowest request", "Its time"), rows)


def evictions() -> str:
    """Return the outcomes of random evictions of a flow run's pods."""
    report = _read("evictions")
    seen = report["evictions"]
    overlaps, left = (sum(each[key] for each in seen) for key in ("overlaps", "left"))
    rows = [
        ("evictions, with a second pod beside the first", f"{len(seen)}, {overlaps}"),
        ("evictions in different iterations", str(len({each["iterations"][1] for each in seen}))),
        ("same weights after each iteration", "yes" if report["same_weights"] else "**no**"),
        ("state of the flow run at the end", code(report["state"])),
        ("processes left after an eviction, and at the end", f"{left}, {len(report['left'])}"),
    ]
    return table(("What", "Found"), rows)


def exploration() -> str:
    """Return the share of mixed groups by each factor."""
    rows = []
    for task, factors in _read("exploration")["factors"].items():
        for factor, points in factors.items():
            cells = ", ".join(f"{point['value']:g}: {point['mixed']:.2f}" for point in points)
            rows.append((code(task), code(factor), cells))
    return table(("Task", "Factor", "Value: share of mixed groups"), rows)


def formulas() -> str:
    """Return the largest difference of each formula from a peer's own code."""
    rows = [
        (each["formula"], each["peer"], str(each["cases"]), f"{each['max_difference']:.0e}", each["note"] or "–")
        for each in _read("peers_formulas")["comparisons"]
    ]
    return table(("Formula", "Peer", "Cases", "Largest difference", "Note"), rows)


def siirl() -> str:
    """Return the figures of one iteration of siiRL's own graphs."""
    rows = []
    for each in _read("siirl_graphs")["comparisons"]:
        played = each["rollout/num_episodes"]
        kept, steps = each.get("groups/num_kept_rows", played), each["train/optimizer_steps"]
        numbers = (str(len(each["nodes"])), f"{played:g}", f"{kept:g}", f"{steps:g}")
        rows.append((", ".join(each["files"]), code(each["flow"]), *numbers, f"{each['train/grad_norm']:.2g}"))
    return table(("Files", "Flow", "Nodes", "Rows", "Rows kept", "Optimizer steps", "Gradient norm"), rows)


def siirl_agents() -> str:
    """Return the figures of siiRL's own graphs of several agents, a row for each iteration."""
    rows = []
    for each in _read("siirl_agents")["comparisons"]:
        changed = [[], *each["changed"]]
        for number, (iteration, names) in enumerate(zip(each["iterations"], changed, strict=True), 1):
            run = (each["file"], str(each["train_cycle"])) if number == 1 else ("", "")
            [(name, norm)] = iteration["grad_norms"].items()
            counts = str(iteration["episodes"]), f"{iteration['rounds']:.2f}"
            rewards = ", ".join(f"{reward:.2f}" for reward in iteration["rewards"].values())
            rows.append((*run, str(number), *counts, rewards, name, f"{norm:.2g}", ", ".join(names) or "–"))
    head = ("Iteration", "Episodes", "Rounds", "Reward of each agent", "Trains", "Gradient norm", "Changed weights")
    return table(("File", "`train_cycle`", *head), rows)


def agents() -> str:
    """Return the success rates that agents have learned."""
    rows = []
    for experiment, name, task in (
        ("calculator", "agent_learning", "products that are too large for the model, with a calculator"),
        ("self_correct", "agent_learning_self_correct", "sums, with a second answer after a wrong one"),
        ("babyai", "agent_learning_babyai", "the door that a mission names, among four in MiniGrid's GoToDoor"),
    ):
        for each in _read(name)["comparisons"]:
            arm = {"no tool": f"{task.partition(', with')[0]}, without one"}.get(each["arm"], task)
            sampled = (f"{each['mean'][f'sampled_success_rate_{moment}']:.2f}" for moment in ("before", "after"))
            numbers = f"{len(each['runs'])}", f"{each['mean']['mean_train_seconds']:.0f} s"
            rows.append(
                (code(experiment), arm, *_lift(each["mean"]), *sampled, *numbers, f"[curve](images/{name}.png)")
            )
    header = ("`experiment=`", "Task", "Before", "After", "Lowest after", "Sampled before", "Sampled after", "Seeds")
    header = (*header, "Training", "Curve")
    return table(header, rows)


def agent_generation() -> str:
    """Return the speed of episodes with tools that wait, beside its bound."""
    report = _read("agent_generation")
    rows = [
        (
            each["workload"],
            contender,
            f"{row['episodes_per_second']:.1f}",
            _percent(row["idle"]),
            f"{row['of_bound']:.2f}",
            _machine(report),
        )
        for each in report["comparisons"]
        for contender, row in each["contenders"].items()
    ]
    return table(("Tools", "Episodes run", "Episodes/s", "Idle", "Of the bound", "Machine"), rows)


def agent_trl() -> str:
    """Return the speed of rollouts with tools beside TRL's."""
    report = _read("agent_against_trl")
    rows = []
    for each in report["comparisons"]:
        speeds = (f"{row['episodes_per_second']:.1f}" for row in each["contenders"].values())
        rows.append((each["workload"], *speeds, f"**{each['episodes_ratio']:.2f}**", _machine(report)))
    contenders = (f"{name}, episodes/s" for name in report["comparisons"][0]["contenders"])
    return table((f"Tools, TRL {report['versions']['trl']}", *contenders, "Ratio", "Machine"), rows)


def batched_env() -> str:
    """Return steps per second of EnvPool alone, in our vector environment and with a policy in the loop."""
    report = _read("batched_env")
    [found] = report["comparisons"]
    rates = {name: median(each) for name, each in found["steps_per_second"].items()}
    alone, vector, worker, single = rates.values()
    rows = [
        ("EnvPool alone", f"{alone:,.0f}", "", _machine(report)),
        ("our vector environment on it", f"{vector:,.0f}", f"{found['share_of_vector_environment']:.2f}", ""),
        ("our rollout worker on it", f"{worker:,.0f}", f"**{found['share_with_policy']:.2f}**", ""),
        ("our rollout worker on single environments", f"{single:,.0f}", "", ""),
    ]
    return table(("HalfCheetah-v5", "Steps/s", "Share of EnvPool's", "Machine"), rows)


def heads() -> str:
    """Return the memory of a large vocabulary's head, as a whole and in pieces."""
    report = _read("head_memory")
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


def weights_memory() -> str:
    """Return how much memory grows while weights are published, before and now."""
    report = _read("weights_memory")
    rows = [
        (
            {"before": "whole", "in buckets": "in buckets"}[each["code"]],
            str(each["ranks"]),
            *(", ".join(f"{value:.2f}" for value in each["growth"][role]) for role in ("trainer", "rollout")),
            *(f"{min(each['seconds'][role]):.1f} s" for role in ("trainer", "rollout")),
        )
        for each in sorted(report["comparisons"], key=lambda each: (each["ranks"], each["code"]))
    ]
    names = ("Weights travel", "Trainer ranks", "Rank 0", "Rollout worker", "Publication", "Loading")
    return table(names, rows)


def self_play() -> str:
    """Return how exploitable self-play leaves a policy."""
    report = _read("self_play")
    [each] = report["comparisons"]
    rows = [
        (
            str(run["seed"]),
            *(f"{run[key]:.3f}" for key in ("before", "after", "after_average")),
            f"**{run['before'] / run['after']:.1f}**",
            f"{run['train_seconds']:.0f} s",
        )
        for run in each["runs"]
    ]
    return table(("Seed", "Before", "After", "Average of the second half", "Falls by", "Training"), rows)


TABLES = {
    each.__name__: each
    for each in (
        *(suite, learning, algorithms, srpo, trl, generation, gpu, gpu_jobs, staleness, streaming, control),
        *(slow_environments, full_size),
        *(normalised_control, soft_actor_critic, offline, dagger, dsrl, replay, vector_env, batched_env),
        *(libero, agents, self_play, agent_generation, agent_trl, heads, weights_memory, data_plane, planning),
        *(orchestration, tracing, forecasts),
        *(faults, evictions, health, false_alarms, durability, growth, full_database),
        *(exploration, formulas, siirl, siirl_agents),
    )
}
"""The tables by the names that the page marks their places with."""
