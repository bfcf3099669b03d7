"""The picture of a run's learning curve."""

import io
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib.figure import Figure


def draw_curve(records: list[dict[str, Any]], title: str) -> bytes:
    """Draw the success rate or reward, the mixed groups and the entropy over iterations; return a PNG.

    Args:
        records: Lines of ``metrics.jsonl``.
        title: Title of the picture.
    """
    figure = Figure(figsize=(7, 3.5), dpi=110)
    margins = {
        "left": 0.08,
        "right": 0.985,
        "bottom": 0.27,
        "top": 0.91,
        "wspace": 0.24,
    }  # fixed: a layout engine would draw twice
    axes = figure.subplots(1, 2, width_ratios=(2, 1), gridspec_kw=margins)
    training = [r for r in records if "rollout/num_episodes" in r]
    goal = "success_rate" if any("rollout/success_rate" in r for r in training) else "reward"
    evaluated = [r for r in records if "eval/greedy_success_rate" in r]
    steps = [r["iteration"] for r in training]
    axes[0].plot(steps, [r.get(f"rollout/{goal}") for r in training], ".-", lw=1, label="training, sampled")
    mixed = [r.get("groups/mixed_fraction") for r in training]
    if any(fraction is not None for fraction in mixed):
        axes[0].plot(steps, mixed, ":", color="tab:gray", lw=1, label="groups with both outcomes")
    for mode, marker in (("greedy", "o"), ("sampled", "s")):
        if not all(f"eval/{mode}_success_rate" in r for r in evaluated):
            continue  # a control job evaluates the deterministic policy alone
        rates = [r[f"eval/{mode}_success_rate"] for r in evaluated]
        below = [max(0.0, x - r[f"eval/{mode}_success_low"]) for x, r in zip(rates, evaluated, strict=True)]
        above = [max(0.0, r[f"eval/{mode}_success_high"] - x) for x, r in zip(rates, evaluated, strict=True)]
        at = [r["iteration"] for r in evaluated]
        axes[0].errorbar(at, rates, (below, above), fmt=marker, capsize=3, label=f"unseen goals, {mode}")
    returned = [r for r in records if "eval/return" in r and goal == "reward"]
    if returned:
        values = [r["eval/return"] for r in returned]
        margins_of = [r["eval/return_high"] - r["eval/return"] for r in returned]
        at = [r["iteration"] for r in returned]
        axes[0].errorbar(at, values, margins_of, fmt="o", capsize=3, label="evaluation episodes, deterministic")
    for each in axes:
        each.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set(xlabel="iteration", ylabel=goal.replace("_", " "), title=title)
    if goal == "success_rate":
        axes[0].set(ylim=(-0.02, 1.04))
    # Below the axes, where it hides no line.
    axes[0].legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)
    axes[1].plot(steps, [r.get("policy/entropy") for r in training], ".-", lw=1)
    axes[1].set(xlabel="iteration", title="entropy per token")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
