"""Process of an environment of verifiers: ``environment_side.py describe`` or ``environment_side.py play``.

It is a script that imports verifiers and nothing of embodyflow, because its Python may have other packages. The first
line of stdin is a JSON object with ``taskset``, ``settings``, and ``num_tasks`` or ``max_turns``.

``describe`` answers with one line, ``{"tasks": […]}``. ``play`` answers ``{"ready": true}``. Then it takes lines such
as ``{"episode": 3, "task": {…}, "base_url": "…", "api_key": "…"}``, and ``{"cancel": 3}``. It answers each episode with
a line when it has ended. ``{"error": "…"}`` says what is wrong with the environment.
"""

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

KEY_VARIABLE = "EMBODYFLOW_EPISODE_{}_API_KEY"
"""Name of the variable with an episode's key. Programs that a harness starts do not inherit such names."""


class EnvironmentFaultError(Exception):
    """The environment cannot be trained on; the message is one line that says why."""


def main(mode: str) -> None:
    """Describe the environment, or play its episodes until stdin ends."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    try:
        if mode == "describe":
            _emit(output, {"tasks": describe(request)})
        else:
            asyncio.run(_play_all(load(request), output))
    except EnvironmentFaultError as error:
        _emit(output, {"error": str(error)})


def load(request: Mapping[str, Any]) -> Any:
    """Return the environment, a ``verifiers.v1.Env``.

    Raises:
        EnvironmentFaultError: verifiers or the taskset is missing, a setting is wrong, or there are several agents.
    """
    try:
        import verifiers.v1 as vf
    except ImportError as error:
        raise EnvironmentFaultError(f"{_line(error)}; pip install 'embodyflow[verifiers]'") from error
    from pydantic import ValidationError

    settings = dict(request["settings"])
    settings["taskset"] = {**settings.get("taskset", {}), "id": request["taskset"]}
    try:
        vf.import_taskset(request["taskset"])
        config = _with_defaults(vf, settings, request)
        return vf.load_environment(config)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise EnvironmentFaultError(f"settings.{place}: {first['msg']}") from error
    except EnvironmentFaultError:
        raise
    except Exception as error:  # code of the package, which may raise anything while it is loaded
        cause = f" ({_line(error.__cause__)})" if error.__cause__ is not None else ""
        raise EnvironmentFaultError(f"{_line(error)}{cause}") from error


def describe(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the first tasks: the chat, the answer if the data has one, and the whole data.

    Raises:
        EnvironmentFaultError: The environment cannot be loaded, has no tasks or no reward, a prompt is no text, or a
            task cannot be rebuilt from its data.
    """
    env = load(request)
    taskset, number = env.taskset, request["num_tasks"]
    if number is None and not taskset.bounded:
        raise EnvironmentFaultError("its tasks never end; set data.num_train")
    try:
        tasks = list(itertools.islice(taskset, number))
    except Exception as error:
        raise EnvironmentFaultError(f"its tasks cannot be loaded: {_line(error)}") from error
    if not tasks:
        raise EnvironmentFaultError("it has no tasks")
    _check_rebuilds(taskset, tasks[0])
    if not _gives_reward(env, tasks[0]):
        raise EnvironmentFaultError("it gives no reward; its Task needs a method with @vf.reward")
    return [_described(task.data) for task in tasks]


def _with_defaults(vf: Any, settings: dict[str, Any], request: Mapping[str, Any]) -> Any:
    """Return the configuration, whose agent runs on this machine, without a harness of its own as a plain chat."""
    from verifiers.v1.configs.agent import agent_config_fields

    config = vf.resolve_env_config(settings)
    agents = agent_config_fields(config)
    if len(agents) != 1:
        names = ", ".join(agents) or "none"
        raise EnvironmentFaultError(f"its agents are {names}; allowed are environments with one agent")
    [(name, agent)] = agents.items()
    given = {*settings.get(name, {}), *type(config).model_fields[name].default.model_fields_set}
    changes: dict[str, Any] = {"retries": vf.RetryConfig()}  # another attempt would add its turns to the same episode
    if "runtime" not in given:
        changes["runtime"] = vf.SubprocessConfig()
    if agent.harness is None and vf.default_harness_id(request["taskset"]) == "bash":
        import embodyflow_chat  # beside this script

        changes["harness"] = embodyflow_chat.ChatHarnessConfig(id=embodyflow_chat.__name__)
    if agent.max_turns is None:
        changes["max_turns"] = request.get("max_turns")
    return config.model_copy(update={name: agent.model_copy(update=changes)})


