"""Check that flow, pipeline and algorithm are compatible."""

import json
import re
from collections.abc import Collection, Iterable
from typing import Literal

from embodyflow.config import RunConfig
from embodyflow.config.grouped import GroupedConfig
from embodyflow.config.pipeline import FilterConfig
from embodyflow.errors import ConfigError
from embodyflow.graph import BUILT_IN, Node, NodeRole, TaskGraph, load_pipeline
from embodyflow.graph.node_groups import runs_on
from embodyflow.nodes.declarations import declared
from embodyflow.orchestration.run.iterations.graph_run import rollout_nodes
from embodyflow.orchestration.run.streaming.generating_node import generating_node
from embodyflow.references import resolve

PIPELINES = {
    "grpo": (
        *("embodied_grpo", "grpo", "language_grpo", "grpo_kl_reward", "remax", "rae"),
        *("embodied_classifier", "dagger"),
    ),
    "ppo": ("ppo", "ppo_joint", "ppo_control", "ppo_kl_reward"),
    "dapo": ("embodied_dapo", "dapo"),
    "srpo": ("embodied_srpo",),
    "gspo": ("embodied_grpo", "grpo", "language_grpo", "grpo_kl_reward"),
    "sac": ("sac", "embodied_sac", "offline"),
    "cpgd": ("embodied_grpo", "grpo", "language_grpo", "grpo_kl_reward"),
}
"""Built-in pipelines of each shipped training flow, which also runs custom graphs."""

ADVANTAGE, KL_PENALTY, BASELINE = "compute_advantage", "compute_kl_penalty", "compute_baseline"
AGENT_BASELINE = "compute_agent_baseline"

FILTERS = {
    **dict.fromkeys(("num_groups", "max_rerolls", "max_staleness"), ("dynamic_sampling",)),
    **dict.fromkeys(("min_success", "max_success", "drop_truncated"), ("filter_groups", "dynamic_sampling")),
}
"""Functions of ``tasks`` that read each key of ``filter``."""

WRITERS = {
    "values": ("compute_value", "value_steps"),
    "ref_log_probs": ("compute_ref_log_prob",),
    "baseline": (BASELINE,),
    "token_baseline": (AGENT_BASELINE,),
}
"""Functions of ``tasks`` that write a column."""

ALIASES = {"filter_groups": ("embodied_sampling",)}
"""Other names of functions of ``tasks``, which ported graphs use."""


def check_compatibility(config: RunConfig) -> None:
    """Check that the flow runs this pipeline, and that the pipeline has exactly what the algorithm needs.

    Raises:
        ConfigError: The key and what is allowed in one line, or one line per problem of the graph.
    """
    source = config.pipeline.source()
    if "name" in source:
        _check_name(source["name"], config)
    graph = load_pipeline(**source)
    _check_sums(graph, config)
    _check_critic(graph, config)
    _check_baseline(graph, config)
    _check_agent_baseline(graph, config)
    _check_kl(graph, config)
    _check_entropy(graph, config)
    _check_filter(graph, config)
    _check_interrupt(graph, config)
    _check_autoscale(graph, config)
    _check_interpolation(graph, config)
    if config.streams:
        generating_node(graph)
    _check_replay(graph, config)
    _check_labels(graph, config)
    _check_own_weights(graph, config)
    _check_critic_steps(graph, config)


def _check_own_weights(graph: TaskGraph, config: RunConfig) -> None:
    """Refuse steps of policy and critic together where each agent has a policy of its own."""
    if config.has_own_weights and (joint := _nodes_of(graph, "train_actor_critic")):
        raise ConfigError(
            f"rollout.agent.weights=own: node {joint[0]!r} trains policy and critic in the same steps; allowed are "
            "tasks:train_actor and tasks:train_critic"
        )


