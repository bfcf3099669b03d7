"""Rollouts of a robot policy: episodes for training, evaluation and demonstration.

Environments step together, one action chunk at a time. An environment whose episode ends starts the next one at once,
so the policy receives full batches until no episodes are waiting.
"""

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.config.robots.warm_start import ExpertWarmStartConfig
from embodyflow.data.batches import Columns
from embodyflow.data.metrics import Metric
from embodyflow.data.plans.partition import Share
from embodyflow.data.published_weights import views_of
from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import digest_of
from embodyflow.errors import ConfigError
from embodyflow.policies.base import ActingPolicy, Decision
from embodyflow.policies.env_match import check_match
from embodyflow.policies.observations import entries_of
from embodyflow.policies.policy_registry import build_acting_policy
from embodyflow.policies.weight_copies import copy_weights
from embodyflow.process.tracing import span
from embodyflow.rollouts.embodied.action_noise import chunk_uniforms
from embodyflow.rollouts.embodied.clips import Clip, write_animation
from embodyflow.rollouts.embodied.demonstrators import (
    DatasetDemonstrator,
    Demonstration,
    Demonstrator,
    ExpertDemonstrator,
)
from embodyflow.rollouts.embodied.episode_rows import (
    Episode,
    EpisodeRows,
    GroupJournal,
    MemoryJournal,
    RowLayout,
    Slots,
    SolvedGoals,
    padded,
)
from embodyflow.rollouts.embodied.episode_turns import Decide, EpisodeTurns, Situation, Stage
from embodyflow.rollouts.embodied.executable_actions import null_action, numbered_actions, recorded_actions
from embodyflow.rollouts.embodied.expert_labels import EpisodeLabeller
from embodyflow.rollouts.embodied.instructions import encoded_instructions
from embodyflow.rollouts.embodied.temporal_ensemble import TemporalEnsemble, ensembled
from embodyflow.rollouts.group_rollout import GroupRollout, first_rows, places
from embodyflow.seeding import derive_rng, derive_seed
from embodyflow.simulation.frames import CannotDrawError, drawing_env, frame_of
from embodyflow.simulation.make_env import make_env
from embodyflow.simulation.rendering import rendering_problem
from embodyflow.simulation.success import read_success
from embodyflow.simulation.vector.env import EnvQuarantinedError, Supervision, VectorEnv
from embodyflow.types import Batch

_logger = logging.getLogger(__name__)

SMALLEST_BATCH = 8
"""Size of the smallest batch for the policy. In smaller ones the last bit of a row's log-probs depends on its position,
because a matrix product computes its last few rows differently."""


class GroupQuarantinedError(RuntimeError):
    """A group has an episode that kills or hangs its process at each attempt, so it needs another goal."""

    def __init__(self, group_id: int, details: str) -> None:
        super().__init__(group_id, details)
        self.group_id, self.details = group_id, details

    def __str__(self) -> str:
        return self.details


