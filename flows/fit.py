"""Whether flow, pipeline and algorithm belong together."""

from embodyflow.config import RunConfig
from embodyflow.errors import ConfigError
from pipelines import BUILT_IN, NodeRole, load_pipeline

PIPELINES = {
    "grpo": ("embodied_grpo", "grpo", "language_grpo"),
    "ppo": ("ppo", "ppo_control"),
    "dapo": ("embodied_dapo", "dapo"),
    "srpo": ("embodied_srpo",),
    "gspo": ("embodied_grpo", "grpo", "language_grpo"),
    "cpgd": ("embodied_grpo", "grpo", "language_grpo"),
}
"""The built-in pipelines that each training flow runs; beside them it runs any graph of the user's own."""


def check_fit(config: RunConfig) -> None:
    """Check that the flow runs this pipeline, and that the pipeline has a critic if, and only if, one is needed.

    Raises:
        ConfigError: one line that names the key and what is allowed; or the graph is wrong, one line per problem.
    """
    source = config.pipeline.source()
    if "name" in source:  # a built-in graph is right; loading it would import torch first
        _check_name(source["name"], config)
        has_critic = config.flow == "ppo"
    else:
        has_critic = any(node.node_role is NodeRole.CRITIC for node in load_pipeline(**source).nodes.values())
    _check_sums(config)
    if config.algorithm.needs_critic != has_critic:
        raise ConfigError(
            f"algorithm.advantage={config.algorithm.advantage}: needs "
            + ("a critic, and the pipeline has none" if not has_critic else "no critic, and the pipeline has one")
            + "; allowed are advantage=gae with nodes of role CRITIC (python -m flows.ppo), any other without"
        )


def _check_sums(config: RunConfig) -> None:
    """Refuse sums over all rows on rollout workers, which do not talk to each other."""
    on_rollout_workers = "name" in config.pipeline.source() and config.flow != "ppo"
    if config.algorithm.needs_whole_batch and on_rollout_workers and config.rollout.num_workers > 1:
        raise ConfigError(
            f"rollout.num_workers={config.rollout.num_workers}: algorithm.advantage={config.algorithm.advantage} takes "
            "sums over all rows, which rollout workers cannot; allowed is 1, or a graph of your own whose advantage "
            "comes after a node of the trainer"
        )


def _check_name(name: str, config: RunConfig) -> None:
    flow, job = config.flow, config.job
    if name not in BUILT_IN:
        raise ConfigError(f"pipeline.name={name}: allowed are {', '.join(BUILT_IN)}")
    misfit = f"the flow {flow}" if name not in PIPELINES[flow] else f"job={job}"
    allowed = [each for each in PIPELINES[flow] if each in config.pipelines]
    if name not in allowed:
        raise ConfigError(
            f"pipeline.name={name}: is not for {misfit}; allowed are {', '.join([*allowed, 'a graph of your own'])} "
            "by pipeline.custom_fn or pipeline.yaml"
        )
