"""The trainer engine of off-policy training: one rank with the models and the replay buffer."""

import json
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.config.robots.control import ControlConfig
from embodyflow.config.robots.off_policy import ImplicitQConfig
from embodyflow.data.metrics import Metric, last
from embodyflow.errors import DamageError
from embodyflow.policies.base import ActionCritics
from embodyflow.policies.policy_registry import build_critic
from embodyflow.references import resolve
from embodyflow.seeding import derive_rng
from embodyflow.simulation.goal_rewards import GoalRewards
from embodyflow.simulation.make_env import goal_rewards
from embodyflow.training.checkpoint_reading import load_checkpoint
from embodyflow.training.fsdp_trainer import FSDPTrainer
from embodyflow.training.off_policy.learner import ERRORS, OffPolicyLearner, OffPolicyRun
from embodyflow.training.off_policy.replay.hindsight import HindsightReplay
from embodyflow.training.off_policy.replay.image_replay import buffer_of
from embodyflow.training.off_policy.replay.priorities import PRIORITIES_FILE, Priorities
from embodyflow.training.off_policy.replay.replay_buffer import ReplayBuffer, Shape, Transitions, draw
from embodyflow.training.off_policy.replay.segments import STATE_FILE
from embodyflow.training.off_policy.shaping import Shaping

COLUMNS = {
    **{"state": "state", "action": "action_tokens", "reward": "rewards", "next_state": "final_state"},
    **{"terminated": "terminated", "truncated": "truncated"},
}
"""Column of a rollout's rows for each column of the replay buffer."""


