"""Environments and policy in one process: episodes for training, evaluation and demonstration.

Several environments are stepped in lock step of action chunks; an environment whose episode is over starts the next
one at once, so the policy always sees a full batch until the last episodes run out.
"""

import functools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio.v3 as iio
import numpy as np
import torch

from embodyflow.config.embodied import EmbodiedConfig
from embodyflow.data.batches import Columns
from embodyflow.data.metrics import Metric
from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import digest_of
from embodyflow.errors import ConfigError
from embodyflow.policies.base import Decision
from embodyflow.policies.env_match import check_match
from embodyflow.policies.observations import entries_of, observation_fields
from embodyflow.policies.policy_registry import build_acting_policy
from embodyflow.rollouts.episode_rows import Episode, EpisodeRows, Kept, KeptGroups, Slots, padded
from embodyflow.rollouts.group_rollout import GroupRollout, places
from embodyflow.seeding import derive_rng, derive_seed
from embodyflow.simulation.frames import CannotDrawError, drawing_env, frame_of
from embodyflow.simulation.make_env import make_env
from embodyflow.simulation.rendering import rendering_problem
from embodyflow.simulation.vector_env import EnvQuarantinedError, Supervision, VectorEnv

_logger = logging.getLogger(__name__)

SMALLEST_BATCH = 8
"""Rows of the smallest batch that the policy decides for. In smaller ones the last bit of a row's log-probs depends on
its position: a matrix product cuts its last few rows in another way."""


@dataclass(frozen=True)
class _Turn:
    """What was begun for a half of the environments.

    Attributes:
        starting: environments that begin an episode.
        playing: those that execute a chunk.
        decision: on what they execute; ``None`` where none does.
    """

    starting: Sequence[int]
    playing: Sequence[int] = ()
    decision: Decision | None = None


