"""Tables of agents."""

from docs.generator.benchmark_tables.results import lift, machine, percent, read
from docs.generator.markdown import code, table


def slow_tools() -> str:
    """Return speed, time to learn and success of streamed agents whose tools are slow."""
    report = read("slow_tools")
    rows = [
        (
            each["arm"],
            str(len(each["runs"])),
            f"{each['ratio']:.2f}",
            "–" if each["time"] is None else f"{each['time']:.2f}",
            f"{each['greedy_success_after']:.3f}",
            f"{each['sampled_success_after']:.3f}",
        )
        for each in report["comparisons"]
    ]
    header = ("Arm", "Seeds", "Samples per second", "Time to the same success", "Greedy success", "Sampled success")
    return f"{table(header, rows)}\n\nOn {machine(report)}."


def agents() -> str:
    """Return the success rates that agents have learned."""
    rows = []
    for experiment, name, task in (
        ("calculator", "agent_learning", "products that are too large for the model, with a calculator"),
        ("self_correct", "agent_learning_self_correct", "sums, with a second answer after a wrong one"),
        ("babyai", "agent_learning_babyai", "the door that a mission names, among four in MiniGrid's GoToDoor"),
    ):
        for each in read(name)["comparisons"]:
            arm = {"no tool": f"{task.partition(', with')[0]}, without one"}.get(each["arm"], task)
            sampled = (f"{each['mean'][f'sampled_success_rate_{moment}']:.2f}" for moment in ("before", "after"))
            numbers = f"{len(each['runs'])}", f"{each['mean']['mean_train_seconds']:.0f} s"
            rows.append((code(experiment), arm, *lift(each["mean"]), *sampled, *numbers, f"[curve](images/{name}.png)"))
    header = ("`experiment=`", "Task", "Before", "After", "Lowest after", "Sampled before", "Sampled after", "Seeds")
    header = (*header, "Training", "Curve")
    return table(header, rows)


def self_play() -> str:
    """Return how exploitable self-play leaves a policy."""
    report = read("self_play")
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


def agent_generation() -> str:
    """Return the speed of episodes with tools that wait, beside its bound."""
    report = read("agent_generation")
    rows = [
        (
            each["workload"],
            contender,
            f"{row['episodes_per_second']:.1f}",
            percent(row["idle"]),
            f"{row['of_bound']:.2f}",
            machine(report),
        )
        for each in report["comparisons"]
        for contender, row in each["contenders"].items()
    ]
    return table(("Tools", "Episodes run", "Episodes/s", "Idle", "Of the bound", "Machine"), rows)


def agent_trl() -> str:
    """Return the speed of rollouts with tools beside TRL's."""
    report = read("agent_against_trl")
    rows = []
    for each in report["comparisons"]:
        speeds = (f"{row['episodes_per_second']:.1f}" for row in each["contenders"].values())
        rows.append((each["workload"], *speeds, f"**{each['episodes_ratio']:.2f}**", machine(report)))
    contenders = (f"{name}, episodes/s" for name in report["comparisons"][0]["contenders"])
    return table((f"Tools, TRL {report['versions']['trl']}", *contenders, "Ratio", "Machine"), rows)


TABLES = (
    slow_tools,
    agents,
    self_play,
    agent_generation,
    agent_trl,
)
