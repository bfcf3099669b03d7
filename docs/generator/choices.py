"""The page of choices: the files of each group under ``configs/``, and what else a configuration names."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from docs.generator.markdown import code, document, first_paragraph, table, without_roles
from embodyflow.algorithms.algorithm_registry import ADVANTAGES, LOSSES, Estimator, PolicyLoss
from embodyflow.project import shipped
from embodyflow.references import resolve

TITLES = {
    "experiment": "What is learned: environment or prompts, policy, sizes, and the default algorithm.",
    "algorithm": "How it is learned: pipeline, loss, advantage, and the settings of each kind of job.",
    "policy": "What acts.",
    "env": "Where robots act.",
    "data": "Where prompts come from.",
    "reward": "What responses are worth.",
    "rollout": "How rows are gathered.",
    "trainer": "How weights are trained.",
    "cluster": "What workers run on.",
    "job": "What a kind of job sets.",
}
"""Groups that have something to say, in this order; other groups follow."""


def page(problems: list[str]) -> str:
    """Return the page.

    Args:
        problems: Takes a line for files that do not say what they are.
    """
    folder = shipped() / "configs"
    groups = [name for name in TITLES if (folder / name).is_dir()]
    sections, silent = [], []
    for group in groups:
        rows = []
        for path in sorted((folder / group).glob("*.yaml")):
            meaning = without_roles(header_of(path))
            if not meaning and group in ("experiment", "algorithm", "policy", "reward"):
                silent.append(f"configs/{group}/{path.name}")
            rows.append((code(f"{group}={path.stem}"), meaning))
        sections.append(f"## {code(group)}\n\n{TITLES[group]}\n\n{table(('Choice', 'What it is'), rows)}")
    if silent:
        problems.append(f"no comment at the top of {', '.join(silent)}")
    return document(
        "Choices",
        "Each group is a folder under `configs/`; `group=name` on the command line picks one of its files. A project "
        "of your own adds files, or replaces one by a file of the same name.",
        *sections,
        "## Advantages\n\n`algorithm.advantage=` takes one of these, or `module:function`.\n\n"
        + table(("Name", "What it is"), _functions(ADVANTAGES.entries)),
        "## Losses\n\n`algorithm.loss=` takes one of these, or `module:function`.\n\n"
        + table(("Name", "What it is"), _functions(LOSSES.entries)),
    )


def header_of(path: Path) -> str:
    """Return the comment that a file begins with, without Hydra's own first line."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def _functions(entries: Mapping[str, Estimator | PolicyLoss]) -> Iterator[tuple[str, str]]:
    for name, entry in entries.items():
        yield code(name), first_paragraph(resolve(entry.function).__doc__)
