"""Tables of what agrees with peers' formulas and graphs."""

from docs.generator.benchmark_tables.results import read
from docs.generator.markdown import code, table


def formulas() -> str:
    """Return the largest difference of each formula from a peer's own code."""
    rows = [
        (each["formula"], each["peer"], str(each["cases"]), f"{each['max_difference']:.0e}", each["note"] or "–")
        for each in read("peers_formulas")["comparisons"]
    ]
    return table(("Formula", "Peer", "Cases", "Largest difference", "Note"), rows)


def siirl() -> str:
    """Return the figures of one iteration of siiRL's own graphs."""
    rows = []
    for each in read("siirl_graphs")["comparisons"]:
        played = each["rollout/num_episodes"]
        kept, steps = each.get("groups/num_kept_rows", played), each["train/optimizer_steps"]
        numbers = (str(len(each["nodes"])), f"{played:g}", f"{kept:g}", f"{steps:g}")
        rows.append((", ".join(each["files"]), code(each["flow"]), *numbers, f"{each['train/grad_norm']:.2g}"))
    return table(("Files", "Flow", "Nodes", "Rows", "Rows kept", "Optimizer steps", "Gradient norm"), rows)


def siirl_agents() -> str:
    """Return the figures of siiRL's own graphs of several agents, a row for each iteration."""
    rows = []
    for each in read("siirl_agents")["comparisons"]:
        changed = [[], *each["changed"]]
        for number, (iteration, names) in enumerate(zip(each["iterations"], changed, strict=True), 1):
            run = (each["file"], str(each["train_cycle"])) if number == 1 else ("", "")
            [(name, norm)] = iteration["grad_norms"].items()
            counts = str(iteration["episodes"]), f"{iteration['rounds']:.2f}"
            rewards = ", ".join(f"{reward:.2f}" for reward in iteration["rewards"].values())
            rows.append((*run, str(number), *counts, rewards, name, f"{norm:.2g}", ", ".join(names) or "–"))
    head = ("Iteration", "Episodes", "Rounds", "Reward of each agent", "Trains", "Gradient norm", "Changed weights")
    return table(("File", "`train_cycle`", *head), rows)


TABLES = (
    formulas,
    siirl,
    siirl_agents,
)