def _check_rebuilds(taskset: Any, task: Any) -> None:
    """Check that a task can be rebuilt from its data, in the process that plays it."""
    kind = type(taskset).task_type()
    if type(task) is not kind:
        raise EnvironmentFaultError(f"its tasks are of {type(task).__name__}; its class must be a Taskset of that")
    excluded = [name for name, field in kind.data_type().model_fields.items() if field.exclude]
    if excluded:
        raise EnvironmentFaultError(f"{kind.data_type().__name__}.{excluded[0]}: must not have exclude=True")


def _gives_reward(env: Any, task: Any) -> bool:
    from verifiers.v1 import Env

    has_own_finalize = type(env).finalize is not Env.finalize  # it may record rewards
    return bool(task.hooks("reward") or task.config.judges or has_own_finalize)


def _described(data: Any) -> dict[str, Any]:
    prompt, system = data.prompt, data.system_prompt
    if prompt is None:
        raise EnvironmentFaultError(f"task {data.idx} has no prompt; allowed are tasks that open the conversation")
    messages = [("user", prompt)] if isinstance(prompt, str) else [(each.role, each.content) for each in prompt]
    if system is not None:
        messages = [("system", system), *messages]
    if not all(isinstance(content, str) for _, content in messages):
        raise EnvironmentFaultError(f"the prompt of task {data.idx} holds more than text, which no policy here reads")
    chat = [{"role": role, "content": content} for role, content in messages]
    return {
        "messages": chat,
        "answer": getattr(data, "answer", ""),
        "data": data.model_dump(mode="json", exclude_defaults=True),
    }


async def _play_all(env: Any, output: Any) -> None:
    """Play the episodes that stdin asks for, side by side, until it ends."""
    lines = await _stdin()
    running: dict[int, asyncio.Task[None]] = {}
    async with env.serving():
        env._interception = None  # each episode serves its own, which ends with its key
        _emit(output, {"ready": True})
        while line := await lines.readline():
            request = json.loads(line)
            if "cancel" in request:
                if (task := running.get(request["cancel"])) is not None:
                    task.cancel()
                continue
            number = request["episode"]
            running[number] = asyncio.create_task(_answer(env, request, output))
            running[number].add_done_callback(lambda _, number=number: running.pop(number))  # type: ignore[misc]


async def _answer(env: Any, request: Mapping[str, Any], output: Any) -> None:
    try:
        answer = await _play(env, request)
    except Exception as error:
        answer = {"error": {"type": type(error).__name__, "message": _line(error)}}
    _emit(output, {"episode": request["episode"], **answer})


async def _play(env: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Play an episode; return its rewards and what ended it."""
    import verifiers.v1 as vf

    kind = type(env.taskset).task_type()
    task = kind(kind.data_type().model_validate(request["task"]), env.config.taskset.task)
    variable = KEY_VARIABLE.format(request["episode"])
    os.environ[variable] = request["api_key"]
    try:
        client = vf.EvalClientConfig(base_url=request["base_url"], api_key_var=variable)
        episode = await env.run_episode(task, vf.ModelContext(model="policy", client=client))
    finally:
        del os.environ[variable]
    return _outcome(episode)


def _outcome(episode: Any) -> dict[str, Any]:
    traces = episode.traces
    errors = [error for error in (episode.last_error, *(trace.last_error for trace in traces)) if error is not None]
    if not episode.ok and errors:
        return {"error": {"type": errors[0].type, "message": errors[0].message.strip().partition("\n")[0]}}
    if len(traces) != 1:
        reason = f"its agent ran {len(traces)} times; allowed is one run an episode"
        return {"error": {"type": "ValueError", "message": reason}}
    [trace] = traces
    if trace.is_timeout:
        return {"error": {"type": "TimeoutError", "message": f"it exceeded a time limit: {trace.stop_condition}"}}
    return {
        "rewards": {name: None if reward is None else reward.value for name, reward in trace.rewards.items()},
        "metrics": dict(trace.metrics),
        "is_truncated": trace.is_truncated,
    }


async def _stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=2**30)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def _emit(output: Any, value: Mapping[str, Any]) -> None:
    print(json.dumps(value, default=str), file=output, flush=True)


def _line(error: BaseException) -> str:
    """Return an exception as one line."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1])
