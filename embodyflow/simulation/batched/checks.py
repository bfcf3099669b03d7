"""Checks of a natively batched environment before a run: it can be built, it fits, and seeds restore its episodes."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from embodyflow.config.robots.control import ControlConfig
from embodyflow.config.robots.environment import EnvConfig
from embodyflow.errors import ConfigError, InfrastructureError
from embodyflow.policies.env_match import check_match, policy_sizes
from embodyflow.simulation.batched.source import Lane, open_batch, takes_limit
from embodyflow.simulation.batched.vector_env import BatchedVectorEnv
from embodyflow.simulation.env_spec import env_spec
from embodyflow.simulation.restorability import FEWEST_STEPS, PROBE_SEED, STEP_SECONDS, difference, probe_actions
from embodyflow.simulation.supervision import EnvQuarantinedError, Supervision
from embodyflow.simulation.vector.worker import EnvError

PROBE_LANES = 4
STAGGER = 2
"""Steps by which some lanes are ahead of the others in a play to the ends of episodes."""

OTHER_SEED, LATER_SEED = 100, 200
"""First seed of the plays in between, and first seed of the episodes that follow another in a play."""

Moment = dict[str, npt.NDArray[Any]]
"""Observations of all lanes, and after a step also rewards and flags, by name."""


def check_batch(config: ControlConfig) -> None:
    """Check that the batch of a rollout worker can be built and stepped, and that it fits the job and its policy.

    Raises:
        ConfigError: A check failed; one line names the key and what is allowed.
    """
    env, lanes = config.env, config.rollout.envs_per_worker
    with opened_batch(env, lanes, config.rollout.env_processes) as vector:
        check_match(config.policy, Lane(vector))
        if config.off_policy is not None and vector.skips_resets:
            raise ConfigError(
                f"env.vector.resets=automatic: env.id={env.id} resets a lane in a step of its own "
                "(AutoresetMode.NEXT_STEP), and off_policy needs a transition in every step; allowed is seeded"
            )
        if config.rollout.num_steps == 1 and vector.skips_resets:
            raise ConfigError(
                f"rollout.num_steps=1: allowed are 2 or more with env.id={env.id}, which resets a lane in a step of "
                "its own"
            )
        _Play(vector, PROBE_SEED).steps(1)


def batch_sizes(env: EnvConfig) -> dict[str, int | list[int]]:
    """Return the sizes of a policy for the lanes of a batch.

    Raises:
        ConfigError: The batch cannot be built; one line names the key and what is allowed.
    """
    with opened_batch(env, 1, 0) as vector:
        return policy_sizes(Lane(vector))


def find_unrestorable_batch(env: EnvConfig, num_processes: int) -> dict[str, str]:
    """Return the id of a batch whose seeds do not restore its episodes, with the culprit and the difference.

    The batch is played twice with the same seeds and actions, before and after other episodes, and once in another
    instance. With ``env.vector.resets=seeded`` every other lane is also reset alone, and lanes are reset after their
    episode's end: they must play as after a reset of the whole batch, whatever the rest does.

    Args:
        env: Configuration of the batch.
        num_processes: 1 plays it in a process of its own, 0 in this process.

    Returns:
        Line ``<key>: <what differs>`` by ``env.id``; empty if everything is restored.

    Raises:
        ConfigError: The batch cannot be played, a reset of some lanes disturbs the others, or one after an end does not
            begin an episode.
    """
    found, alone = None, None
    with opened_batch(env, PROBE_LANES, num_processes) as vector:
        once = _Play(vector, PROBE_SEED).steps(FEWEST_STEPS)  # short, so that the lanes are checked before they end
        found = _difference_again(vector, once)
        if found is None and not vector.resets_itself:
            alone = _lanes_alone(env, vector, once)
        if found is None and alone is None:
            once = _Play(vector, PROBE_SEED).timed_steps(env.max_steps + FEWEST_STEPS)
            found = _difference_again(vector, once)
    if found is None and alone is None:
        with opened_batch(env, PROBE_LANES, num_processes) as vector:
            found = difference(once, _Play(vector, PROBE_SEED).steps(len(once) - 1), "in another instance")
    if found is not None:
        return {env.id: f"env.id={env.id}: {found}"}
    _check_last_observations(env, num_processes, once)
    if alone is None:
        _check_after_ends(env, num_processes)
    return {} if alone is None else {env.id: f"env.vector.resets=seeded: {alone}"}


def _difference_again(vector: BatchedVectorEnv, once: Sequence[Moment]) -> str | None:
    """Repeat a play after another one, and return the first difference."""
    _Play(vector, OTHER_SEED).steps(len(once) - 1)
    return difference(once, _Play(vector, PROBE_SEED).steps(len(once) - 1), "after other episodes")


def _lanes_alone(env: EnvConfig, vector: BatchedVectorEnv, once: Sequence[Moment]) -> str | None:
    """Reset every other lane alone, and return how it differs from its play in the batch.

    Raises:
        ConfigError: The reset changes the other lanes.
    """
    num_steps, before = len(once) - 1, FEWEST_STEPS - 1
    chosen, others = list(range(1, vector.num_envs, 2)), list(range(0, vector.num_envs, 2))
    undisturbed = _Play(vector, OTHER_SEED)
    undisturbed.steps(before)
    expected = undisturbed.steps(num_steps)[-num_steps:]
    play = _Play(vector, OTHER_SEED)
    play.steps(before)
    start = play.restart(chosen, PROBE_SEED)
    found = play.steps(num_steps)[-num_steps:]
    if line := difference(_of(expected, others), _of(found, others), "in lanes that are not reset"):
        raise ConfigError(
            f"env.vector.resets=seeded: env.id={env.id}: reset(options={{'reset_mask': …}}) changes other lanes: "
            f"{line}; allowed is automatic, if the batch resets itself"
        )
    return difference(_of(once, chosen), [start, *_of(found, chosen)], "in a lane that is reset alone")


def _check_after_ends(env: EnvConfig, num_processes: int) -> None:
    """Check that a lane that is reset after its end begins an episode, also in a batch that would reset it by itself.

    The episodes have a short time limit, if the batch takes one.

    Raises:
        ConfigError: It plays otherwise than after a reset of the whole batch.
    """
    brief, most = env, env.max_steps + FEWEST_STEPS
    if takes_limit(env):
        brief = env.model_copy(update={"max_steps": min(env.max_steps, FEWEST_STEPS)})
        most = 2 * brief.max_steps - STAGGER - 1  # the second episode does not reach the limit
    with opened_batch(brief, PROBE_LANES, num_processes) as vector:
        if vector.resets_itself:
            return
        play = _Play(vector, PROBE_SEED)
        play.steps(STAGGER)
        play.restart(list(range(1, vector.num_envs, 2)), PROBE_SEED)  # so that the lanes do not end together
        played = play.timed_steps(most)
        fresh = _Play(vector, LATER_SEED).steps(len(played) - 1)
    for lane in range(PROBE_LANES):
        own, expected = _of(played, [lane]), _of(fresh, [lane])
        end = next((t for t in range(STAGGER + 1, len(own)) if own[t]["terminated"] | own[t]["truncated"]), None)
        if end is None:
            continue
        start = {name: own[end][f"next {name}"] for name in expected[0]}
        if line := difference(expected, [start, *own[end + 1 :]], "after the end of an episode"):
            raise ConfigError(
                f"env.vector.resets=seeded: env.id={env.id}: reset(options={{'reset_mask': …}}) does not begin an "
                f"episode: {line}; allowed is automatic, if the batch resets itself"
            )


def _check_last_observations(env: EnvConfig, num_processes: int, once: Sequence[Moment]) -> None:
    """Check that the observation at the end of an episode is its last one, and not the first one of the next.

    A batch that resets lanes in the step of their end, although it says otherwise, would give values to other states.
    The play is repeated with a shorter time limit, if the batch takes one: the limit ends an episode, but does not
    change what it observes.

    Args:
        env: Configuration of the batch.
        num_processes: 1 plays it in a process of its own, 0 in this process.
        once: Moments of a play with the whole time limit.

    Raises:
        ConfigError: It is another one.
    """
    if not takes_limit(env) or env.max_steps <= FEWEST_STEPS or len(once) <= FEWEST_STEPS:
        return
    with opened_batch(env.model_copy(update={"max_steps": FEWEST_STEPS}), PROBE_LANES, num_processes) as vector:
        cut = _Play(vector, PROBE_SEED).steps(FEWEST_STEPS)
    ended = np.zeros(PROBE_LANES, np.bool_)
    for moment in once[1 : FEWEST_STEPS + 1]:
        ended |= moment["terminated"] | moment["truncated"]
    lanes = np.flatnonzero(~ended & cut[-1]["truncated"]).tolist()
    before, played = (_observed(_of(moments, lanes)) for moments in (cut, once))
    if difference(before[:-1], played[:FEWEST_STEPS], ""):
        return  # the batch shows its time limit, so nothing can be compared
    if line := difference(before[-1:], played[FEWEST_STEPS : FEWEST_STEPS + 1], ""):
        name = line.removeprefix(" the ").partition(" after ")[0]
        raise ConfigError(
            f"env.vector: env.id={env.id}: the {name} in the step that ends an episode is not the last one of the "
            "episode; allowed are batches that reset a lane as their metadata['autoreset_mode'] says, and whose "
            "infos['final_obs'] is a copy"
        )


def _observed(moments: Sequence[Moment]) -> list[Moment]:
    return [{name: column for name, column in each.items() if name.startswith("observation ")} for each in moments]


def _of(moments: Sequence[Moment], lanes: Sequence[int]) -> list[Moment]:
    return [{name: column[list(lanes)] for name, column in moment.items()} for moment in moments]


class _Play:
    """A play of all lanes from a reset, in which an episode that ends is followed by another.

    Args:
        vector: Batch to play.
        seed: Seed of lane 0; the other lanes have the next ones.
    """

    def __init__(self, vector: BatchedVectorEnv, seed: int) -> None:
        self._vector = vector
        self._actions = np.stack([np.asarray(each) for each in probe_actions(vector.action_space)])
        self._since = np.zeros(vector.num_envs, np.int64)  # steps of each lane, which choose its actions
        self._lanes = np.arange(vector.num_envs)
        self.moments = [_named(vector.reset(seeds=(seed + self._lanes).tolist()))]

    def restart(self, lanes: list[int], seed: int) -> Moment:
        """Reset some lanes to the seeds and actions of a play that begins with ``seed``; return what they observe."""
        self._since[lanes] = 0
        return _named(self._vector.reset(lanes, (seed + self._lanes[lanes]).tolist()))

    def steps(self, number: int) -> list[Moment]:
        """Play so many steps and return the moments since the reset."""
        for _ in range(number):
            self._step()
        return self.moments

    def timed_steps(self, most: int) -> list[Moment]:
        """Play for :data:`STEP_SECONDS`, at least ``FEWEST_STEPS`` and at most ``most`` steps; return the moments."""
        deadline = time.monotonic() + STEP_SECONDS
        for t in range(most):
            if t >= FEWEST_STEPS and time.monotonic() > deadline:
                break
            self._step()
        return self.moments

    def _step(self) -> None:
        vector = self._vector
        step = vector.step(self._actions[(self._since + self._lanes) % len(self._actions)][:, None])
        self._since += 1
        moment = _named(step.observation) | {
            "reward": step.rewards[:, 0],
            "terminated": step.terminated,
            "truncated": step.truncated,
        }
        moment |= {f"next {name}": values.copy() for name, values in _named(step.observation).items()}
        over = np.flatnonzero(step.terminated | step.truncated).tolist()
        if over:
            self._since[over] = 0
            seeds = None if vector.resets_itself else (LATER_SEED + self._lanes[over]).tolist()
            for name, values in _named(vector.reset(over, seeds)).items():
                moment[f"next {name}"][over] = values
        self.moments.append(moment)


def _named(observation: Mapping[str, npt.NDArray[Any]]) -> Moment:
    return {f"observation {name!r}": values for name, values in observation.items()}


@contextmanager
def opened_batch(env: EnvConfig, num_lanes: int, num_processes: int) -> Iterator[BatchedVectorEnv]:
    """Open a batch for a check.

    Args:
        env: Configuration of the batch.
        num_lanes: Number of lanes.
        num_processes: 1 plays it in a process of its own, 0 in this process.

    Raises:
        ConfigError: The batch cannot be built, or raises in the block; one line.
    """
    _require_entry_point(env)
    try:
        with closing(open_batch(env, num_lanes, num_processes, Supervision.from_config(env))) as vector:
            yield vector
    except EnvError as error:
        raise ConfigError(_failure(env, error)) from error
    except (EnvQuarantinedError, InfrastructureError) as error:
        raise ConfigError(f"env.id={env.id}: cannot be played: {str(error).splitlines()[0]}") from error


def _require_entry_point(env: EnvConfig) -> None:
    assert env.vector is not None
    spec = env_spec(env.id)
    if env.vector.mode == "entry_point" and spec.vector_entry_point is None:
        raise ConfigError(
            f"env.vector.mode=entry_point: env.id={env.id} is registered without a vector_entry_point; allowed is "
            "sync, or env.vector=null"
        )
    if env.vector.mode == "sync" and spec.entry_point is None:
        raise ConfigError(
            f"env.vector.mode=sync: env.id={env.id} is registered without an entry_point; allowed is entry_point"
        )


def _failure(env: EnvConfig, error: EnvError) -> str:
    """Return one line about a batch that raised."""
    line = error.details.strip().splitlines()[-1]
    message = line.partition(": ")[2]
    if message.startswith("env."):
        return message
    seeded = env.vector is not None and env.vector.resets == "seeded" and " in _reset" in error.details
    hint = (
        "; env.vector.resets=seeded needs reset(seed=[…], options={'reset_mask': …}), allowed is also automatic"
        if seeded
        else ""
    )
    return f"env.id={env.id}: raised: {line}{hint}"
