"""The page of choices: the files of each group under ``configs/``, and what else a configuration names."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from docs.generator.markdown import code, document, escaped, first_paragraph, table, without_roles
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
            meaning = escaped(without_roles(header_of(path)))
            if not meaning and group in ("experiment", "algorithm", "policy", "reward"):
                silent.append(f"configs/{group}/{path.name}")
            more = [code(_chosen(path, each, folder)) for each in ("job", "algorithm")] if group == "experiment" else []
            rows.append((code(f"{group}={path.stem}"), meaning, *more))
        header = ("Choice", "What it is", *(("Job", "Default algorithm") if group == "experiment" else ()))
        sections.append(f"## {code(group)}\n\n{TITLES[group]}\n\n{table(header, rows)}")
    if silent:
        problems.append(f"no comment at the top of {', '.join(silent)}")
    return document(
        "Choices",
        "Each group is a folder under `configs/`; `group=name` on the command line picks one of its files. A project "
        "of your own adds files, or replaces one by a file of the same name.",
        *sections,
        _where_algorithms_run(folder),
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


def _chosen(experiment: Path, group: str, folder: Path) -> str:
    """Return the file of a group that an experiment chooses, itself or by the experiment that it extends."""
    chosen = None
    for each in yaml.safe_load(experiment.read_text()).get("defaults", []):
        if isinstance(each, str) and each != "_self_":
            chosen = _chosen(experiment.with_name(f"{each}.yaml"), group, folder)
        elif isinstance(each, dict):
            chosen = each.get(f"override /{group}", chosen)
    defaults = yaml.safe_load((folder / "config.yaml").read_text())["defaults"]
    by_default = next((each[group] for each in defaults if isinstance(each, dict) and group in each), "–")
    return str(chosen or by_default)


def _where_algorithms_run(folder: Path) -> str:
    """Return the table of algorithms and kinds of jobs: the pipeline of each pair, or the reason against it."""
    jobs = {path.stem: _recipes(path) for path in sorted((folder / "job").glob("*.yaml"))}
    rows = []
    for name in sorted(path.stem for path in (folder / "algorithm").glob("*.yaml")):
        recipes = [jobs[job].get(name) for job in jobs]
        cells = [code(each["pipeline"]["name"]) if isinstance(each, dict) else f"{each or ''}" for each in recipes]
        rows.append((code(name), *cells))
    header = ("Algorithm", *(f"{job} jobs" for job in jobs))
    text = "The pipeline that an algorithm runs in each kind of job, or the reason why it does not."
    return f"## Where algorithms run\n\n{text}\n\n{table(header, rows)}"


def _recipes(job: Path) -> dict[str, Any]:
    """Return the recipes of a kind of job, which it may have from the one that it extends."""
    values = yaml.safe_load(job.read_text())
    if "recipes" in values:
        return dict(values["recipes"])
    return _recipes(job.with_name(f"{values['defaults'][0]}.yaml"))


def _functions(entries: Mapping[str, Estimator | PolicyLoss]) -> Iterator[tuple[str, str]]:
    for name, entry in entries.items():
        yield code(name), first_paragraph(resolve(entry.function).__doc__)