class EmbodiedRollout(GroupRollout):
    """The rollout engine of robot policies.

    Args:
        config: Run configuration.
        rank: Rank of this worker in its group.
        world_size: Number of workers in the group.
    """

    def __init__(self, config: EmbodiedConfig, rank: int, world_size: int) -> None:
        super().__init__(config, rank, world_size)
        self.config = config
        self._envs: dict[str, VectorEnv] = {}
        self.prototypes = [make_env(config.env, task, "train") for task in config.env.tasks]
        check_match(config.policy, self.prototypes[0])
        self._action_space = self.prototypes[0].action_space
        self.policy = build_acting_policy(config.policy, config.cluster.device)
        texts = [env.get_wrapper_attr("instruction") for env in self.prototypes]
        self._instructions = encoded_instructions(self.policy, dict(zip(config.env.tasks, texts, strict=True)))
        self._supervision = Supervision.from_config(config.env)
        self.policy_version = -1

    def update_weights(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Load the weights that the policy acts with from now on."""
        copy_weights(self.policy.model, weights, views_of(weights))
        self.policy_version = version
        if version >= 0 and (measuring := self._envs.pop("demo", None)) is not None:
            measuring.close()  # weights of a warm start have negative versions, and RL does not play these goals

    def training_episodes(self, seed: int, iteration: int, reroll: int = 0) -> list[Episode]:
        """Return this rank's episodes of an iteration: whole groups, whose siblings share task and goal.

        Args:
            seed: Seed of the run.
            iteration: Index of the iteration.
            reroll: 0 for the iteration's own episodes; from 1 for further rounds of the same size, with other goals.
        """
        rollout, turns = self.config.rollout, np.array(self.config.env.turns)
        tasks = turns[np.arange(rollout.num_groups) % len(turns)]
        num_goals_by_task = [env.get_wrapper_attr("num_goals")["train"] for env in self.prototypes]
        num_goals = np.array(num_goals_by_task)[tasks]
        draw = (seed, iteration, "goals") if reroll == 0 else (seed, iteration, "goals", reroll)
        goals = derive_rng(*draw).integers(num_goals).tolist()
        return [
            Episode(
                place.row,
                place.uid,
                place.group_id,
                int(tasks[place.group]),
                goals[place.group],
            )
            for place in places(self.config, self.rank, self.world_size, iteration, reroll)
        ]

    def first_of_groups(self, batch: Batch) -> list[Episode]:
        """Return an episode for the first row of each group, with the group's task and goal."""
        columns = (batch[name].tolist() for name in ("uid", "group_id", "env_task_id", "goal"))
        rows = list(zip(*columns, strict=True))
        return [Episode(row, *rows[row]) for row in first_rows(batch["group_id"])]

    def is_divisible(self) -> bool:
        """Return True: the policy's batch has a fixed size, so a row does not depend on the episodes beside it."""
        return True

    def evaluation_episodes(
        self, mode: str = "greedy", task: int | None = None, *, share: Share | None = None
    ) -> list[Episode]:
        """Return a share of ``evaluation.num_goals`` goals of every task, or of one; the mode is ignored.

        The default is this rank's own share.
        """
        del mode
        owns = (share or self.own_share).owns
        num_goals, num_tasks = self.config.evaluation.num_goals, len(self.config.env.tasks)
        chosen = range(num_goals * num_tasks) if task is None else range(task, num_goals * num_tasks, num_tasks)
        # Ranks take turns within each task, because every rank has environments of every task to keep busy.
        rows = [row for row in chosen if owns(row % num_tasks * num_goals + row // num_tasks)]
        return [Episode(row, row, row, row % num_tasks, row // num_tasks) for row in rows]

    def held_out_episodes(self) -> list[Episode]:
        """Return this rank's share of the last ``warm_start.until.num_held_out`` goals of every task's demo split."""
        assert self.config.warm_start is not None
        number, num_tasks = self.config.warm_start.num_held_out, len(self.config.env.tasks)
        ends = [env.get_wrapper_attr("num_goals")["demo"] for env in self.prototypes]
        owns = self.own_share.owns
        rows = [row for row in range(number * num_tasks) if owns(row % num_tasks * number + row // num_tasks)]
        return [
            Episode(row, row, row, row % num_tasks, ends[row % num_tasks] - number + row // num_tasks) for row in rows
        ]

    def play(
        self,
        episodes: Sequence[Episode],
        split: str,
        draws: tuple[int | str, ...] | None,
        journal: Journal | None = None,
    ) -> Columns:
        """Play the episodes and record them.

        The batch for the policy has a fixed size, idle environments included, so that a row does not depend on the
        episodes beside it. Therefore episodes in the journal need no replay.

        If an episode kills or hangs its process at each attempt, its group receives another goal, drawn from a seed of
        the group and the number of quarantines.

        Args:
            episodes: Episodes to play.
            split: Split of the goals.
            draws: Parts of the seed of an episode's actions; the episode's row is appended. ``None`` acts greedily.
            journal: Journal that stores complete groups as they end and returns those of an earlier attempt.

        Returns:
            Columns of embodied rows (:mod:`embodyflow.types`), in the order of ``episodes``.

        Raises:
            EnvError: An environment raised, or repeatedly returned NaN or inf.
            InfrastructureError: Environments were restarted more than ``env.max_restarts`` times.
        """
        env, num_tasks = self.env(split), len(self.config.env.tasks)
        parts = env.halves if self.config.rollout.pipelined else [list(range(env.num_envs))]
        stage = Stage(env, split, [slot % num_tasks for slot in range(env.num_envs)], parts)
        return self._play_on(stage, self._decide_together, episodes, draws, journal)

    def _decide_together(self, situation: Situation) -> Decision:
        return self._decide(situation.observation, situation.noise, max(situation.num_envs, SMALLEST_BATCH))

    def _play_on(
        self,
        stage: Stage,
        decide: Decide,
        episodes: Sequence[Episode],
        draws: tuple[int | str, ...] | None,
        journal: Journal | None = None,
    ) -> Columns:
        """Play the episodes on a stage; see :meth:`play`."""
        storage = journal or MemoryJournal()
        return self._with_playable_goals(
            episodes, stage.split, lambda playable: self._attempt(stage, decide, playable, draws, storage)
        )

    def _with_playable_goals(
        self, episodes: Sequence[Episode], split: str, attempt: Callable[[Sequence[Episode]], Columns]
    ) -> Columns:
        """Return the rows of the first attempt in which no group is quarantined; these get other goals each time."""
        quarantines = Counter[int]()  # by group
        while True:
            try:
                return attempt([self._with_playable_goal(each, split, quarantines[each.group_id]) for each in episodes])
            except GroupQuarantinedError as error:
                quarantines[error.group_id] += 1
                _logger.warning("%s; group %d gets another goal", error, error.group_id)

    def _attempt(
        self,
        stage: Stage,
        decide: Decide,
        episodes: Sequence[Episode],
        draws: tuple[int | str, ...] | None,
        journal: Journal | MemoryJournal,
    ) -> Columns:
        """Play the episodes with the goals that they have.

        Raises:
            GroupQuarantinedError: An episode kills or hangs its process at each attempt.
        """
        stage.env.abandon()  # episodes that an interrupted node or the last attempt left open
        rows = self._blank_rows(episodes, stage.split, draws)
        if self._is_ensembled(stage.split):
            decide = self._ensembled(decide, rows, is_greedy=draws is None)
        solved = SolvedGoals(rows) if stage.split == "eval" else None
        groups = GroupJournal(rows, journal)
        slots = Slots(stage.env, episodes, stage.tasks, done=groups.restore())
        try:
            EpisodeTurns(rows, slots, groups, decide, self._action_space, solved).play(stage.parts)
        except EnvQuarantinedError as error:
            raise GroupQuarantinedError(slots.episode(error.index).group_id, str(error)) from error
        if solved is not None:
            solved.confirm(functools.partial(self._succeeds_without_action, stage.split))
        return rows.columns

    def _succeeds_without_action(self, split: str, task_id: int, goal: int) -> bool:
        """Return True if a null action succeeds in the first step of a goal."""
        env, null = self.env(split), null_action(self._action_space)
        env.reset([task_id], [goal], [{"goal": goal}])  # the first environments have one task each, in order
        chunk = np.broadcast_to(null, (1, env.chunk_size, *null.shape))
        step = env.step(numbered_actions(self._action_space, chunk), [task_id])
        return bool(step.infos["success"][0, 0])

    def _with_playable_goal(self, episode: Episode, split: str, num_quarantines: int) -> Episode:
        """Return the episode, with another goal if the previous ones were quarantined."""
        if num_quarantines == 0:
            return episode
        num_goals = self.prototypes[episode.env_task_id].get_wrapper_attr("num_goals")[split]
        rng = derive_rng(self.config.seed, "another goal", split, episode.group_id, num_quarantines)
        return replace(episode, goal=int(rng.integers(num_goals)))

    def _blank_rows(self, episodes: Sequence[Episode], split: str, draws: tuple[int | str, ...] | None) -> EpisodeRows:
        rows = EpisodeRows(self.config, episodes, self._layout(split))
        if draws is not None:
            rows.columns["seed"][:] = [derive_seed(*draws, episode.row) for episode in episodes]
            if not self._is_ensembled(split):  # which draws the noise of each step when it needs it
                rows.draw_noise(self.policy.horizon, self.config.rollout.chunk_correlation)
        rows.columns["instruction_ids"] = self._instructions[rows.columns["env_task_id"]]
        rows.columns["policy_version"][:] = self.policy_version
        return rows

    def _is_ensembled(self, split: str) -> bool:
        return split == "eval" and self.config.evaluation.temporal_ensemble_coeff is not None

    def _layout(self, split: str) -> RowLayout:
        """Return the layout of a split's rows."""
        if self._is_ensembled(split):
            return RowLayout.of_steps(self.config)
        return RowLayout.of_chunks(self.config, self.policy)

    def _ensembled(self, decide: Decide, rows: EpisodeRows, *, is_greedy: bool) -> Decide:
        """Return the policy that executes means of what ``decide`` plans in the rows' episodes."""
        seeds, ensemble = rows.columns["seed"], self._ensemble(len(rows.columns["uid"]))

        def draw_noise(row: int, t: int) -> np.ndarray:
            return self._draw_noise(derive_rng(int(seeds[row]), t), 1)[0]

        return ensembled(decide, ensemble, None if is_greedy else draw_noise)

    def _ensemble(self, num_episodes: int) -> TemporalEnsemble:
        coefficient = self.config.evaluation.temporal_ensemble_coeff
        assert coefficient is not None
        return TemporalEnsemble(coefficient, num_episodes, self.policy.horizon, self.config.policy.action_dim)

    def fault_metrics(self) -> dict[str, Metric]:
        """Return the counts of environment faults since the last call."""
        return self._supervision.metrics()

    def _decide(self, observation: Mapping[str, np.ndarray], noise: np.ndarray | None, batch_size: int) -> Decision:
        return self._decide_by(self.policy, observation, noise, batch_size)

    def _decide_by(
        self, policy: ActingPolicy, observation: Mapping[str, np.ndarray], noise: np.ndarray | None, batch_size: int
    ) -> Decision:
        """Return a policy's decision for a batch that is padded to ``batch_size`` rows."""
        num_rows = len(observation["instruction_ids"])
        batch = {name: padded(values, batch_size) for name, values in observation.items()}
        uniforms = None if noise is None else padded(noise, batch_size)
        with span("act", "policy", rows=num_rows):
            decision = policy.act(batch, uniforms, self.config.rollout.temperature)
        return Decision(decision.tokens[:num_rows], decision.log_probs[:num_rows], decision.actions[:num_rows])

    def first_observations(self) -> dict[str, dict[str, Any]]:
        """Return, by task, the SHA-256 digest of the first observation, and whether it shows stand-in assets.

        Two runs with equal digests agree on simulator, adapter, cameras and the instruction's encoding.
        """
        found = {}
        for task, env, ids in zip(self.config.env.tasks, self.prototypes, self._instructions, strict=True):
            observation, info = env.reset(seed=0, options={"goal": 0})
            entries = {name: np.asarray(value)[None] for name, value in entries_of(observation).items()}
            stand_in = bool(info.get("stand_in_assets", False))
            found[task] = {"digest": digest_of({**entries, "instruction_ids": ids[None]}), "stand_in_assets": stand_in}
        return found

    def env(self, split: str) -> VectorEnv:
        """Return the environments of a split; the first call builds them."""
        if split not in self._envs:
            rollout, num_tasks = self.config.rollout, len(self.config.env.tasks)
            tasks = [slot % num_tasks for slot in range(max(rollout.envs_per_worker, num_tasks))]
            self._envs[split] = self._build_envs(split, tasks, rollout.env_processes)
        return self._envs[split]

    def _build_envs(self, split: str, tasks: Sequence[int], num_processes: int) -> VectorEnv:
        """Build an environment for each task, given by its index."""
        env, names = self.config.env, [self.config.env.tasks[task] for task in tasks]
        return VectorEnv(
            [functools.partial(make_env, env, name, split) for name in names],
            num_workers=num_processes,
            chunk_size=self._layout(split).chunk_size,
            info_keys=("success",),
            names=names,
            supervision=self._supervision,
        )

    def demonstrate(self) -> Columns:
        """Return this rank's share of the demonstrations: successful expert episodes, or episodes of a data set.

        The set of episodes over all ranks does not depend on the number of ranks.

        Returns:
            ``state`` float32 ``[N, max_steps, S]``, ``actions`` float32 ``[N, max_steps, A]``, ``num_steps``, ``uid``,
            ``instruction_ids``; also ``image`` if the environment shows images. With a data set the observations are
            those that the policy reads, and a longer episode than ``max_steps`` makes all columns longer.

        Raises:
            ConfigError: The environment has no scripted expert, the expert fails too often, or the data set lacks
                something.
        """
        if self.config.warm_start is None:
            raise ConfigError("warm_start=null: demonstrations need a warm_start")
        num_demos, demos, source = self.config.warm_start.num_demos, [], self._demonstrator(self.config.warm_start)
        for task_id in range(len(self.config.env.tasks)):
            owned = [number for number in range(num_demos) if self.own_share.owns(task_id * num_demos + number)]
            demos += self._instructed(source, task_id, owned)
        # A rank without demonstrations records one for the names and shapes of the columns.
        examples = demos or self._instructed(source, 0, [0])
        return {name: np.stack([demo[name] for demo in examples])[: len(demos)] for name in examples[0]}

    def _demonstrator(self, config: ExpertWarmStartConfig) -> Demonstrator:
        if config.dataset is not None:
            return DatasetDemonstrator(self.config, self.prototypes)
        return ExpertDemonstrator(self.config, self._action_space)

    def _instructed(self, source: Demonstrator, task_id: int, numbers: Sequence[int]) -> list[Demonstration]:
        """Return demonstrations of a task with its instruction."""
        instruction = {"instruction_ids": self._instructions[task_id]}
        return [demo | instruction for demo in source.demonstrations(task_id, numbers)]

    def label(self, episodes: Sequence[Episode], draws: tuple[int | str, ...], iteration: int) -> Columns:
        """Play training episodes with the scripted expert beside the policy; for DAgger.

        They are played one by one in this process, whatever ``rollout.env_processes`` is, because the expert must see
        the state of the simulator.

        Args:
            episodes: Episodes to play.
            draws: Parts of the seed of an episode; the episode's row is appended.
            iteration: Index of the iteration, from 1, which decides how often the expert acts.

        Returns:
            Columns of :meth:`.EpisodeLabeller.play`, with ``instruction_ids`` and ``policy_version``.

        Raises:
            ConfigError: The expert returned no action, or an episode continues after ``env.max_steps``.
            EnvNotFiniteError: An observation or a reward is NaN or inf.
        """
        labeller = EpisodeLabeller(self.config, self.prototypes, self._act_alone, self._noise_of)
        rows = labeller.play(episodes, [derive_seed(*draws, episode.row) for episode in episodes], iteration)
        rows["instruction_ids"] = self._instructions[rows["env_task_id"]]
        rows["policy_version"] = np.full(len(episodes), self.policy_version, np.int64)
        return rows

    def _act_alone(self, entries: dict[str, np.ndarray], task: int, noise: np.ndarray) -> np.ndarray:
        """Return the chunk of actions of a single episode's decision, float32 ``[C, A]``."""
        batch = {name: values[None] for name, values in entries.items()}
        batch["instruction_ids"] = self._instructions[task : task + 1]
        planned = self._decide(batch, noise[None], SMALLEST_BATCH).actions[0]
        return recorded_actions(self._action_space, planned[: self.config.policy.chunk_size])

    def _noise_of(self, seed: int) -> np.ndarray:
        """Return the noise of an episode with a decision at every step, float32 ``[max_steps, R]``."""
        return self._draw_noise(derive_rng(seed), self.config.env.max_steps)

    def _draw_noise(self, rng: np.random.Generator, num_decisions: int) -> np.ndarray:
        """Draw the noise of decisions, float32 ``[num_decisions, R]``."""
        shape = (num_decisions, self.policy.num_draws)
        return chunk_uniforms(rng, shape, self.policy.horizon, self.config.rollout.chunk_correlation)

    def record_video(self, path: Path, num_episodes: int) -> str | None:
        """Render greedy evaluation episodes side by side as an animation, one frame for each C steps.

        The tasks take turns. The number of episodes is limited to the number of goals of the split.

        Returns:
            The reason why this machine or this environment cannot render, or ``None`` after success.
        """
        if problem := rendering_problem():
            return problem
        tasks = range(len(self.config.env.tasks))
        goals = [range(env.get_wrapper_attr("num_goals")["eval"]) for env in self.prototypes]
        turns = [(task, goal) for goal in range(max(map(len, goals))) for task in tasks if goal in goals[task]]
        filmed = turns[:num_episodes]
        clips: dict[tuple[int, int], Clip] = {}
        try:
            for task in sorted({task for task, _ in filmed}):
                with drawing_env(self.config.env, self.config.env.tasks[task], "eval") as env:
                    clips |= {turn: self._film_episode(env, *turn) for turn in filmed if turn[0] == task}
        except CannotDrawError as error:
            return str(error)
        fps = self.prototypes[0].metadata.get("render_fps", 30) / self.config.policy.chunk_size
        write_animation([clips[turn] for turn in filmed], path, fps)
        return None

    def _film_episode(self, env: gym.Env[Any, Any], task: int, goal: int) -> Clip:
        """Play a greedy episode and return its clip."""
        config = self.config.env
        observation, _ = env.reset(seed=goal, options={"goal": goal})
        frames, over, success, num_steps = [frame_of(config, env)], False, False, 0
        decide: Decide = self._decide_together
        chunk_size = self._layout("eval").chunk_size
        if self._is_ensembled("eval"):
            decide = ensembled(decide, self._ensemble(1), None)
        for t in itertools.count():
            batch = {name: np.asarray(value)[None] for name, value in entries_of(observation).items()}
            batch["instruction_ids"] = self._instructions[task : task + 1]
            planned = decide(Situation(np.array([0]), np.array([t]), batch, None, 1)).actions[0, :chunk_size]
            for action in numbered_actions(self._action_space, recorded_actions(self._action_space, planned)):
                observation, _, terminated, truncated, info = env.step(action)
                success, num_steps = success or read_success(info["success"]), num_steps + 1
                over = terminated or truncated
                if over:
                    break
            if over or num_steps % self.config.policy.chunk_size == 0:
                frames.append(frame_of(config, env))
            if over:
                break
        return Clip(frames, config.tasks[task], goal, success, num_steps)

    def close(self) -> None:
        """Close every environment."""
        for vector_env in self._envs.values():
            vector_env.close()
        for env in self.prototypes:
            env.close()