def _check_labels(graph: TaskGraph, config: RunConfig) -> None:
    """Check that an expert labels the pipeline's episodes exactly if the run has settings for it."""
    has_settings = getattr(config, "dagger", None) is not None
    for function in ("label_episodes", "store_labels", "train_on_labels"):
        is_there = bool(_nodes_of(graph, function))
        if is_there and not has_settings:
            raise ConfigError(f"dagger: must be set (algorithm=dagger) with a pipeline that has tasks:{function}")
        if has_settings and not is_there:
            raise ConfigError(f"dagger: must be null with a pipeline without tasks:{function}")


def _check_replay(graph: TaskGraph, config: RunConfig) -> None:
    """Check that the updates from a replay buffer are in the pipeline exactly if the run has a buffer."""
    has_buffer = getattr(config, "off_policy", None) is not None
    for function, algorithm in (("train_off_policy", "sac"), ("train_offline", "iql")):
        if _nodes_of(graph, function) and not has_buffer:
            raise ConfigError(
                f"off_policy: must be set (algorithm={algorithm}) with a pipeline that has tasks:{function}"
            )
    if _nodes_of(graph, "train_offline"):
        _check_data_set(config)
    if has_buffer and _nodes_of(graph, "train_actor_critic"):
        raise ConfigError("off_policy: must be null with a pipeline that has tasks:train_actor_critic")


def _check_data_set(config: RunConfig) -> None:
    """Refuse offline training by an algorithm that values actions outside of the data, or without data."""
    settings = config.off_policy  # type: ignore[attr-defined]  # checked before
    if settings.name != "iql":
        raise ConfigError(
            f"off_policy.name={settings.name}: overrates actions that its data lack, and tasks:train_offline takes no "
            "step to correct that; allowed is iql (algorithm=iql)"
        )
    if settings.demonstrations is None:
        raise ConfigError(
            "off_policy.demonstrations=null: must be the folder replay of a finished run with tasks:train_offline"
        )


def _check_critic(graph: TaskGraph, config: RunConfig) -> None:
    has_critic = any(node.node_role is NodeRole.CRITIC for node in graph.nodes.values())
    if config.algorithm.needs_critic != has_critic:
        raise ConfigError(
            f"algorithm.advantage={config.algorithm.advantage}: needs a pipeline "
            + ("without a critic" if has_critic else "with a critic")
            + "; allowed are advantage=gae with nodes of role CRITIC (python -m flows.ppo) and all others without them"
        )
    for node_id in _nodes_of(graph, ADVANTAGE) if has_critic else ():
        if not _may_write(graph, graph.ancestors(node_id), "values"):
            raise ConfigError(
                f"node {node_id!r}: algorithm.advantage={config.algorithm.advantage} needs values, which no ancestor "
                "writes; put tasks:compute_value before it"
            )


def _check_critic_steps(graph: TaskGraph, config: RunConfig) -> None:
    """Refuse settings of the critic that do not belong to the steps that the pipeline takes."""
    joint, critic = _nodes_of(graph, "train_actor_critic"), config.critic
    if joint and critic.epochs != config.trainer.epochs:
        raise ConfigError(
            f"critic.epochs={critic.epochs}: must be trainer.epochs={config.trainer.epochs} with a pipeline that "
            f"trains policy and critic in the same optimizer steps (node {joint[0]})"
        )
    if critic.features == "policy" and not config.algorithm.needs_critic:
        raise ConfigError(
            f"critic.features=policy: algorithm.advantage={config.algorithm.advantage} has no critic; allowed is own"
        )
    if critic.coef != type(critic).model_fields["coef"].default and not joint:
        raise ConfigError(
            f"critic.coef={critic.coef:g}: allowed is 1; the pipeline trains the critic in steps of its own. Steps of "
            "policy and critic together are those of tasks:train_actor_critic (pipeline.name=ppo_joint)"
        )


