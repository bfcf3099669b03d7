"""Tables of continuous control."""

import statistics
from collections.abc import Sequence

from docs.generator.benchmark_tables.results import machine, read
from docs.generator.markdown import code, table

SAC_CONTENDERS = ("embodyflow", "stable-baselines3")


def control() -> str:
    """Return returns and speed beside Stable-Baselines3."""
    rows = []
    reports = {
        "": read("ppo_control"),
        ", compiled": read("ppo_control_compiled"),
        ", compiled, 25 iterations per commit": read("ppo_control_commits"),
    }
    for how, report in reports.items():
        for name, each in report["comparisons"].items():
            ours, theirs = (_mean(each["final_returns"][who]) for who in ("embodyflow", "stable-baselines3"))
            speeds = (f"{each[f'steps_per_{clock}_second_ratio']:.2f}" for clock in ("wall", "cpu"))
            rows.append((f"{code(name)}{how}", f"{ours:.1f}", f"{theirs:.1f}", *speeds))
    bare = next(each for each in read("ppo_bound")["comparisons"] if each["contender"] == "bare")
    rows.append(("bound of `half_cheetah`", "–", "–", f"{bare['wall_ratio']:.2f}", f"{bare['cpu_ratio']:.2f}"))
    return table(("Experiment", "Our return", "Its return", "Our steps per second ÷ its", "Per CPU second"), rows)


def cleanrl() -> str:
    """Return speed beside CleanRL's script."""
    rows = []
    for how, name in (("eager", "cleanrl"), ("compiled", "cleanrl_compiled")):
        report = read(name)
        [each] = report["comparisons"]
        speeds = {
            contender: statistics.median(
                run["steps_per_wall_second"] for run in each["runs"] if run["contender"] == contender
            )
            for contender in ("embodyflow", "cleanrl")
        }
        ratios = (f"**{each['ratios'][f'steps_per_{clock}_second']:.2f}**" for clock in ("wall", "cpu"))
        rows.append((how, *(f"{speed:,.0f}" for speed in speeds.values()), *ratios, machine(report)))
    header = ("Ours", "Our steps per second", "CleanRL's", "Ratio", "Per CPU second", "Machine")
    return table(header, rows)


def normalised_control() -> str:
    """Return returns beside Stable-Baselines3's with normalised observations and rewards."""
    comparison = read("ppo_normalized")["comparison"]
    rows = [
        (name, str(len(returns)), f"{_mean(returns):.0f}", f"{min(returns):.0f}", f"{max(returns):.0f}")
        for name, returns in comparison["last_returns"].items()
    ]
    overlap = f"{100 * comparison['overlapping_points']:.0f} % of {comparison['num_points']} points"
    difference = f"{comparison['difference_in_deviations']:+.2f} standard deviations over seeds"
    figures = table(("Contender", "Seeds", "Mean", "Lowest", "Highest"), rows)
    return f"{figures}\n\nOurs minus theirs: {difference}. The ranges overlap at {overlap}."


def soft_actor_critic() -> str:
    """Return returns and speed of SAC beside Stable-Baselines3's."""
    rows = []
    for name, each in read("off_policy")["comparisons"].items():
        ours, theirs = (", ".join(f"{value:.0f}" for value in each["final_returns"][who]) for who in SAC_CONTENDERS)
        overlap = f"{each['overlapping_points']} of {each['num_points']}"
        rows.append(
            (
                code(name),
                ours,
                theirs,
                overlap,
                *(f"{1 / each[f'{kind}_seconds_ratio']:.2f}" for kind in ("wall", "cpu")),
            )
        )
    head = (
        "Experiment",
        "Our returns",
        "Its returns",
        "Points that overlap",
        "Our steps per second ÷ its",
        "Per CPU second",
    )
    return table(head, rows)


