"""Imports point down: tests on syntax trees enforce the layers."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From top to bottom. A package may import itself and packages on lower lines, but no other package on its own line.
LAYERS = (
    ("flows",),
    ("pipelines", "tasks"),
    ("embodyflow.cli",),
    ("embodyflow.stack", "embodyflow.forecast"),
    ("embodyflow.orchestration",),
    ("embodyflow.record", "embodyflow.graph"),
    ("embodyflow.workers",),
    ("embodyflow.nodes",),
    ("embodyflow.rollouts", "embodyflow.training"),
    ("embodyflow.agents",),
    ("embodyflow.generation", "embodyflow.simulation"),
    ("embodyflow.config",),
    ("embodyflow.rewards", "embodyflow.prompts", "embodyflow.datasets", "embodyflow.health"),
    ("embodyflow.algorithms", "embodyflow.policies", "embodyflow.data", "embodyflow.process"),
    (
        "embodyflow.columns",
        "embodyflow.durations",
        "embodyflow.project",
        "embodyflow.references",
        "embodyflow.seeding",
        "embodyflow.types",
    ),
    ("embodyflow.errors",),
)
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
LEAVES = ("envs", "embodyflow.environments")  # reached by Gymnasium id
TOP_LEVEL = {package.partition(".")[0] for package in LEVEL} | {"envs"}
ALLOWED_ONLY_IN = {
    "prefect": ("flows", "embodyflow.orchestration", "embodyflow.stack"),
    "ray": ("embodyflow.workers", "embodyflow.orchestration"),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, package: str) -> Iterator[str]:
    """Yield the full names that ``source`` imports at any depth; ``package`` resolves relative imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            yield from (".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names)


def package_of(name: str) -> str | None:
    """Return the entry of ``LAYERS`` that ``name`` belongs to; ``None`` for the bare root of the library."""
    parts = name.split(".")
    if name == "embodyflow" or name.startswith("embodyflow.__"):
        return None
    return ".".join(parts[:2]) if parts[0] == "embodyflow" else parts[0]


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Return one sentence per import of a module that breaks a rule."""
    own = package_of(module)
    found = []
    if own is not None and own not in LEAVES and own not in LEVEL:
        return [f"{module}: place {own} in LAYERS"]
    for name in imports_of(source, module if is_package else module.rpartition(".")[0]):
        top = name.partition(".")[0]
        if top in ALLOWED_ONLY_IN and own not in ALLOWED_ONLY_IN[top]:
            found.append(f"{module} imports {name}: {top} is for {', '.join(ALLOWED_ONLY_IN[top])}")
        target = package_of(name) if top in TOP_LEVEL else None
        if target is None or target == own:
            continue
        if own in LEAVES or target in LEAVES:
            found.append(f"{module} imports {name}: {' and '.join(LEAVES)} are leaves, reached by Gymnasium id")
        elif target not in LEVEL:
            found.append(f"{module} imports {name}: place {target} in LAYERS")
        elif own is None or LEVEL[target] <= LEVEL[own]:
            found.append(f"{module} imports {name}: imports point down only")
    return found


def imported_modules(sources: Mapping[str, str], packages: set[str]) -> dict[str, set[str]]:
    """Return which of the modules each of them imports, wherever in it, from the source of each by name."""
    graph: dict[str, set[str]] = {module: set() for module in sources}
    for module, source in sources.items():
        for name in imports_of(source, module if module in packages else module.rpartition(".")[0]):
            while name and name not in sources:  # what follows the module is a name in it
                name = name.rpartition(".")[0]
            graph[module] |= {name} - {"", module}
    return graph


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """Return modules of which each imports the next, and the last is the first; an empty list if there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def our_modules() -> list[Path]:
    return sorted(path for package in TOP_LEVEL for path in (ROOT / package).rglob("*.py"))


def graph_of_our_modules() -> dict[str, set[str]]:
    paths = {module_name(path): path for path in our_modules()}
    sources = {module: path.read_text(encoding="utf-8") for module, path in paths.items()}
    return imported_modules(sources, {module for module, path in paths.items() if path.name == "__init__.py"})


def test_all_rooms_are_checked():
    rooms = {module_name(path).partition(".")[0] for path in our_modules()}
    assert rooms == TOP_LEVEL and len(our_modules()) > 40


def test_imports_point_down_and_prefect_and_ray_stay_in_their_rooms():
    broken = [
        violation
        for path in our_modules()
        for violation in violations(
            path.read_text(encoding="utf-8"), module_name(path), is_package=path.name == "__init__.py"
        )
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("module", "source", "part"),
    [
        ("tasks.rewards", "from pipelines import TaskGraph", "point down"),
        ("embodyflow.graph.node", "from pipelines import Pipeline", "point down"),
        ("embodyflow.nodes.context", "import tasks", "point down"),
        ("embodyflow.training.fsdp", "import embodyflow.workers.group as g", "point down"),
        ("embodyflow.training.fsdp", "from embodyflow.rollouts import replay", "point down"),
        ("embodyflow.data.padding", "from embodyflow.policies import base", "point down"),
        ("embodyflow.data.padding", "from embodyflow import policies", "point down"),
        ("embodyflow.data.padding", "from ..policies import base", "point down"),
        ("embodyflow.data.padding", "from .. import training", "point down"),
        ("embodyflow.types", "def f():\n    from embodyflow.seeding import derive_seed", "point down"),
        ("embodyflow.algorithms.losses", "if True:\n    import prefect", "prefect is for"),
        ("embodyflow.graph.graph", "from prefect.logging import get_run_logger", "prefect is for"),
        ("tasks.rollout", "import prefect", "prefect is for"),
        ("tasks.rollout", "import os, ray.util", "ray is for"),
        ("embodyflow.environments.metaworld", "from embodyflow.errors import ConfigError", "reached by Gymnasium id"),
        ("envs.metaworld", "from embodyflow.environments import adapter", "reached by Gymnasium id"),
        ("embodyflow.rollouts.rollout", "import envs.metaworld", "reached by Gymnasium id"),
        ("embodyflow.simulation.frames", "import embodyflow.environments.adapter", "reached by Gymnasium id"),
        ("embodyflow.data.padding", "import embodyflow.surprise", "place embodyflow.surprise in LAYERS"),
        ("embodyflow.surprise", "", "place embodyflow.surprise in LAYERS"),
    ],
)
def test_a_planted_violation_is_found(module, source, part):
    [message] = violations(source, module)
    assert message.startswith(module) and part in message


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("flows.grpo", "import prefect\nfrom embodyflow.orchestration.training_flow import training_flow"),
        ("embodyflow.workers.group", "import ray\nfrom embodyflow.config import RunConfig"),
        ("embodyflow.graph.loading", "import embodyflow.nodes\nfrom embodyflow.graph.graph import TaskGraph"),
        ("pipelines.mine", "from pipelines import Pipeline\nfrom embodyflow.graph import TaskGraph"),
        ("envs.metaworld", "import gymnasium\nfrom envs.wrappers import Chunk"),
        ("embodyflow.environments.metaworld", "from embodyflow.environments.goals import choose_goal"),
        ("embodyflow.data.padding", "from .batches import Columns\nimport embodyflow\nimport rays"),
    ],
)
def test_allowed_imports_pass(module, source):
    assert violations(source, module) == []