def _check_baseline(graph: TaskGraph, config: RunConfig) -> None:
    """Check that advantages get a baseline exactly if they need one, and that it is on the scale of their rewards."""
    name, baselines = config.algorithm.advantage, _nodes_of(graph, BASELINE)
    for node_id in _nodes_of(graph, ADVANTAGE):
        above = graph.ancestors(node_id)
        if config.algorithm.needs_baseline and not _may_write(graph, above, "baseline"):
            raise ConfigError(
                f"node {node_id!r}: algorithm.advantage={name} needs a baseline, which no ancestor writes; allowed are "
                f"pipeline.name=remax and graphs with tasks:{BASELINE} before it"
            )
        if not config.algorithm.needs_baseline and set(baselines) & set(above):
            raise ConfigError(
                f"algorithm.advantage={name}: does not read the baseline that the pipeline computes (node "
                f"{baselines[0]}); allowed are advantage=remax and a pipeline without tasks:{BASELINE}"
            )
    if baselines:
        _check_baseline_rows(graph, baselines)


def _check_baseline_rows(graph: TaskGraph, baselines: list[str]) -> None:
    """Check that all rows get their baseline, and that it is computed by the reward that the rows get."""
    built_in = _nodes_of(graph, "compute_reward")
    own = [each for each, node in graph.nodes.items() if each not in built_in and _declares(node, "writes", "rewards")]
    if own:
        raise ConfigError(
            f"node {own[0]!r}: writes rewards, but tasks:{BASELINE} rewards its greedy rows by tasks:compute_reward; "
            "allowed are that function, and a node of your own that writes baseline"
        )
    _check_generated_rows(graph, BASELINE)


def _check_generated_rows(graph: TaskGraph, function: str) -> None:
    """Check that no node generates rows after the nodes that write baselines."""
    for node_id in _nodes_of(graph, "dynamic_sampling"):
        if early := set(_nodes_of(graph, function)) & set(graph.ancestors(node_id)):
            raise ConfigError(
                f"node {node_id!r}: generates rows, which would lack the baselines of {early.pop()!r}; put "
                f"tasks:{function} after it"
            )


def _check_agent_baseline(graph: TaskGraph, config: RunConfig) -> None:
    """Check that advantages get the running baselines of agents exactly if they need them."""
    name, baselines = config.algorithm.advantage, _nodes_of(graph, AGENT_BASELINE)
    if baselines and not config.algorithm.keeps_baselines:
        raise ConfigError(
            f"algorithm.advantage={name}: does not read the running baselines of the pipeline (node {baselines[0]}); "
            f"allowed are advantage=rae and a pipeline without tasks:{AGENT_BASELINE}"
        )
    _check_generated_rows(graph, AGENT_BASELINE)
    for node_id in _nodes_of(graph, ADVANTAGE) if config.algorithm.keeps_baselines else ():
        if not _may_write(graph, graph.ancestors(node_id), "token_baseline"):
            raise ConfigError(
                f"node {node_id!r}: algorithm.advantage={name} needs the running baselines of the agents, which no "
                f"ancestor writes; allowed are pipeline.name=rae and graphs with tasks:{AGENT_BASELINE} before it"
            )


def _check_sums(graph: TaskGraph, config: RunConfig) -> None:
    """Refuse sums over all rows on several rollout workers, which do not communicate."""
    on_rollout_workers = any(runs_on(graph, node_id) == "rollout" for node_id in _nodes_of(graph, ADVANTAGE))
    if config.algorithm.needs_whole_batch and on_rollout_workers and (most := config.rollout.most_workers) > 1:
        key = "num_workers" if most == config.rollout.num_workers else "autoscale.max_workers"
        raise ConfigError(
            f"rollout.{key}={most}: algorithm.advantage={config.algorithm.advantage} sums "
            "over all rows, which several rollout workers cannot; allowed are 1 and a pipeline whose advantage follows "
            "a node of the trainer: grpo_kl_reward (algorithm.kl.placement=reward filter.drop_uniform=false) or a "
            "graph of your own"
        )


