"""Checks of an agent's tools and workflow, before a process starts."""

import inspect

from embodyflow.agents.chat_format import check_template
from embodyflow.agents.tool_loop import ToolLoop
from embodyflow.agents.workflow import RowChecker, WorkflowBuilder
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
    try:
        build_workflow: WorkflowBuilder = resolve(agent.workflow)
    except ImportError as error:
        raise ConfigError(f"rollout.agent.workflow={agent.workflow}: {error}") from error
    runs = inspect.iscoroutinefunction(getattr(build_workflow, "run", None))
    if not (runs and isinstance(build_workflow, type)):
        raise ConfigError(
            f"rollout.agent.workflow={agent.workflow}: must be a class with async def run(self, engine, row, context)"
        )
    workflow = build_workflow(agent)
    source = build_prompt_source(config.data, None, config.rollout.max_prompt_tokens)
    prompt = source.prompt("train", 0)
    if prompt.messages is None:
        raise ConfigError("data: an agent needs chats; set data.chat=true or data.messages_column")
    if isinstance(workflow, RowChecker):
        workflow.check(prompt)
    if isinstance(workflow, ToolLoop):
        schemas = workflow.schemas if agent.describe_tools else []
        check_template(build_tokenizer(config.policy), prompt, schemas, ("tool",) if workflow.tools else ())
