"""Load a run's graph: a built-in pipeline, a custom function or a YAML file."""

import traceback
from pathlib import Path

from embodyflow.errors import ConfigError
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.validation import skip_function_imports
from embodyflow.graph.yaml_loader import load_yaml
from embodyflow.project import check_room
from embodyflow.references import reference_to, resolve

BUILT_IN = {
    "grpo": "pipelines.grpo:grpo",
    "ppo": "pipelines.ppo:ppo",
    "ppo_control": "pipelines.control:ppo_control",
    "sac": "pipelines.sac:sac",
    "embodied_sac": "pipelines.sac:embodied_sac",
    "offline": "pipelines.sac:offline",
    "dagger": "pipelines.dagger:dagger",
    "dapo": "pipelines.dapo:dapo",
    "language_grpo": "pipelines.grpo:language_grpo",
    "embodied_grpo": "pipelines.grpo:embodied_grpo",
    "embodied_dapo": "pipelines.dapo:embodied_dapo",
    "embodied_srpo": "pipelines.srpo:embodied_srpo",
    "embodied_classifier": "pipelines.classifier:embodied_classifier",
    "remax": "pipelines.remax:remax",
    "rae": "pipelines.rae:rae",
    "grpo_kl_reward": "pipelines.grpo:grpo_kl_reward",
    "ppo_kl_reward": "pipelines.ppo:ppo_kl_reward",
    "ppo_joint": "pipelines.ppo:ppo_joint",
}


def load_pipeline(
    name: str | None = None, *, custom_fn: str | None = None, yaml: str | Path | None = None
) -> TaskGraph:
    """Return the graph that exactly one of the three arguments names.

    Args:
        name: Built-in pipeline, one of :data:`BUILT_IN`.
        custom_fn: Function ``"module:function"`` that returns a :class:`~embodyflow.graph.graph.TaskGraph`.
        yaml: Path of a pipeline file.

    Raises:
        ConfigError: The pipeline, function or file does not exist; or not exactly one argument is given.
        GraphError: The graph has problems, one line each.
    """
    if sum(source is not None for source in (name, custom_fn, yaml)) != 1:
        raise ConfigError("pipeline: exactly one of name, custom_fn and yaml must be set")
    check_room("tasks")
    if yaml is not None:
        return load_yaml(yaml)
    if custom_fn is not None:
        return _call(custom_fn)
    if name not in BUILT_IN:
        raise ConfigError(f"pipeline.name={name}: allowed are {', '.join(BUILT_IN)}")
    check_room("pipelines")
    with skip_function_imports():
        graph = _call(BUILT_IN[name])
    functions = (node.executable_ref.partition(":") for node in graph.nodes.values())
    check_room("tasks", [name for module, _, name in functions if module == "tasks"])
    return graph


def _call(custom_fn: str) -> TaskGraph:
    try:
        function = resolve(reference_to(custom_fn))
    except (ImportError, ValueError) as error:
        raise ConfigError(f"pipeline.custom_fn={custom_fn}: {error}") from error
    try:
        graph = function()
    except ConfigError:
        raise
    except Exception as error:  # a custom function may raise anything; report it as one line
        *_, last = traceback.extract_tb(error.__traceback__)
        where = "" if last.filename == __file__ else f", at {last.filename}:{last.lineno}"
        raise ConfigError(f"pipeline.custom_fn={custom_fn}: {type(error).__name__}: {error}{where}") from error
    if not isinstance(graph, TaskGraph):
        raise ConfigError(
            f"pipeline.custom_fn={custom_fn}: must return a TaskGraph (is .build() missing?), not {graph!r}"
        )
    return graph