def _check_kl(graph: TaskGraph, config: RunConfig) -> None:
    """Check that the KL term is applied exactly once, at the configured place."""
    kl, penalties = config.algorithm.kl, _nodes_of(graph, KL_PENALTY)
    if kl.coef > 0 and not _may_write(graph, graph.nodes, "ref_log_probs"):
        raise ConfigError(f"algorithm.kl.coef={kl.coef:g}: allowed is 0; no node of the pipeline writes ref_log_probs")
    if kl.placement == "loss" and penalties:
        raise ConfigError(
            "algorithm.kl.placement=loss: allowed is reward; the pipeline subtracts the KL term from the rewards (node "
            f"{penalties[0]})"
        )
    if kl.placement == "reward" and not penalties:
        ready = [each for each in _runs(config.flow) if each.endswith("_kl_reward") and each in config.pipelines]
        also = "".join(f", pipeline.name={name}" for name in ready)
        raise ConfigError(
            "algorithm.kl.placement=reward: the pipeline does not subtract the KL term from the rewards; allowed are "
            f"placement=loss{also}, a graph of your own with tasks:{KL_PENALTY}"
        )
    if penalties:
        _check_penalties(graph, penalties)


def _check_entropy(graph: TaskGraph, config: RunConfig) -> None:
    """Check that a node writes the entropies by which tokens are selected."""
    fraction, writes = config.algorithm.top_entropy_fraction, "compute_old_log_prob"
    if fraction == 1 or _nodes_of(graph, writes):
        return
    if not any(_declares(node, "writes", "old_entropy") for node in graph.nodes.values()):
        raise ConfigError(
            f"algorithm.top_entropy_fraction={fraction:g}: allowed is 1; no node of the pipeline writes old_entropy "
            f"(tasks:{writes})"
        )


def _check_penalties(graph: TaskGraph, penalties: list[str]) -> None:
    """Check that penalties run on the trainer, which has their coefficient, and that advantages use them."""
    for node_id in penalties:
        if runs_on(graph, node_id) == "rollout":
            raise ConfigError(
                f"node {node_id!r}: tasks:{KL_PENALTY} would run on rollout workers, like its first parent; the "
                "trainer holds the coefficient, so the first parent must be a node of the trainer"
            )
    advantages = _nodes_of(graph, ADVANTAGE)
    if not advantages and not any(_declares(node, "reads", "kl_penalty") for node in graph.nodes.values()):
        raise ConfigError(
            f"node {penalties[0]!r}: no node reads its kl_penalty; allowed are tasks:{ADVANTAGE} after it, or a node "
            "of your own with reads: [kl_penalty]"
        )
    for node_id in advantages:
        if not set(penalties) & set(graph.ancestors(node_id)):
            raise ConfigError(f"node {node_id!r}: must come after tasks:{KL_PENALTY} to use its penalties")


def _check_filter(graph: TaskGraph, config: RunConfig) -> None:
    """Refuse filter settings that no node reads; a custom function may read any."""
    if not all(re.match(r"tasks[.:]", node.executable_ref) for node in graph.nodes.values()):
        return
    for key, functions in FILTERS.items():
        value, default = getattr(config.filter, key), FilterConfig.model_fields[key].default
        if value != default and not any(_nodes_of(graph, function) for function in functions):
            readers = " or ".join(f"tasks:{function}" for function in functions)
            raise ConfigError(
                f"filter.{key}={json.dumps(value)}: allowed is {json.dumps(default)}; the pipeline has no node that "
                f"reads it ({readers})"
            )


def _check_interrupt(graph: TaskGraph, config: RunConfig) -> None:
    """Refuse newer weights in the middle of a row where a node after the rollout generates rows too."""
    if config.rollout.swaps_weights and (others := _nodes_of(graph, "dynamic_sampling")):
        raise ConfigError(
            f"rollout.interrupt.every: allowed is null; node {others[0]!r} generates rows too, with one version each"
        )