def test_relative_imports_of_a_package_start_in_the_package():
    assert violations("from .base import Policy", "embodyflow.policies", is_package=True) == []
    assert violations("from ..training import x", "embodyflow.policies", is_package=True) != []


def test_no_modules_import_each_other_in_a_cycle():
    graph = graph_of_our_modules()
    assert "embodyflow.algorithms.algorithm_registry" in graph["embodyflow.algorithms.algorithm_config"]
    assert " → ".join(cycle_in(graph)) == ""


def test_control_policies_import_no_embodied_ones_and_shared_parts_import_neither():
    for module, imported in graph_of_our_modules().items():
        if module.startswith("embodyflow.policies."):
            room = module.split(".")[2]
            above = {"embodied": (), "control": ("embodied",)}.get(room, ("embodied", "control"))
            rooms = tuple(f"embodyflow.policies.{each}" for each in above)
            assert not [name for name in imported if name.startswith(rooms)], module


@pytest.mark.parametrize(
    "late",
    ["import room.b", "from room import b", "from .b import y", "def f():\n    from room.b import y"],
)
def test_a_planted_cycle_is_found(late):
    sources = {"room": "", "room.a": late, "room.b": "from room.c import z", "room.c": "import room.a as a"}
    graph = imported_modules(sources, packages={"room"})
    assert set(cycle_in(graph)) == {"room.a", "room.b", "room.c"}
    assert cycle_in(imported_modules(sources | {"room.c": "import os"}, packages={"room"})) == []


def test_no_two_test_files_share_a_name() -> None:
    """Test folders are no packages, so pytest could not collect both files in one call."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert not {name for name in names if names.count(name) > 1}