class OffPolicyTrainer(FSDPTrainer):
    """The only rank of the trainer group of off-policy training.

    The replay buffer lies in the run's folder, beside the checkpoints; a checkpoint refers to its files. It is opened
    when it is first used, so an evaluation that loads a checkpoint leaves the buffer of the run alone.

    Args:
        config: Run configuration.
        rank: 0.
        world_size: 1.
    """

    config: OffPolicyRun

    def _build_models(self) -> None:
        super()._build_models()
        settings = self.config.off_policy
        assert settings is not None
        self._settings = settings
        critics = cast(ActionCritics, build_critic(self.config.policy, self.config.cluster.device))
        self._shaping = None if settings.potential is None else Shaping(settings.potential)
        self._learner: OffPolicyLearner = resolve(settings.learner)(self.policy, critics, self.config)
        self._stored_before = 0  # transitions before those of the last :meth:`store`
        self._folder: Path | None = None
        self._commit: dict[str, Any] | None = None  # of the buffer to open
        self._opened: ReplayBuffer | None = None
        self._demonstrations: ReplayBuffer | None = None
        self._priorities = self._new_priorities()
        self._drawn = np.zeros(0, np.int64)  # transitions of the last batch that was drawn by priorities
        self._goals: GoalRewards | None = None
        self._hindsight: HindsightReplay | None = None  # of the opened buffer
        # Oldest transition that each of the last commits needs, as far as the run may return to them.
        self._needed: deque[int] = deque(maxlen=self.config.kept_checkpoints + 1)

    def _build_learners(self) -> None:
        """Do nothing: the models that learn are built with the others."""

    def _restart_from_policy(self) -> None:
        super()._restart_from_policy()
        self._learner.restart()
        self._begin_buffer()

    def begin_with_models(self) -> None:
        """Make the models that :meth:`load` restored the start of RL, with an empty replay buffer."""
        self.policy_weights.set_reference()
        self._begin_buffer()

    def _begin_buffer(self) -> None:
        self._commit, self._opened, self._demonstrations, self._stored_before = None, None, None, 0
        self._priorities = self._new_priorities()

    def _new_priorities(self) -> Priorities | None:
        settings = self._settings.prioritized
        return None if settings is None else Priorities(settings, self._settings.replay_capacity)

    @property
    def replay(self) -> ReplayBuffer:
        """The replay buffer, as it was at the commit that was loaded.

        Raises:
            DamageError: A file of the buffer is missing or damaged, or the demonstrations changed since the commit.
        """
        if self._opened is None:
            self._opened = self._open()
            self._hindsight = self._relabelling(self._opened)
        return self._opened

    def store(self, batch: TensorDict, iteration: int) -> dict[str, Metric]:
        """Append an iteration's transitions to the replay buffer.

        Args:
            batch: All rows of the iteration.
            iteration: Index of the iteration, from 1.

        Raises:
            RuntimeError: The buffer does not hold exactly the transitions of the iterations before.
        """
        expected = (iteration - 1) * self.config.rows_per_iteration
        if len(self.replay) != expected:
            raise RuntimeError(f"iteration {iteration}: the replay buffer has {len(self.replay)} rows, not {expected}")
        ordered = batch[batch["uid"].argsort()]
        return self._append({name: ordered[column].numpy() for name, column in COLUMNS.items()})

    def _append(self, columns: Mapping[str, np.ndarray]) -> dict[str, Metric]:
        self._stored_before = len(self.replay)
        self.replay.append(columns)
        if self._priorities is not None:
            self._priorities.extend(len(self.replay))
        return {"replay/num_transitions": last(len(self.replay) - self.replay.oldest)}

    def train(self, draws: tuple[int | str, ...], iteration: int) -> dict[str, Metric]:
        """Take the updates that are due after an iteration's transitions.

        Args:
            draws: Name of the random draws, to which the index of the update in the run is appended.
            iteration: Index of the iteration, from 1; the learning rates may depend on it.
        """
        settings, stored = self._settings, len(self.replay)
        due = range(settings.num_updates(self._stored_before), settings.num_updates(stored))
        return self._take(due, draws, iteration, self._draw)

    def _draw(self, rng: np.random.Generator, size: int, num_steps: int, gamma: float) -> Transitions:
        """Draw a batch; see :meth:`ReplayBuffer.sample`."""
        if self._hindsight is not None:
            return self._hindsight.sample(rng, size, gamma)  # of single steps, which the configuration requires
        if self._priorities is not None:
            self._drawn, weights = self._priorities.sample(rng, size)
            batch = self.replay.transitions(self._drawn, num_steps, gamma)
            return replace(batch, weights=torch.from_numpy(weights.astype(np.float32)))
        return draw(self.replay, self._demonstrations, rng, size, num_steps, gamma)

    def train_offline(self, draws: tuple[int | str, ...], iteration: int) -> dict[str, Metric]:
        """Take the updates of an iteration without new transitions, from demonstrations alone; see :meth:`train`."""
        settings = cast(ImplicitQConfig, self._settings)
        if self._opened is None:
            self._opened = self._open()  # the demonstrations too
        assert self._demonstrations is not None  # the configuration was refused without any
        due = range((iteration - 1) * settings.updates_per_iteration, iteration * settings.updates_per_iteration)
        return self._take(due, draws, iteration, self._demonstrations.sample)

    def _take(
        self,
        due: range,
        draws: tuple[int | str, ...],
        iteration: int,
        sample: Callable[[np.random.Generator, int, int, float], Transitions],
    ) -> dict[str, Metric]:
        """Take the updates with these indices on batches that ``sample`` draws."""
        size, steps, gamma = self._settings.batch_size, self._settings.num_return_steps, self._discount
        rate = self._rate(iteration)
        self._learner.set_rate(rate)
        totals: dict[str, list[torch.Tensor]] = defaultdict(list)
        compiling = self._learner.compile_seconds
        for update in due:
            rng = derive_rng(*draws, update)
            batch = sample(rng, size, steps, gamma)
            if self._shaping is not None:
                batch = self._shaping.shaped(batch)
            updated = self._learner.update(batch, rng, update)
            if self._priorities is not None:
                self._priorities.update(self._drawn, updated.pop(ERRORS).cpu().numpy())
            for name, value in updated.items():
                totals[name].append(value)
        metrics = {name: last(float(torch.stack(values).double().mean())) for name, values in totals.items()}
        if self.config.trainer.compile:
            metrics["perf/train_compile_seconds"] = last(self._learner.compile_seconds - compiling)
        return metrics | {
            "train/optimizer_steps": last(len(due)),
            "train/learning_rate": last(rate * self.config.trainer.learning_rate),
        }

    def fingerprint(self) -> tuple[int, ...]:
        """Return hashes of policy, reference, critics, target critics and temperature."""
        own = [value for model in self._learner.models for value in model.state_dict().values()]
        return super().fingerprint() + tuple(int(torch.hash_tensor(value).item()) for value in own)

    def save(self, folder: str, whole: bool = True) -> None:
        """Write models, optimizers and the reference to the replay buffer, whose new transitions are flushed to disk.

        Raises:
            RuntimeError: Transitions were stored before the first checkpoint, and so outside of the run's folder.
        """
        if self._folder is None and self._opened is not None:
            raise RuntimeError("the first checkpoint comes before the first transitions")
        self._folder = _replay_beside(folder)
        super().save(folder, whole)
        state = {"buffer": self.replay.commit(), "demonstrations": self._demonstrated()}
        Path(folder, STATE_FILE).write_text(json.dumps(state, indent=1) + "\n")
        if self._priorities is not None:
            self._priorities.save(Path(folder))
        self._needed.append(self.replay.oldest)
        if len(self._needed) == self._needed.maxlen:
            self.replay.drop_before(self._needed[0])

    def load(self, folder: str) -> None:
        """Restore models and optimizers; the replay buffer is opened at this commit when it is first used."""
        state = self._learner.state_dict()
        load_checkpoint(state, folder)
        self._learner.load_state_dict(state)
        self._folder, self._opened = _replay_beside(folder), None
        self._commit = json.loads(Path(folder, STATE_FILE).read_text())
        self._needed.clear()
        self._priorities = self._new_priorities()
        if self._priorities is None:
            return
        if Path(folder, PRIORITIES_FILE).exists():
            self._priorities.load(Path(folder))
        else:  # of another run, which drew uniformly
            self._priorities.extend(self._commit["buffer"]["length"])

    def _state_dict(self) -> dict[str, Any]:
        return self._learner.state_dict()

    @property
    def _discount(self) -> float:
        """Discount of one transition."""
        return self.config.algorithm.gamma

    @property
    def _shape(self) -> Shape:
        """Sizes of a transition, and the number of transitions from one to that of the next decision."""
        config = cast(ControlConfig, self.config)
        num_envs = config.rollout.num_workers * config.rollout.envs_per_worker
        return Shape(num_envs, config.policy.state_dim, config.policy.decision_dim)

    def _open(self) -> ReplayBuffer:
        shape, capacity = self._shape, self._settings.replay_capacity
        kind = buffer_of(shape)
        self._demonstrations = self._open_demonstrations()
        if self._folder is None:  # a run without checkpoints
            self._temporary = TemporaryDirectory(prefix="embodyflow-replay-")
            return kind.create(Path(self._temporary.name), shape, capacity)
        if self._commit is None:
            return kind.create(self._folder, shape, capacity)
        if self._commit["demonstrations"] != self._demonstrated():
            raise DamageError(f"{self._demonstrations_folder}: is not what it was when the run began")
        return kind.open(self._folder, shape, capacity, self._commit["buffer"])

    def _relabelling(self, buffer: ReplayBuffer) -> HindsightReplay | None:
        """Return a source of relabelled transitions of a buffer; ``None`` for a run without hindsight.

        The first call builds an environment, whose ``compute_reward`` gives their rewards.
        """
        settings = self._settings.hindsight
        if settings is None:
            return None
        if self._goals is None:
            self._goals = goal_rewards(self.config.env)
        return HindsightReplay(buffer, self._goals, settings)

    def close(self) -> None:
        """Close the environment that gives rewards, and leave the process group."""
        if self._goals is not None:
            self._goals.close()
            self._goals = None
        super().close()

    @property
    def _demonstrations_folder(self) -> Path | None:
        """Folder of the demonstrations; ``None`` for a run without any."""
        folder = self._settings.demonstrations
        return None if folder is None else Path(folder)

    def _open_demonstrations(self) -> ReplayBuffer | None:
        folder = self._demonstrations_folder
        return None if folder is None else buffer_of(self._shape).demonstrations(folder, self._shape)

    def _demonstrated(self) -> list[str]:
        """Return the digests of the demonstrations' files."""
        return [] if self._demonstrations is None else self._demonstrations.digests()


def _replay_beside(checkpoint: str) -> Path:
    """Return the folder of the replay buffer in the run that has the checkpoint."""
    return Path(checkpoint).parents[1] / "replay"