def _check_autoscale(graph: TaskGraph, config: RunConfig) -> None:
    """Refuse nodes whose rows depend on the number of rollout workers, or run after it may have changed."""
    if not isinstance(config, GroupedConfig) or config.rollout.autoscale is None:
        return
    if sampling := _nodes_of(graph, "dynamic_sampling"):
        raise ConfigError(
            f"rollout.autoscale: allowed is null; node {sampling[0]!r} fills the share of each worker, so its rows "
            "depend on their number"
        )
    before = rollout_nodes(graph)
    if late := [each for each in graph.nodes if runs_on(graph, each) == "rollout" and each not in before]:
        raise ConfigError(
            f"rollout.autoscale: allowed is null; node {late[0]!r} runs on rollout workers after a node of the "
            "trainer, when their number may be that of the next iteration"
        )


def _check_interpolation(graph: TaskGraph, config: RunConfig) -> None:
    """Check that a node writes the staleness by which log-probs are interpolated."""
    writes = "compute_old_log_prob"
    if config.algorithm.old_log_probs != "interpolated" or _nodes_of(graph, writes):
        return
    if not any(_declares(node, "writes", "token_staleness") for node in graph.nodes.values()):
        raise ConfigError(
            "algorithm.old_log_probs=interpolated: allowed are the others; no node of the pipeline writes "
            f"token_staleness (tasks:{writes})"
        )


def _nodes_of(graph: TaskGraph, function: str) -> list[str]:
    """Return the nodes that run a function of ``tasks``, named by the package or by a module in it."""
    names = [function, *ALIASES.get(function, ())]
    name = re.compile(rf"tasks(\.\w+)?:({'|'.join(names)})")
    return [node_id for node_id, node in graph.nodes.items() if name.fullmatch(node.executable_ref)]


def _may_write(graph: TaskGraph, node_ids: Iterable[str], column: str) -> bool:
    """Return True unless all these nodes declare that they write other columns.

    Nodes of the usual functions are found by name, since asking a function for its declaration imports torch.
    """
    usual = {each for name in WRITERS[column] for each in _nodes_of(graph, name) if graph.nodes[each].writes is None}
    wanted = list(node_ids)
    return not usual.isdisjoint(wanted) or any(
        _declares(graph.nodes[each], "writes", column) is not False for each in wanted
    )


def _declares(node: Node, what: Literal["reads", "writes"], column: str) -> bool | None:
    """Return True if a node, or else its function, declares a column; ``None`` if neither declares any."""
    of_node: tuple[str, ...] | None = getattr(node, what)
    columns = of_node if of_node is not None else declared(resolve(node.executable_ref), f"__{what}__")
    return None if columns is None else column in columns


def _runs(flow: str) -> Collection[str]:
    """Return the built-in pipelines that a training flow runs; a flow of the user's own runs all of them."""
    return PIPELINES.get(flow, tuple(BUILT_IN))


def _check_name(name: str, config: RunConfig) -> None:
    flow, job = config.flow, config.job
    if name not in BUILT_IN:
        raise ConfigError(f"pipeline.name={name}: allowed are {', '.join(BUILT_IN)}")
    mismatch = f"the flow {flow}" if name not in _runs(flow) else f"job={job}"
    allowed = [each for each in _runs(flow) if each in config.pipelines]
    if name not in allowed:
        runs_it = [] if allowed else [each for each, names in PIPELINES.items() if name in names and flow != each]
        hint = (
            f"; the flow {' or '.join(runs_it)} runs it (embodyflow run --flow, python -m flows.…)" if runs_it else ""
        )
        choices = ", ".join([*allowed, "a graph of your own by pipeline.custom_fn or pipeline.yaml"])
        raise ConfigError(f"pipeline.name={name}: does not work with {mismatch}; allowed are {choices}{hint}")
