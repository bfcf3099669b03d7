"""Runs a workflow class of AReaL: ``async arun_episode(engine, data)``, which returns the tensors of an episode."""

import asyncio
import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch

from embodyflow.agents.areal.generation_shapes import GenerationHyperparameters, ModelResponse, unsupported
from embodyflow.agents.chat.sampled_calls import RecordedModel
from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.tools.tool import import_object
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompts import Prompt

_GIVEN = ("tokenizer", "gconfig")
"""Arguments of a workflow's constructor that the run gives it."""
_REQUIRED = ("input_ids", "loss_mask", "logprobs", "rewards")


class ArealWorkflow:
    """Implements :class:`~embodyflow.agents.workflow.RolloutWorkflow` by a workflow class of AReaL.

    ``data`` has the row's columns, the chat as ``messages`` and, where no column has the name, ``answer``, the ground
    truth. The log-probs and versions that are trained on are the engine's own records; those that the workflow returns
    must agree.

    Args:
        build: Class of the workflow.
        config: Section ``rollout.agent``. ``workflow_kwargs`` are the arguments of the class; ``tokenizer`` and
            ``gconfig`` come from the run. A reference ``module:function`` for an argument whose name ends with ``_fn``
            stands for the function.

    Raises:
        ConfigError: The class needs an argument that is not given, or does not take one.
    """

    def __init__(self, build: type, config: AgentConfig) -> None:
        self._build, self._config = build, config
        parameters = inspect.signature(build).parameters
        _check_arguments(parameters, config)
        self._arguments = {name: _argument(name, value) for name, value in config.workflow_kwargs.items()}
        self._from_run = [name for name in _GIVEN if name in parameters and name not in self._arguments]
        self._workflow: Any = None

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode | None:
        """Play one episode; ``None`` if the workflow rejects it.

        Raises:
            ValueError: What it returns does not agree with what the model sampled.
        """
        if self._workflow is None:
            self._workflow = self._build(**self._arguments, **self._arguments_from(engine))
        model = RecordedModel(engine.model)
        data = {"answer": row.ground_truth} | dict(row.row) | {"messages": row.messages}
        areal_engine = ArealEngine(model, engine, context)
        result = await self._workflow.arun_episode(areal_engine, data)
        return None if result is None else self._episode(result, model, engine, areal_engine.was_cut)

    def _arguments_from(self, engine: ChatEngine) -> dict[str, Any]:
        limit = min(self._config.max_turn_tokens or engine.max_tokens, engine.max_tokens)
        gconfig = GenerationHyperparameters(
            max_new_tokens=limit,
            max_tokens=engine.max_prompt_tokens + engine.max_tokens,
            temperature=engine.temperature,
        )
        available = {"tokenizer": engine.tokenizer, "gconfig": gconfig}
        return {name: available[name] for name in self._from_run}

    def _episode(self, result: Any, model: RecordedModel, engine: ChatEngine, was_cut: bool) -> Episode:
        tensors = _tensors_of(result, self._config.workflow)
        tokens = tuple(tensors["input_ids"].tolist())
        trained = tensors["loss_mask"].bool().tolist()
        transcript = model.transcript(tokens, trained, tensors["logprobs"].tolist())
        for name, number, limit in (
            ("max_prompt_tokens", len(transcript.prompt), engine.max_prompt_tokens),
            ("max_response_tokens", len(transcript.response().tokens), engine.max_tokens),
        ):
            if number > limit:
                raise ValueError(f"rollout.{name}={limit}: the workflow returned {number} tokens")
        finished = not was_cut and model.calls[-1][1].finish_reason == "stop"
        return Episode(transcript, finished, reward=float(tensors["rewards"].item()))


