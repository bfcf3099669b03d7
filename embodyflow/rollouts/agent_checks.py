"""Checks of an agent's tools and workflow, before a process starts."""

from embodyflow.agents.chat_format import check_tools_are_shown
from embodyflow.agents.tool_loop import ToolLoop
from embodyflow.config.agent import AgentJobConfig
from embodyflow.errors import ConfigError
from embodyflow.policies.causal_lm.modeling_causal_lm import build_tokenizer
from embodyflow.prompts.prompt_registry import build_prompt_source
from embodyflow.references import resolve
from embodyflow.rollouts.language_checks import check_language


def check_agent(config: AgentJobConfig) -> None:
    """Check what a language job checks, and that workflow, tools and chat template fit together.

    Raises:
        ConfigError: A check failed; one line names the key and what is allowed.
    """
    check_language(config)
    agent = config.rollout.agent
    for key, references in (("workflow", (agent.workflow,)), ("tools", agent.tools)):
        for reference in references:
            try:
                resolve(reference)
            except ImportError as error:
                raise ConfigError(f"rollout.agent.{key}={reference}: {error}") from error
    workflow = resolve(agent.workflow)(agent)
    source = build_prompt_source(config.data, None, config.rollout.max_prompt_tokens)
    prompt = source.prompt("train", 0)
    if prompt.messages is None:
        raise ConfigError("data: an agent needs chats; set data.chat=true or data.messages_column")
    if isinstance(workflow, ToolLoop) and agent.describe_tools:
        schemas = [tool.schema for tool in workflow.tools.values()]
        check_tools_are_shown(build_tokenizer(config.policy), prompt.messages, schemas)
