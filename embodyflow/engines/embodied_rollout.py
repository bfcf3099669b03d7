"""Environments and policy in one process: episodes for training, evaluation and demonstration.

Several environments are stepped in lock step of action chunks; an environment whose episode is over starts the next
one at once, so the policy always sees a full batch until the last episodes run out.
"""

import functools
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import imageio.v3 as iio
import numpy as np
import torch

from embodyflow.config.embodied import EmbodiedConfig
from embodyflow.data.batches import Columns
from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import digest_of
from embodyflow.engines.environments import make_env
from embodyflow.engines.groups import GroupRollout, places
from embodyflow.engines.rendering import rendering_problem
from embodyflow.engines.vector_env import ChunkStep, VectorEnv
from embodyflow.errors import ConfigError
from embodyflow.policies.base import Decision
from embodyflow.policies.fit import check_fits
from embodyflow.policies.registry import build_acting_policy
from embodyflow.seeding import derive_rng, derive_seed

SMALLEST_BATCH = 8
"""Rows of the smallest batch that the policy decides for. In smaller ones the last bit of a row's log-probs depends on
its position: a matrix product cuts its last few rows in another way."""


@dataclass(frozen=True)
class Episode:
    """One episode to be played.

    Attributes:
        row: position in the whole batch, over all workers; names the episode's random draws.
        uid, group_id: see :mod:`embodyflow.types`.
        env_task_id: index into ``env.tasks``.
        goal: index of the initial state in its split.
    """

    row: int
    uid: int
    group_id: int
    env_task_id: int
    goal: int


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
        check_fits(config.policy, self.prototypes[0])
        self.policy = build_acting_policy(config.policy, config.cluster.device)
        self._instructions = np.stack(
            [self.policy.encode_instruction(env.get_wrapper_attr("instruction")) for env in self.prototypes]
        )
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
        num_goals = self.prototypes[0].get_wrapper_attr("num_goals")["train"]
        draw = (seed, iteration, "goals") if reroll == 0 else (seed, iteration, "goals", reroll)
        goals = derive_rng(*draw).integers(num_goals, size=rollout.num_groups)
        return [
            Episode(place.row, place.uid, place.group_id, place.group % num_tasks, int(goals[place.group]))
            for place in places(self.config, self.rank, self.world_size, iteration, reroll)
        ]

    def evaluation_episodes(self, mode: str = "greedy", task: int | None = None) -> list[Episode]:
        """Return this rank's share of ``evaluation.num_goals`` goals of every task, or of one; alike in each mode."""
        del mode
        num_goals, num_tasks = self.config.evaluation.num_goals, len(self.config.env.tasks)
        everything = range(num_goals * num_tasks)
        rows = (everything if task is None else everything[task::num_tasks])[self.rank :: self.world_size]
        return [Episode(row, row, row, row % num_tasks, row // num_tasks) for row in rows]

    def play(
        self,
        episodes: Sequence[Episode],
        split: str,
        draws: tuple[int | str, ...] | None,
        journal: Journal | None = None,
    ) -> Columns:
        """Play the episodes and record them.

        The policy always decides for as many environments as there are, idle ones included: a row's numbers then do
        not depend on which others are played beside it, so episodes that a journal has need not be played again.

        Args:
            episodes: what to play.
            split: whose goals.
            draws: with the episode's row appended, names the seed of its actions; ``None`` acts greedily.
            journal: keeps the episodes of whole groups as they end, and knows those of an earlier attempt.

        Returns:
            The columns of an embodied row (:mod:`embodyflow.types`), rows in the order of ``episodes``.
        """
        record = _Record(self.config, episodes, self.policy.num_tokens)
        if draws is not None:
            record.draw_noise([derive_seed(*draws, episode.row) for episode in episodes])
        record.columns["instruction_ids"] = self._instructions[record.columns["env_task_id"]]
        record.columns["policy_version"][:] = self.policy_version
        groups = _Groups(record, journal)
        slots = _Slots(self.env(split), episodes, len(self.config.env.tasks), done=groups.recall())
        while slots.fill():
            rows, t = slots.rows(), slots.decisions()
            observation = slots.observation()
            record.see(rows, t, observation)
            observation = {**observation, "instruction_ids": record.columns["instruction_ids"][rows]}
            noise = None if record.noise is None else record.noise[rows, t]
            decision = self._decide(observation, noise, max(slots.num_envs, SMALLEST_BATCH))
            step = slots.step(decision.actions)
            record.write(rows, t, decision, step)
            groups.ended(rows[step.terminated | step.truncated])
        return record.columns

    def _decide(self, observation: Mapping[str, np.ndarray], noise: np.ndarray | None, batch_size: int) -> Decision:
        """Decide by a batch of that size, of which the first rows are asked for."""
        num_rows = len(observation["instruction_ids"])
        padded = {name: _padded(values, batch_size) for name, values in observation.items()}
        uniforms = None if noise is None else _padded(noise, batch_size)
        decision = self.policy.act(padded, uniforms, self.config.rollout.temperature)
        return Decision(decision.tokens[:num_rows], decision.log_probs[:num_rows], decision.actions[:num_rows])

    def first_observations(self) -> dict[str, dict[str, Any]]:
        """Return what the policy sees of each task before its first decision, as SHA-256, and what it is shown of.

        Two runs that agree in it make observations alike: simulator, adapter, cameras and the instruction's encoding.
        """
        found = {}
        for task, env, ids in zip(self.config.env.tasks, self.prototypes, self._instructions, strict=True):
            observation, info = env.reset(seed=0, options={"goal": 0})
            seen = {name: np.asarray(value)[None] for name, value in observation.items()}
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
                fns, num_workers=0, chunk_size=self.config.policy.chunk_size, info_keys=("success",)
            )
        return self._envs[split]

    def demonstrate(self) -> Columns:
        """Return this rank's share of successful expert episodes, recorded step by step.

        Returns:
            ``state`` float32 ``[N, max_steps, S]``, ``actions`` float32 ``[N, max_steps, A]``, ``num_steps``, ``uid``,
            ``instruction_ids``; and ``image`` where the policy looks at images.

        Raises:
            ConfigError: the environment has no scripted expert, or it fails too often.
        """
        if self.config.warm_start is None:
            raise ConfigError("warm_start=null: there is nothing to demonstrate")
        parts = []
        for task_id, task in enumerate(self.config.env.tasks):
            env = make_env(self.config.env, task, "demo")
            if not hasattr(env.unwrapped, "expert_action"):
                raise ConfigError(f"env.id={self.config.env.id}: has no scripted expert; set warm_start=null")
            wanted = len(range(self.rank, self.config.warm_start.num_demos, self.world_size))
            num_goals = env.get_wrapper_attr("num_goals")["demo"]
            for goal in range(self.rank, num_goals, self.world_size):
                if wanted == 0:
                    break
                noise = derive_rng(self.config.seed, "demonstration", task_id, goal)
                demo = self._demonstrate_one(env, goal, noise)
                if demo is not None:
                    demo["uid"] = np.array(task_id * 10**6 + goal)
                    demo["instruction_ids"] = self._instructions[task_id]
                    parts.append(demo)
                    wanted -= 1
            if wanted:
                raise ConfigError(f"warm_start.num_demos: the expert of {task} lacks {wanted} successful demos")
        if not parts:
            raise ConfigError(
                f"warm_start.num_demos={self.config.warm_start.num_demos}: must be at least "
                f"rollout.num_workers={self.world_size}"
            )
        return {name: np.stack([part[name] for part in parts]) for name in parts[0]}

    def _demonstrate_one(
        self, env: gym.Env[Any, Any], goal: int, noise: np.random.Generator
    ) -> dict[str, np.ndarray] | None:
        assert self.config.warm_start is not None
        expert: Any = env.unwrapped
        observation, _ = env.reset(seed=goal, options={"goal": goal})
        observations, actions = [], []
        for _ in range(self.config.env.max_steps):
            action = expert.expert_action()
            observations.append(observation)
            actions.append(action)
            disturbed = action + self.config.warm_start.action_noise * noise.standard_normal(action.shape)
            executed = np.clip(disturbed, -1, 1).astype(action.dtype)
            observation, _, terminated, truncated, info = env.step(executed)
            if terminated or truncated:
                break
        if not info["success"]:
            return None
        demo = {
            name: _padded(np.stack([o[name] for o in observations]), self.config.env.max_steps) for name in observation
        }
        demo["actions"] = _padded(np.stack(actions), self.config.env.max_steps)
        demo["num_steps"] = np.array(len(actions))
        return demo

    def record_video(self, path: Path, num_episodes: int) -> str | None:
        """Play greedy evaluation episodes side by side into an animated picture, one frame per decision.

        Returns:
            Why it could not be rendered on this machine, or ``None``.
        """
        problem = rendering_problem()
        if problem is not None:
            return problem
        strips = [self._film(goal) for goal in range(num_episodes)]
        length = max(len(strip) for strip in strips)
        held = [strip + [strip[-1]] * (length - len(strip)) for strip in strips]
        frames = [np.concatenate(row, axis=1) for row in zip(*held, strict=True)]
        fps = self.prototypes[0].metadata.get("render_fps", 30) / self.config.policy.chunk_size
        iio.imwrite(path, frames, duration=1000 / fps, loop=0)
        return None

    def _film(self, goal: int) -> list[np.ndarray]:
        env = make_env(self.config.env, self.config.env.tasks[0], "eval", render_mode="rgb_array")
        observation, _ = env.reset(seed=goal, options={"goal": goal})
        frames, over = [np.asarray(env.render())], False
        while not over:
            batch = {name: np.asarray(value)[None] for name, value in observation.items()}
            batch["instruction_ids"] = self._instructions[:1]
            for action in self.policy.act(batch, None, self.config.rollout.temperature).actions[0]:
                observation, _, terminated, truncated, _ = env.step(action)
                over = terminated or truncated
                if over:
                    break
            frames.append(np.asarray(env.render()))
        env.close()
        return frames

    def close(self) -> None:
        """Close every environment."""
        for vector_env in self._envs.values():
            vector_env.close()
        for env in self.prototypes:
            env.close()


class _Slots:
    """Which environment plays which episode, and at which decision it is."""

    def __init__(self, env: VectorEnv, episodes: Sequence[Episode], num_tasks: int, done: Set[int]) -> None:
        self._env, self._episodes, self._num_tasks = env, episodes, num_tasks
        self.num_envs = env.num_envs
        self._waiting: list[deque[int]] = [deque() for _ in range(num_tasks)]
        for row, episode in enumerate(episodes):
            if row not in done:
                self._waiting[episode.env_task_id].append(row)
        self._row: dict[int, int] = {}  # slot to row, only slots that play
        self._decision: dict[int, int] = {}
        self._observation: dict[str, np.ndarray] = {}

    def fill(self) -> bool:
        """Start waiting episodes in idle environments; return whether any is being played."""
        starting = {}
        for slot in range(self._env.num_envs):
            waiting = self._waiting[slot % self._num_tasks]
            if slot not in self._row and waiting:
                starting[slot] = self._row[slot] = waiting.popleft()
                self._decision[slot] = 0
        if starting:
            episodes = [self._episodes[row] for row in starting.values()]
            self._store(
                list(starting),
                self._env.reset(
                    list(starting),
                    seeds=[episode.goal for episode in episodes],
                    options=[{"goal": episode.goal} for episode in episodes],
                ),
            )
        return bool(self._row)

    def rows(self) -> np.ndarray:
        """Return the rows being played, int64 ``[n]``, in slot order."""
        return np.array([self._row[slot] for slot in sorted(self._row)])

    def decisions(self) -> np.ndarray:
        """Return how many decisions each of them has taken, int64 ``[n]``."""
        return np.array([self._decision[slot] for slot in sorted(self._row)])

    def observation(self) -> dict[str, np.ndarray]:
        """Return what each of them sees now."""
        slots = sorted(self._row)
        return {name: values[slots] for name, values in self._observation.items()}

    def step(self, actions: np.ndarray) -> ChunkStep:
        """Execute a chunk in each; environments whose episode ends become idle."""
        slots = sorted(self._row)
        step = self._env.step(actions, slots)
        self._store(slots, step.observation)
        for slot, over in zip(slots, step.terminated | step.truncated, strict=True):
            self._decision[slot] += 1
            if over:
                del self._row[slot]
        return step

    def _store(self, slots: list[int], observation: Mapping[str, np.ndarray]) -> None:
        for name, values in observation.items():
            if name not in self._observation:
                shape = (self._env.num_envs, *values.shape[1:])
                self._observation[name] = np.zeros(shape, values.dtype)
            self._observation[name][slots] = values


class _Record:
    """The columns being filled, one row per episode."""

    def __init__(self, config: EmbodiedConfig, episodes: Sequence[Episode], num_tokens: int) -> None:
        shape = (len(episodes), config.num_decisions, num_tokens)
        self._num_tokens, self._chunk = num_tokens, config.policy.chunk_size
        self.noise: np.ndarray | None = None
        self.columns: Columns = {
            "uid": np.array([e.uid for e in episodes], np.int64),
            "group_id": np.array([e.group_id for e in episodes], np.int64),
            "env_task_id": np.array([e.env_task_id for e in episodes], np.int64),
            "goal": np.array([e.goal for e in episodes], np.int64),
            "seed": np.zeros(len(episodes), np.int64),
            "policy_version": np.zeros(len(episodes), np.int64),
            "action_tokens": np.zeros(shape, np.int64),
            "actions": np.zeros((*shape[:2], self._chunk, config.policy.action_dim), np.float32),
            "log_probs": np.zeros(shape, np.float32),
            "loss_mask": np.zeros(shape, bool),
            "num_steps": np.zeros(len(episodes), np.int64),
            "episode_return": np.zeros(len(episodes), np.float32),
            "success": np.zeros(len(episodes), bool),
            "terminated": np.zeros(len(episodes), bool),
            "truncated": np.zeros(len(episodes), bool),
        }

    def draw_noise(self, seeds: Sequence[int]) -> None:
        """Draw each row's randomness from its own seed: who its neighbours are makes no difference."""
        shape = self.columns["action_tokens"].shape[1:]
        self.columns["seed"][:] = seeds
        self.noise = np.stack([derive_rng(seed).random(shape, dtype=np.float32) for seed in seeds])

    def see(self, rows: np.ndarray, t: np.ndarray, observation: Mapping[str, np.ndarray]) -> None:
        """Record the observations before a decision."""
        for name, values in observation.items():
            if name not in self.columns:
                shape = self.columns["action_tokens"].shape[:2] + values.shape[1:]
                self.columns[name] = np.zeros(shape, values.dtype)
            self.columns[name][rows, t] = values

    def write(self, rows: np.ndarray, t: np.ndarray, decision: Decision, step: ChunkStep) -> None:
        """Record a decision and what came of it; tokens of actions not executed stay outside the mask."""
        columns = self.columns
        executed = np.arange(self._chunk) < step.num_steps[:, None]
        mask = np.repeat(executed, self._num_tokens // self._chunk, axis=1)
        columns["action_tokens"][rows, t] = np.where(mask, decision.tokens, 0)
        columns["actions"][rows, t] = np.where(executed[:, :, None], decision.actions, 0)
        columns["log_probs"][rows, t] = np.where(mask, decision.log_probs, 0)
        columns["loss_mask"][rows, t] = mask
        columns["num_steps"][rows] += step.num_steps
        columns["episode_return"][rows] += step.rewards.sum(axis=1)
        columns["success"][rows] |= step.infos["success"].astype(bool)
        columns["terminated"][rows] = step.terminated
        columns["truncated"][rows] = step.truncated


class _Groups:
    """Keeps the rows of every group whose episodes have all ended in a journal."""

    def __init__(self, record: _Record, journal: Journal | None) -> None:
        self._columns, self._journal = record.columns, journal
        self._open: dict[int, set[int]] = defaultdict(set)
        for row, group in enumerate(record.columns["group_id"].tolist()):
            self._open[group].add(row)

    def recall(self) -> Set[int]:
        """Fill in the rows that the journal has; return which they are."""
        done: set[int] = set()
        row_of = {uid: row for row, uid in enumerate(self._columns["uid"].tolist())}
        for table in self._journal.read() if self._journal is not None else ():
            piece = cast(Columns, table)
            rows = [row_of[uid] for uid in piece["uid"].tolist()]
            for name, values in piece.items():
                if name not in self._columns:
                    self._columns[name] = np.zeros((len(row_of), *values.shape[1:]), values.dtype)
                self._columns[name][rows] = values
            done.update(rows)
        return done

    def ended(self, rows: np.ndarray) -> None:
        """Note that episodes have ended; write the groups that are whole now."""
        if self._journal is None:
            return
        for row in rows.tolist():
            group = int(self._columns["group_id"][row])
            self._open[group].discard(row)
            if not self._open[group]:
                whole = np.flatnonzero(self._columns["group_id"] == group)
                self._journal.append({name: values[whole] for name, values in self._columns.items()})


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([values, np.zeros((length - len(values), *values.shape[1:]), values.dtype)])
