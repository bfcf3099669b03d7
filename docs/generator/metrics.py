"""The page of metrics, from the table that the source keeps of them."""

from docs.generator.markdown import code, document, table
from embodyflow.record.metric_names import METRICS, RECORD_KEYS

AREAS = {
    "rollout": "Rollouts",
    "groups": "Groups",
    "surplus": "Groups kept for later iterations",
    "stream": "Groups that are played one by one",
    "reward": "Rewards",
    "scores": "Scores of responses",
    "progress": "Progress of failed episodes",
    "classifier": "Classifier of success",
    "replay": "Replay buffer",
    "dagger": "Imitation of an expert (DAgger)",
    "advantage": "Advantages",
    "parity": "Parity",
    "policy": "Policy",
    "train": "Optimizer of the policy",
    "critic": "Critic",
    "sft": "Warm start",
    "eval": "Evaluation",
    "health": "Health",
    "env": "Environments",
    "balance": "Balance",
    "perf": "Time and resources",
}


def page(problems: list[str]) -> str:
    """Return the page.

    Args:
        problems: Takes a line for a metric is of an area that has no title here.
    """
    if unknown := {name.partition("/")[0] for name in METRICS} - AREAS.keys():
        problems.append(f"no title for the areas {', '.join(sorted(unknown))}")
    sections = []
    for area, title in AREAS.items():
        rows = [(code(name), meaning) for name, meaning in METRICS.items() if name.partition("/")[0] == area]
        sections.append(f"## {title}\n\n{table(('Metric', 'Meaning'), rows)}")
    return document(
        "Metrics",
        "A run appends one line of JSON to `metrics.jsonl` for each iteration and each evaluation. The terminal, the "
        "Prefect UI, TensorBoard and Weights & Biases show the same numbers. Two runs of the same seed write the same "
        "numbers, except under `perf/`, which depends on timing. A part in angle brackets stands for many names: "
        "`perf/<node>_seconds` has a value for each node of the graph.",
        "## Keys of a line\n\n" + table(("Key", "Meaning"), [(code(k), v) for k, v in RECORD_KEYS.items()]),
        *sections,
        "## Your own\n\nA node function returns metrics in its `NodeOutput`, a reward function in the parts of its "
        "`Score`, a loss beside its value. Name them `area/name`, such as `reward/mine`.",
    )