class EmbodiedRollout(GroupRollout):
    """The rollout engine of robot policies.

    Args:
        config: of the run.
        rank: of this worker in its group.
        world_size: workers in the group.
    """

    def __init__(self, config: EmbodiedConfig, rank: int, world_size: int) -> None:
        super().__init__(config, rank, world_size)
        self.config = config
        self._envs: dict[str, VectorEnv] = {}
        self.prototypes = [make_env(config.env, task, "train") for task in config.env.tasks]
        check_match(config.policy, self.prototypes[0])
        actions: Any = self.prototypes[0].action_space
        self._bounds = (actions.low.astype(np.float32), actions.high.astype(np.float32))
        self.policy = build_acting_policy(config.policy, config.cluster.device)
        self._instructions = np.stack(
            [self.policy.encode_instruction(env.get_wrapper_attr("instruction")) for env in self.prototypes]
        )
        self._supervision = Supervision.of(config.env)
        self.policy_version = -1

    def update_weights(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Act with these weights from now on."""
        state = {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}
        self.policy.model.load_state_dict(state)
        self.policy_version = version

    def training_episodes(self, seed: int, iteration: int, reroll: int = 0) -> list[Episode]:
        """Return this rank's episodes of the iteration: whole groups, siblings sharing task and goal.

        Args:
            seed: of the run.
            iteration: its index.
            reroll: 0 for the iteration's own episodes, from 1 for further rounds of as many, with other goals.
        """
        rollout, num_tasks = self.config.rollout, len(self.config.env.tasks)
        of_tasks = [env.get_wrapper_attr("num_goals")["train"] for env in self.prototypes]
        num_goals = np.array(of_tasks)[np.arange(rollout.num_groups) % num_tasks]
        draw = (seed, iteration, "goals") if reroll == 0 else (seed, iteration, "goals", reroll)
        goals = derive_rng(*draw).integers(num_goals).tolist()
        return [
            Episode(
                place.row,
                place.uid,
                place.group_id,
                place.group % num_tasks,
                goals[place.group],
            )
            for place in places(self.config, self.rank, self.world_size, iteration, reroll)
        ]

    def evaluation_episodes(self, mode: str = "greedy", task: int | None = None) -> list[Episode]:
        """Return this rank's share of ``evaluation.num_goals`` goals of every task, or of one; alike in each mode."""
        del mode
        num_goals, num_tasks = self.config.evaluation.num_goals, len(self.config.env.tasks)
        chosen = range(num_goals * num_tasks) if task is None else range(task, num_goals * num_tasks, num_tasks)
        # Counted task by task: every rank has environments of every task, none of which is to idle.
        rows = [row for row in chosen if self._is_mine(row % num_tasks * num_goals + row // num_tasks)]
        return [Episode(row, row, row, row % num_tasks, row // num_tasks) for row in rows]

    def _is_mine(self, index: int) -> bool:
        """Say whether what has this number, of all ranks' together, falls to this rank; they take turns."""
        return index % self.world_size == self.rank

    def play(
        self,
        episodes: Sequence[Episode],
        split: str,
        draws: tuple[int | str, ...] | None,
        journal: Journal | None = None,
    ) -> Columns:
        """Play the episodes and record them.

        The policy always decides for as many environments as take part, idle ones included: a row's numbers then do
        not depend on which others are played beside it, so episodes that a journal has need not be played again.

        A group with an episode that kills or hangs its process whenever it is played has another goal instead, drawn
        for it and for each further attempt: which one is known by the group alone.

        Args:
            episodes: what to play.
            split: whose goals.
            draws: with the episode's row appended, names the seed of its actions; ``None`` acts greedily.
            journal: keeps the episodes of whole groups as they end, and knows those of an earlier attempt.

        Returns:
            The columns of an embodied row (:mod:`embodyflow.types`), rows in the order of ``episodes``.

        Raises:
            EnvError: an environment raised, or gives numbers that are none.
            InfrastructureError: environments had to be started again more than ``env.max_restarts`` times.
        """
        kept, quarantines = journal or Kept(), Counter[int]()  # by group
        while True:
            self.env(split).abandon()  # what a node that was interrupted, or the last attempt, left
            playable = [self._replaced(episode, split, quarantines[episode.group_id]) for episode in episodes]
            rows = self._blank_rows(playable, draws)
            groups = KeptGroups(rows, kept)
            slots = Slots(self.env(split), playable, len(self.config.env.tasks), done=groups.recall())
            try:
                self._play(rows, slots, groups)
            except EnvQuarantinedError as error:
                group = slots.episode(error.index).group_id
                quarantines[group] += 1
                _logger.warning("%s; group %d gets another goal", error, group)
            else:
                return rows.columns

    def _replaced(self, episode: Episode, split: str, num_quarantines: int) -> Episode:
        """Return the episode, with another goal where those before cannot be played."""
        if num_quarantines == 0:
            return episode
        num_goals = self.prototypes[episode.env_task_id].get_wrapper_attr("num_goals")[split]
        rng = derive_rng(self.config.seed, "another goal", split, episode.group_id, num_quarantines)
        return replace(episode, goal=int(rng.integers(num_goals)))

    def _blank_rows(self, episodes: Sequence[Episode], draws: tuple[int | str, ...] | None) -> EpisodeRows:
        rows = EpisodeRows(self.config, episodes, self.policy)
        if draws is not None:
            rows.draw_noise([derive_seed(*draws, episode.row) for episode in episodes])
        rows.columns["instruction_ids"] = self._instructions[rows.columns["env_task_id"]]
        rows.columns["policy_version"][:] = self.policy_version
        return rows

    def _play(self, record: EpisodeRows, slots: Slots, groups: KeptGroups) -> None:
        """Play all episodes, half of the environments at a time where ``rollout.pipelined`` and processes step them.

        One half steps while the policy decides for the other. What a half has begun it looks at when its turn comes
        again: an episode begins a turn later than it would alone.
        """
        halves = slots.halves if self.config.rollout.pipelined else [list(range(slots.num_envs))]
        under_way: dict[int, _Turn] = {}
        while True:
            for k, half in enumerate(halves):
                if k in under_way:
                    self._end(under_way.pop(k), record, slots, groups)
                turn = self._begin(half, record, slots, is_alone=not under_way)
                if turn is not None:
                    under_way[k] = turn
            if not under_way:
                return

    def _begin(self, half: Sequence[int], record: EpisodeRows, slots: Slots, *, is_alone: bool) -> "_Turn | None":
        """Begin episodes, and decide for those that a half plays; return what is to be waited for."""
        starting = slots.begin_episodes(half)
        if starting and is_alone:
            slots.await_episodes(starting)
            starting = []
        playing = slots.playing(half)
        if not playing:
            return _Turn(starting) if starting else None
        rows, t, observation = slots.rows(playing), slots.decisions(playing), slots.observation(playing)
        record.see(rows, t, observation)
        observation = {**observation, "instruction_ids": record.columns["instruction_ids"][rows]}
        noise = None if record.noise is None else record.noise[rows, t]
        decision = self._decide(observation, noise, max(len(half), SMALLEST_BATCH))
        slots.begin_step(playing, decision.actions)
        return _Turn(starting, playing, decision)

    def _end(self, turn: "_Turn", record: EpisodeRows, slots: Slots, groups: KeptGroups) -> None:
        """Wait for what a turn began, in that order, and write it down."""
        if turn.starting:
            slots.await_episodes(turn.starting)
        if turn.decision is not None:
            rows, t = slots.rows(turn.playing), slots.decisions(turn.playing)
            step = slots.await_step(turn.playing)
            record.write(rows, t, turn.decision, step)
            groups.ended(rows[step.terminated | step.truncated])

    def fault_metrics(self) -> dict[str, Metric]:
        """Count what was done about environments that crash or hang since the last call."""
        return self._supervision.metrics()

    def _decide(self, observation: Mapping[str, np.ndarray], noise: np.ndarray | None, batch_size: int) -> Decision:
        """Decide by a batch of that size, of which the first rows are asked for."""
        num_rows = len(observation["instruction_ids"])
        batch = {name: padded(values, batch_size) for name, values in observation.items()}
        uniforms = None if noise is None else padded(noise, batch_size)
        decision = self.policy.act(batch, uniforms, self.config.rollout.temperature)
        # What is drawn of a Gaussian may lie outside of the environment's bounds.
        actions = np.clip(decision.actions[:num_rows], *self._bounds)
        return Decision(decision.tokens[:num_rows], decision.log_probs[:num_rows], actions)

    def first_observations(self) -> dict[str, dict[str, Any]]:
        """Return what the policy sees of each task before its first decision, as SHA-256, and what it is shown of.

        Two runs that agree in it make observations alike: simulator, adapter, cameras and the instruction's encoding.
        """
        found = {}
        for task, env, ids in zip(self.config.env.tasks, self.prototypes, self._instructions, strict=True):
            observation, info = env.reset(seed=0, options={"goal": 0})
            seen = {name: np.asarray(value)[None] for name, value in entries_of(observation).items()}
            stand_in = bool(info.get("stand_in_assets", False))
            found[task] = {"digest": digest_of({**seen, "instruction_ids": ids[None]}), "stand_in_assets": stand_in}
        return found

    def env(self, split: str) -> VectorEnv:
        """Return the environments of a split, built when first asked for."""
        if split not in self._envs:
            env, tasks = self.config.env, self.config.env.tasks
            fns = [
                functools.partial(make_env, env, tasks[slot % len(tasks)], split)
                for slot in range(max(self.config.rollout.envs_per_worker, len(tasks)))
            ]
            self._envs[split] = VectorEnv(
                fns,
                num_workers=self.config.rollout.env_processes,
                chunk_size=self.config.policy.chunk_size,
                info_keys=("success",),
                names=[tasks[slot % len(tasks)] for slot in range(len(fns))],
                supervision=self._supervision,
            )
        return self._envs[split]

    def demonstrate(self) -> Columns:
        """Return this rank's share of successful expert episodes, recorded step by step.

        Which those are does not depend on the number of ranks.

        Returns:
            ``state`` float32 ``[N, max_steps, S]``, ``actions`` float32 ``[N, max_steps, A]``, ``num_steps``, ``uid``,
            ``instruction_ids``; and ``image`` where the policy looks at images.

        Raises:
            ConfigError: the environment has no scripted expert, or it fails too often.
        """
        if self.config.warm_start is None:
            raise ConfigError("warm_start=null: there is nothing to demonstrate")
        num_demos, demos = self.config.warm_start.num_demos, []
        for task_id in range(len(self.config.env.tasks)):
            mine = [number for number in range(num_demos) if self._is_mine(task_id * num_demos + number)]
            demos += self._demonstrations(task_id, mine)
        # With fewer demonstrations than ranks, one has none: of any it learns what the columns are.
        of_any = demos or self._demonstrations(0, [0])
        return {name: np.stack([demo[name] for demo in of_any])[: len(demos)] for name in of_any[0]}

    def _demonstrations(self, task_id: int, numbers: Sequence[int]) -> list[dict[str, np.ndarray]]:
        """Return a task's demonstrations of those numbers.

        Raises:
            ConfigError: as :meth:`demonstrate`.
        """
        if not numbers:
            return []
        env = make_env(self.config.env, self.config.env.tasks[task_id], "demo")
        if not callable(getattr(env.unwrapped, "expert_action", None)):
            raise ConfigError(f"env.id={self.config.env.id}: has no scripted expert; set warm_start=null")
        return [self._demonstration(env, task_id, number) for number in numbers]

    def _demonstration(self, env: gym.Env[Any, Any], task_id: int, number: int) -> dict[str, np.ndarray]:
        """Return a task's demonstration of that number: of the first goal that the expert reaches, of those it may try.

        Raises:
            ConfigError: it reaches none.
        """
        assert self.config.warm_start is not None
        num_demos, num_goals = self.config.warm_start.num_demos, env.get_wrapper_attr("num_goals")["demo"]
        for goal in range(number, num_goals, num_demos):
            noise = derive_rng(self.config.seed, "demonstration", task_id, goal)
            demo = self._demonstrate_one(env, goal, noise)
            if demo is not None:
                return demo | {
                    "uid": np.array(task_id * 10**6 + goal),
                    "instruction_ids": self._instructions[task_id],
                }
        task = self.config.env.tasks[task_id]
        goals = len(range(number, num_goals, num_demos))
        raise ConfigError(
            f"warm_start.num_demos={num_demos}: the expert of {task} reached none of {goals} goals; "
            f"env.max_steps={self.config.env.max_steps} may be too few for it"
        )

    def _demonstrate_one(
        self, env: gym.Env[Any, Any], goal: int, noise: np.random.Generator
    ) -> dict[str, np.ndarray] | None:
        assert self.config.warm_start is not None
        expert: Any = env.unwrapped
        fields = observation_fields(env.observation_space)
        observation, _ = env.reset(seed=goal, options={"goal": goal})
        observations, actions, success = [], [], False
        for _ in range(self.config.env.max_steps):
            action = np.asarray(expert.expert_action())
            if action.shape != self._bounds[0].shape or not np.isfinite(action.astype(np.float64)).all():
                raise ConfigError(
                    f"env.id={self.config.env.id}: expert_action() must give finite numbers {self._bounds[0].shape}, "
                    f"gave {action!r}"
                )
            seen = entries_of(observation)
            # Copies, of what the space says: an environment may hand out one buffer again and again.
            observations.append({name: np.array(seen[name], dtype) for name, (_, dtype) in fields.items()})
            actions.append(np.array(action))
            disturbed = action + self.config.warm_start.action_noise * noise.standard_normal(action.shape)
            executed = np.clip(disturbed, *self._bounds).astype(action.dtype)
            observation, _, terminated, truncated, info = env.step(executed)
            success |= bool(info["success"])
            if terminated or truncated:
                break
        if not success:
            return None
        demo = {
            name: padded(np.stack([seen[name] for seen in observations]), self.config.env.max_steps)
            for name in observations[0]
        }
        demo["actions"] = padded(np.stack(actions), self.config.env.max_steps)
        demo["num_steps"] = np.array(len(actions))
        return demo

    def record_video(self, path: Path, num_episodes: int) -> str | None:
        """Play greedy evaluation episodes side by side into an animated picture, one frame per decision.

        There are as many as the split has goals, at most.

        Returns:
            Why it could not be rendered on this machine, or of this environment, or ``None``.
        """
        if problem := rendering_problem():
            return problem
        num_goals = self.prototypes[0].get_wrapper_attr("num_goals")["eval"]
        try:
            strips = [self._film(goal) for goal in range(min(num_episodes, num_goals))]
        except CannotDrawError as error:
            return str(error)
        length = max(len(strip) for strip in strips)
        held = [strip + [strip[-1]] * (length - len(strip)) for strip in strips]
        frames = [np.concatenate(row, axis=1) for row in zip(*held, strict=True)]
        fps = self.prototypes[0].metadata.get("render_fps", 30) / self.config.policy.chunk_size
        iio.imwrite(path, frames, duration=1000 / fps, loop=0)
        return None

    def _film(self, goal: int) -> list[np.ndarray]:
        config = self.config.env
        with drawing_env(config, config.tasks[0], "eval") as env:
            observation, _ = env.reset(seed=goal, options={"goal": goal})
            frames, over = [frame_of(config, env)], False
            while not over:
                batch = {name: np.asarray(value)[None] for name, value in entries_of(observation).items()}
                batch["instruction_ids"] = self._instructions[:1]
                for action in self._decide(batch, None, SMALLEST_BATCH).actions[0]:
                    observation, _, terminated, truncated, _ = env.step(action)
                    over = terminated or truncated
                    if over:
                        break
                frames.append(frame_of(config, env))
        return frames

    def close(self) -> None:
        """Close every environment."""
        for vector_env in self._envs.values():
            vector_env.close()
        for env in self.prototypes:
            env.close()
