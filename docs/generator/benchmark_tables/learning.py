"""Tables of what robots and language models learn."""

from docs.generator.benchmark_tables.results import lift, medians, read
from docs.generator.markdown import code, table


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
        ("lift", "learning_lift", "robosuite's Lift", "1"),
        ("aloha", "learning_aloha", "ALOHA's transfer of a cube", "8"),
        ("libero", "learning_libero", "five tasks of LIBERO-Object, by states", "2 of each"),
    ):
        report = read(name)["grpo"]
        seeds, curve = str(len(report["runs"])), f"[curve](images/{name}.png)"
        rows.append((code(experiment), task, demonstrations, *medians(report), seeds, curve))
    sums = next(each for each in read("math")["comparisons"] if each["flow"] == "grpo")
    rows.append(
        (
            code("math"),
            "sums, a small Qwen",
            "–",
            *medians(sums),
            str(len(sums["runs"])),
            "[curve](images/math.png)",
        )
    )
    control = read("learning")["control"]
    rows.append((code("embodied"), "control", "6", *medians(control), str(len(control["runs"])), ""))
    return table(("`experiment=`", "Task", "Demonstrations", "Before", "After", "Lowest after", "Seeds", "Curve"), rows)


def algorithms() -> str:
    """Return the success rates of several algorithms on the same task."""
    rows = []
    for name, each in read("algorithms").items():
        episodes = [run["num_episodes"] for run in each["runs"]]
        mean_episodes = f"{sum(episodes) / len(episodes):,.0f}"
        rows.append((code(name), "reach-v3", *lift(each["mean"]), str(len(episodes)), mean_episodes))
    for each in read("math")["comparisons"]:
        rows.append((code(each["flow"]), "sums", *lift(each["mean"]), str(len(each["runs"])), "–"))
    return table(("Algorithm", "Task", "Before", "After", "Lowest after", "Seeds", "Episodes"), rows)


def srpo() -> str:
    """Return the iterations that SRPO needs for GRPO's final success."""
    rows = []
    for name, task in (("srpo", "FetchReach from scratch, to 2.5 cm"), ("srpo_reach", "reach-v3, one demonstration")):
        report = read(name)
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


def exploration() -> str:
    """Return the share of mixed groups by each factor."""
    rows = []
    for task, factors in read("exploration")["factors"].items():
        for factor, points in factors.items():
            cells = ", ".join(f"{point['value']:g}: {point['mixed']:.2f}" for point in points)
            rows.append((code(task), code(factor), cells))
    return table(("Task", "Factor", "Value: share of mixed groups"), rows)


TABLES = (
    learning,
    algorithms,
    srpo,
    exploration,
)
