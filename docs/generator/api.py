"""Pages of the Python API: each names its modules, and mkdocstrings renders their docstrings."""

import importlib.util
from collections.abc import Callable
from functools import partial

from docs.generator.markdown import document

MODULES = {
    "pipelines": ("Graphs", ("embodyflow.graph.builder", "embodyflow.graph.graph", "embodyflow.graph.node")),
    "types": ("Rows", ("embodyflow.types", "embodyflow.nodes.declarations", "embodyflow.data.metrics")),
    "tasks": ("Node functions", ("tasks",)),
    "policies": ("Policies", ("embodyflow.policies.base",)),
    "rewards": ("Rewards", ("embodyflow.rewards.interface",)),
    "generation": ("Generation engines", ("embodyflow.generation.interface",)),
    "environments": ("Environments", ("embodyflow.environments.adapter",)),
    "algorithms": (
        "Algorithms",
        (
            "embodyflow.algorithms.algorithm_registry",
            "embodyflow.algorithms.advantages",
            "embodyflow.algorithms.losses",
            "embodyflow.algorithms.aggregation",
            "embodyflow.algorithms.kl",
            "embodyflow.algorithms.masked",
        ),
    ),
    "errors": ("Errors", ("embodyflow.errors", "embodyflow.seeding")),
}


def _page(title: str, modules: tuple[str, ...], problems: list[str]) -> str:
    problems += [f"no module {module}" for module in modules if importlib.util.find_spec(module) is None]
    return document(title, *(f"::: {module}" for module in modules))


PAGES: dict[str, Callable[[list[str]], str]] = {
    f"reference/api/{name}.md": partial(_page, title, modules) for name, (title, modules) in MODULES.items()
}