class ArealEngine:
    """The engine that a workflow of AReaL sees.

    Args:
        model: Model of the episode.
        engine: Limits and tokenizer.
        context: Context of the episode.
    """

    def __init__(self, model: RecordedModel, engine: ChatEngine, context: EpisodeContext) -> None:
        self._model, self._engine, self._context = model, engine, context
        self._one_at_a_time = asyncio.Lock()  # an episode may wait for one turn of the model
        self._prompt_length: int | None = None
        self.was_cut = False

    async def agenerate(self, req: Any) -> ModelResponse:
        """Sample a turn.

        Without room for a token the turn is empty, ends with ``length``, and the episode counts as cut.

        Args:
            req: Request with the fields ``input_ids`` and ``gconfig`` of AReaL's ``ModelRequest``.

        Raises:
            ValueError: The request asks for another way of sampling than the run has.
        """
        if wrong := unsupported(req.gconfig, self._engine.temperature, self._engine.tokenizer):
            raise ValueError(f"gconfig.{wrong}: a run samples by rollout.temperature alone, one answer a request")
        asked = tuple(map(int, req.input_ids))
        async with self._one_at_a_time:
            if self._prompt_length is None:
                self._prompt_length = len(asked)
            room = self._engine.max_tokens - max(0, len(asked) - self._prompt_length)
            limit = min(room, req.gconfig.max_new_tokens, req.gconfig.max_tokens - len(asked))
            if limit < 1:
                self.was_cut = True
                return ModelResponse(list(asked), [], [], [], "length", req.tokenizer)
            completion = await self._model.generate(asked, limit)
        self._context.counts.turns += 1
        tokens, log_probs = list(completion.token_ids), list(completion.log_probs)
        versions = list(completion.versions) or [completion.policy_version] * len(tokens)
        return ModelResponse(list(asked), tokens, log_probs, versions, completion.finish_reason, req.tokenizer)


def _check_arguments(parameters: Mapping[str, inspect.Parameter], config: AgentConfig) -> None:
    """Check that a workflow's constructor takes the arguments that it is given, and needs no other.

    Raises:
        ConfigError: It does not take one, or needs another.
    """
    named = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    is_open = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [] if is_open else sorted(config.workflow_kwargs.keys() - named.keys())
    if unknown:
        raise ConfigError(
            f"rollout.agent.workflow_kwargs.{unknown[0]}: {config.workflow} has no such argument; allowed are "
            f"{', '.join(named) or 'none'}"
        )
    needed = [name for name, parameter in named.items() if parameter.default is parameter.empty]
    missing = [name for name in needed if name not in (*config.workflow_kwargs, *_GIVEN)]
    if missing:
        raise ConfigError(
            f"rollout.agent.workflow={config.workflow}: needs {', '.join(missing)}; set rollout.agent.workflow_kwargs"
        )


def _argument(name: str, value: Any) -> Any:
    key = f"rollout.agent.workflow_kwargs.{name}"
    if name.endswith("_fn") and isinstance(value, str) and re.fullmatch(r"[\w.]+:[\w.]+", value):
        return import_object(key, value)
    if name == "gconfig" and isinstance(value, Mapping):
        try:
            return GenerationHyperparameters(**value)
        except TypeError as error:
            raise ConfigError(f"{key}: {error}") from error
    return value


def _tensors_of(result: Any, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors of one episode without their batch axis, cut to the attention mask.

    Raises:
        TypeError: The result is no mapping of tensors.
        ValueError: A tensor is missing, or has another shape.
    """
    if not isinstance(result, Mapping) or not all(isinstance(value, torch.Tensor) for value in result.values()):
        raise TypeError(f"{name} must return tensors by name, or None, gave {type(result).__name__}")
    if missing := [key for key in _REQUIRED if key not in result]:
        raise ValueError(f"{name} returned no {', '.join(missing)}")
    if result["rewards"].numel() != 1:
        raise ValueError(f"{name}: rewards must have one value, has {result['rewards'].numel()}")
    length = result["input_ids"].shape[-1]
    inside = result["attention_mask"].bool().reshape(-1) if "attention_mask" in result else torch.ones(length).bool()
    for key in (*_REQUIRED[:3], "attention_mask"):
        if key in result and tuple(result[key].shape) != (1, length):
            raise ValueError(f"{name}: {key} must have the shape [1, {length}], has {list(result[key].shape)}")
    return {**{key: result[key][0][inside] for key in _REQUIRED[:3]}, "rewards": result["rewards"]}