def hindsight() -> str:
    """Return success by steps with hindsight, without it and beside Stable-Baselines3."""
    runs, sections = read("hindsight")["runs"], []
    for experiment in sorted({run["experiment"] for run in runs}):
        of_it = [run for run in runs if run["experiment"] == experiment]
        steps = [step for step in of_it[0]["success"] if int(step) % 1000 == 0]
        rows = [
            (
                run["contender"],
                str(run["seed"]),
                *(f"{run['success'][step]:.2f}" for step in steps),
                f"{run['cpu_seconds']:.0f}",
            )
            for run in of_it
        ]
        head = (code(experiment), "Seed", *(f"{int(step):,} steps" for step in steps), "CPU seconds")
        sections.append(table(head, rows))
    return "\n\n".join(sections)


def control_success() -> str:
    """Return success of PPO's recipes by steps, with the returns before and after training."""
    runs, sections = read("success")["runs"], []
    for experiment in sorted({run["experiment"] for run in runs}):
        of_it = [run for run in runs if run["experiment"] == experiment]
        rows = []
        for run in of_it:
            points = run["points"]
            returns = f"{points[0]['return']:.0f} → {points[-1]['return']:.0f}"
            rates = (f"{point['success']:.2f}" for point in points)
            rows.append((str(run["seed"]), *rates, returns, f"{run['cpu_seconds']:.0f}"))
        steps = (f"{point['steps']:,} steps" for point in of_it[0]["points"])
        sections.append(table((f"{code(experiment)}, seed", *steps, "Return", "CPU seconds"), rows))
    return "\n\n".join(sections)


def offline() -> str:
    """Return returns and speed of implicit Q-learning beside d3rlpy's."""
    rows = []
    for each in read("offline")["comparisons"]:
        returns = (each["data_return"], *(each[who]["return"] for who in ("embodyflow", "d3rlpy", "imitation")))
        ratio = each["embodyflow"]["cpu"] / each["d3rlpy"]["cpu"]
        rows.append((str(each["seed"]), *(f"{value:.0f}" for value in returns), f"{ratio:.2f}"))
    head = ("Seed", "Return of the data", "Our return", "Its return", "Imitation alone", "Our CPU time ÷ its")
    return table(head, rows)


def replay() -> str:
    """Return memory, disk and time of a replay buffer of a million transitions."""
    report = read("replay")
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


def replay_images() -> str:
    """Return memory, disk and time of a replay buffer with two cameras, by its number of transitions."""
    report = read("replay_images")
    reopened = report["reopened"]
    rows = [
        (
            f"{each['transitions']:,}",
            f"{each['memory_mb']['RssAnon']:.0f} MB",
            f"{each['memory_mb']['RssFile']:.0f} MB",
            f"{each['draw_milliseconds']['cpu']:.1f} ms",
            f"{each['draw_milliseconds']['clock']:.0f} ms",
        )
        for each in (*report["points"], reopened)
    ]
    head = ("Transitions", "Own memory", "Mapped files", "CPU time of a draw of 256", "By the clock")
    commit = report["points"][-1]
    facts = [
        ("on disk, per transition", f"{reopened['bytes_per_transition'] / 1e3:.1f} kB"),
        ("the images before and after it", f"{reopened['bytes_of_two_images_per_camera'] / 1e3:.1f} kB"),
        ("ratio", f"{reopened['times_fewer_bytes']:.2f}"),
        ("written by a commit of 1 000 transitions", f"{commit['written_mb_by_a_commit']:.1f} MB"),
        ("append 1 000, CPU time", f"{commit['append_milliseconds']['cpu']:.0f} ms"),
        ("commit, CPU time", f"{commit['commit_milliseconds']['cpu']:.0f} ms"),
        *(
            (
                f"reopen {reopened['transitions']:,} with all digests, {how}",
                f"{times['cpu']:.1f} s of CPU time, {times['clock']:.1f} s by the clock",
            )
            for how, times in reopened["reopen_seconds"].items()
        ),
    ]
    return table(head, rows) + "\n\n" + table(("Replay buffer with images", "Time or size"), facts)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


TABLES = (
    control,
    cleanrl,
    normalised_control,
    soft_actor_critic,
    hindsight,
    control_success,
    offline,
    replay,
    replay_images,
)
