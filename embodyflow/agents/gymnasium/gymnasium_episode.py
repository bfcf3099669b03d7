"""A workflow in which the model acts in a Gymnasium environment by text."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from embodyflow.agents.episode import Episode, EpisodeContext, Faults
from embodyflow.agents.gymnasium.text_environment import EnvironmentFailedError, TextEnvironment
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.config.agents.gymnasium_text import GymnasiumConfig
from embodyflow.errors import ConfigError, InfrastructureError
from embodyflow.prompts.prompts import Prompt
from embodyflow.references import resolve

_PROBE_SEED = 0


class GymnasiumEpisode:
    """Implements ``RolloutWorkflow``, ``Demonstrator`` and ``RowChecker`` of :mod:`embodyflow.agents.workflow`.

    The first observation follows the last message of the row, and each further one is a message of the user. A turn of
    the model is one action. The column ``seed`` of a row seeds the environment, so siblings begin alike. The reward is
    the environment's return.

    Args:
        config: Section ``rollout.agent`` with ``gymnasium``.

    Raises:
        ConfigError: The environment cannot be built, or two resets with one seed differ.
    """

    def __init__(self, config: AgentConfig) -> None:
        if config.gymnasium is None:
            raise ConfigError(
                "rollout.agent.gymnasium: must be set for the workflow GymnasiumEpisode; set gymnasium.id"
            )
        self._config, self._gymnasium = config, config.gymnasium
        names = _probe(config.gymnasium)
        self._refusal = f"error: allowed are {', '.join(names)}" if names else "error: no such action"

    def check(self, row: Prompt) -> None:
        """Check that rows have what an episode needs.

        Raises:
            ConfigError: A row has no seed.
        """
        if not isinstance(row.row.get("seed"), int):
            raise ConfigError(
                "data: the workflow GymnasiumEpisode needs rows with a number seed; allowed is data=seeds"
            )

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play one episode: actions of the model, until the environment or a limit ends it.

        Raises:
            EnvironmentFailedError: The environment failed in all attempts.
        """
        try:
            env = TextEnvironment(self._gymnasium, row.row["seed"], context.faults)
        except ConfigError as error:  # it could be built when the run began
            raise EnvironmentFailedError(str(error)) from error
        try:
            first = await env.reset()
            conversation = engine.chat(_with_observation(row, first.text), [], context)
            for turn in range(1, self._config.max_turns + 1):
                answer = await conversation.reply(self._config.max_turn_tokens)
                if not conversation.finished:
                    break
                action = env.spaces.action(answer)
                if action is None:
                    said = context.mistake(self._refusal)
                else:
                    step = await env.step(action)
                    if step.terminated or step.truncated:
                        conversation.finished = step.terminated
                        break
                    said = step.text
                if turn == self._config.max_turns or not conversation.give("user", [said]):
                    conversation.finished = False
                    break
            return conversation.episode(env.total_reward, env.success)
        finally:
            env.close()

    async def demonstrate(self, row: Prompt) -> tuple[str, ...]:
        """Return the actions of the expert in the environment that a row seeds.

        Raises:
            ConfigError: There is no expert, it raised, its action has no name, or it did not succeed in time.
            EnvironmentFailedError: The environment failed.
        """
        config, key = self._gymnasium, "rollout.agent.gymnasium.expert"
        if config.expert is None:
            raise ConfigError(f"{key}: must be set for a warm start, which demonstrates; or set warm_start=null")
        # No retries: an expert that looks into the environment would go on looking into the one that failed.
        env = TextEnvironment(config.model_copy(update={"retries": 0}), row.row["seed"], Faults())
        turns: list[str] = []
        try:
            await env.reset()
            for action in islice(_expert(config.expert)(env.env), self._config.max_turns):
                turns.append(env.spaces.text_of(action))
                step = await env.step(action)
                if step.terminated or step.truncated:
                    break
            if not env.success:
                raise ConfigError(
                    f"{key}={config.expert}: no success with seed {row.row['seed']} within {len(turns)} steps; allow "
                    "more with rollout.agent.max_turns"
                )
        except (ConfigError, InfrastructureError):
            raise
        except Exception as error:  # a user's expert may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{key}={config.expert}: seed {row.row['seed']}: {reason}") from error
        finally:
            env.close()
        return tuple(turns)


def _with_observation(row: Prompt, text: str) -> Prompt:
    """Return the row with the first observation at the end of its last message."""
    assert row.messages is not None
    *earlier, last = row.messages
    return replace(row, messages=[*earlier, {**last, "content": f"{last['content']}{text}"}])


def _probe(config: GymnasiumConfig) -> tuple[str, ...]:
    """Check the environment with two resets; return the names of its actions."""
    steps = []
    for _ in range(2):
        env = TextEnvironment(config, _PROBE_SEED, Faults())
        try:
            steps.append(env.reset_here())
        except Exception as error:  # a user's environment may raise anything; it is reported in one line
            line = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"rollout.agent.gymnasium.id={config.id}: its first observation: {type(error).__name__}: {line}"
            ) from error
        finally:
            env.close()
    if steps[0] != steps[1]:
        raise ConfigError(
            f"rollout.agent.gymnasium.id={config.id}: two resets with seed {_PROBE_SEED} give {steps[0].text!r} and "
            f"{steps[1].text!r}; an episode must depend on its seed alone"
        )
    if config.expert is not None:
        _expert(config.expert)
    return config.actions or ()


def _expert(reference: str) -> Callable[[Any], Iterator[Any]]:
    try:
        expert: Callable[[Any], Iterator[Any]] = resolve(reference)
    except ImportError as error:
        raise ConfigError(f"rollout.agent.gymnasium.expert={reference}: {error}") from error
    return expert
