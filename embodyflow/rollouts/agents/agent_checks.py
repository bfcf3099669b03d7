"""Checks of an agent's tools and workflow, before a process starts."""

from embodyflow.agents.chat.chat_format import check_template
from embodyflow.agents.environments.environment_class import EnvironmentClass
from embodyflow.agents.environments.environment_loop import EnvironmentLoop
from embodyflow.agents.programs.program import Program
from embodyflow.agents.ring.ring import Ring
from embodyflow.agents.tool_loop import ToolLoop
from embodyflow.agents.tools.tool_calls import build_parser
from embodyflow.agents.verifiers.verifiers_workflow import VerifiersWorkflow
from embodyflow.agents.workflow import Closable, RolloutWorkflow, RowChecker
from embodyflow.agents.workflow_registry import build_workflow
from embodyflow.config.agents.agent import AgentConfig, AgentJobConfig
from embodyflow.errors import ConfigError
from embodyflow.policies.language.causal_lm.tokenizer_causal_lm import build_tokenizer
from embodyflow.prompts.prompt_config import SeedsConfig
from embodyflow.prompts.prompt_registry import build_prompt_source
from embodyflow.prompts.prompts import Prompt, PromptSource, Split
from embodyflow.rewards.functions.of_workflow import REFERENCE as OF_WORKFLOW
from embodyflow.rewards.reward_config import CustomConfig
from embodyflow.rollouts.language.language_checks import check_language

_READERS: dict[str, type] = {
    "environment": EnvironmentLoop,
    "program": Program,
    "verifiers": VerifiersWorkflow,
    "ring": Ring,
}
"""Workflow that uses each of these keys of ``rollout.agent``."""


def check_agent(config: AgentJobConfig) -> None:
    """Check what a language job checks, and that workflow, tools and chat template fit together.

    Raises:
        ConfigError: A check failed; one line names the key and what is allowed.
    """
    check_language(config)
    _check_names(config.rollout.agent)
    workflow = build_workflow(config.rollout.agent)
    try:
        _check_workflow(config, workflow)
    finally:
        if isinstance(workflow, Closable):
            workflow.close()


def _check_names(agent: AgentConfig) -> None:
    """Check that agents with weights of their own can have them under their names."""
    if not agent.has_own_weights:
        return
    from embodyflow.policies.language.causal_lm.agents_causal_lm import (
        reserved_names,  # imports torch, which takes seconds
    )

    if reserved := reserved_names(agent.agents):
        raise ConfigError(
            f"rollout.agent.agents: {reserved[0]} is reserved in the models of rollout.agent.weights=own; allowed is "
            "another name"
        )


def _check_workflow(config: AgentJobConfig, workflow: RolloutWorkflow) -> None:
    """Check that the workflow fits the data and uses what the section has for it."""
    agent = config.rollout.agent
    source = build_prompt_source(config.data, None, config.rollout.max_prompt_tokens)
    if source.prompt("train", 0).messages is None:
        raise ConfigError("data: an agent needs chats; set data.chat=true or data.messages_column")
    for key, kind in _READERS.items():
        if getattr(agent, key) is not None and not isinstance(workflow, kind):
            raise ConfigError(
                f"rollout.agent.{key}: rollout.agent.workflow={agent.workflow} does not use it; allowed are workflows "
                f"that extend {kind.__name__}"
            )
    if isinstance(workflow, Program | VerifiersWorkflow):
        build_parser(agent.parser, build_tokenizer(config.policy), [])
    if isinstance(workflow, RowChecker):
        workflow.check(source.prompt("train", 0))
    if isinstance(workflow, ToolLoop):
        _check_loop(config, workflow, source)
    if isinstance(workflow, Ring):
        _check_ring(config, workflow, source.prompt("train", 0))


def _check_ring(config: AgentJobConfig, ring: Ring, row: Prompt) -> None:
    """Check the agents of a ring with a row, and that its episodes have a reward."""
    function = config.reward.function
    if not ring.is_rewarded and isinstance(function, CustomConfig) and function.function == OF_WORKFLOW:
        raise ConfigError(
            "reward=workflow: rollout.agent.ring.environment is null, so the reward function must judge the last turn; "
            "allowed are the others, or set an environment"
        )
    ring.check_members(build_tokenizer(config.policy), row, config.rollout.max_prompt_tokens)


def _check_loop(config: AgentJobConfig, workflow: ToolLoop, source: PromptSource) -> None:
    """Check that prompts, environments, rewards, tools and chat template fit together."""
    agent, tokenizer = config.rollout.agent, build_tokenizer(config.policy)
    for prompt in _prompts_of_each_kind(workflow, source):
        schemas = [tool.schema for tool in workflow.tools_of(prompt).values()]
        build_parser(agent.parser, tokenizer, schemas)
        check_template(tokenizer, prompt, schemas if agent.describe_tools else [], ("tool",) if schemas else ())
    if isinstance(workflow, EnvironmentLoop):
        for environment in workflow.environments.all():
            _check_reward(config, environment)


def _prompts_of_each_kind(workflow: ToolLoop, source: PromptSource) -> list[Prompt]:
    """Return a prompt for each set of tools; check that every prompt has an environment that takes its columns."""
    if not isinstance(workflow, EnvironmentLoop):
        return [source.prompt("train", 0)]
    found: dict[str, Prompt] = {}
    checked: set[tuple[str, frozenset[str]]] = set()
    splits: tuple[Split, ...] = ("train", "validation", "demo")
    for split in splits:
        for index in range(source.num_prompts(split)):
            prompt = source.prompt(split, index)
            environment = workflow.environments.of(prompt)
            found.setdefault(environment.reference, prompt)
            kind = environment.reference, frozenset(prompt.row)
            if kind not in checked:
                environment.reset_arguments(prompt, split)
                checked.add(kind)
    return list(found.values())


def _check_reward(config: AgentJobConfig, environment: EnvironmentClass) -> None:
    """Check that episodes of an environment have a reward."""
    function = config.reward.function
    is_judged = isinstance(function, CustomConfig) and function.function != OF_WORKFLOW
    if isinstance(config.data, SeedsConfig) and not environment.gives_reward and not is_judged:
        raise ConfigError(
            f"rollout.agent.environment={environment.reference}: has no get_reward, and data.name=seeds has no ground "
            "truth that the reward function could compare with; add get_reward, or set reward=custom"
        )
