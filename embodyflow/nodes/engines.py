"""What a node function may ask of its rank: the types of its keyword ``worker``.

A rank of a worker group holds an *engine*: environments or prompts with a policy on the rollout group, the models in
training on the trainer group. A node function names the narrowest protocol that has the methods it calls::

    def sum_steps(batch: Batch, config: Any = None, *, worker: Reducer, call: NodeContext, **kwargs: Any) -> NodeOutput:
        total = worker.all_reduce(batch["num_steps"].sum())

An engine is a class built as ``Engine(config, rank, world_size)``, named by a kind of job
(``RunConfig.rollout_engine``, ``RunConfig.trainer_engine``). It inherits from nothing here. ``tests/unit/nodes`` checks
every engine in its tables against these protocols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

if TYPE_CHECKING:  # torch, which the flow's process does without
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import torch

    from embodyflow.config import RunConfig
    from embodyflow.config.grouped import GroupedConfig
    from embodyflow.config.robots.control import ControlConfig
    from embodyflow.config.robots.embodied import EmbodiedConfig
    from embodyflow.data.batches import Columns
    from embodyflow.data.metrics import Metric
    from embodyflow.data.parts import FullWeights
    from embodyflow.data.plans.partition import Share
    from embodyflow.data.plans.row_plan import Index
    from embodyflow.data.rows_file import Journal
    from embodyflow.data.segment import Segment
    from embodyflow.rollouts.control_rollout import Finished
    from embodyflow.rollouts.embodied.episode_rows import Episode
    from embodyflow.types import Batch

    Draws = tuple[int | str, ...]
    Weights = Mapping[str, np.ndarray]

EpisodeT = TypeVar("EpisodeT")
"""An engine's own record of an episode, or of a response, that it will play."""


class Engine(Protocol):
    """What every rank holds."""

    @property
    def config(self) -> RunConfig:
        """Configuration of the run."""

    @property
    def rank(self) -> int:
        """Index of the rank in its group."""

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""

    def close(self) -> None:
        """Release processes and process groups."""


class Reducer(Engine, Protocol):
    """An engine that can add up over the ranks of its group."""

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elementwise sum over the ranks; every rank calls it, in the same order.

        Raises:
            ConfigError: The ranks of this group cannot take sums, and there are several.
        """


class RolloutEngine(Engine, Protocol):
    """An engine of the rollout group: it acts with published weights."""

    def update_weights(self, weights: Weights, version: int) -> None:
        """Act with these weights from now on; rows carry ``version`` as their ``policy_version``."""

    def fault_metrics(self) -> dict[str, Metric]:
        """Return counts of the faults that were recovered from since the last call."""


class EpisodeEngine(RolloutEngine, Reducer, Protocol[EpisodeT]):
    """A rollout engine that plays whole groups: robot episodes, or responses to prompts."""

    @property
    def config(self) -> GroupedConfig:
        """Configuration of the run."""

    def resize(self, world_size: int) -> None:
        """Share the episodes of the next iterations with so many ranks in all."""

    def training_episodes(self, seed: int, iteration: int, reroll: int = 0) -> Sequence[EpisodeT]:
        """Return this rank's episodes of an iteration, in whole groups.

        Args:
            seed: Seed of the run.
            iteration: Index of the iteration, from 1.
            reroll: 0 for the iteration's own episodes; from 1 for further rounds of as many.
        """

    def first_of_groups(self, batch: Batch) -> Sequence[EpisodeT]:
        """Return an episode for the first row of each group: one with the same prompt or initial state."""

    def is_divisible(self) -> bool:
        """Return True if a row does not depend on the rows beside it, so that they can be played part by part."""

    def evaluation_episodes(self, mode: str = "greedy", *, share: Share | None = None) -> Sequence[EpisodeT]:
        """Return a share of the evaluation, by default this rank's own; ``mode`` is ``"greedy"`` or ``"sampled"``."""

    def held_out_episodes(self) -> Sequence[EpisodeT]:
        """Return this rank's share of the episodes that measure a warm start, of the split ``demo``."""

    def play(
        self, episodes: Sequence[EpisodeT], /, split: str, draws: Draws | None, journal: Journal | None = None
    ) -> Columns:
        """Play episodes and return their rows (:mod:`embodyflow.types`), in the same order.

        Args:
            episodes: Episodes to play.
            split: Split of the goals or prompts: ``"train"``, ``"eval"`` or ``"demo"``.
            draws: Name of the random draws, to which each episode's row is appended; ``None`` acts greedily.
            journal: File that keeps rows as they are made, and may have those of an earlier attempt.
        """

    def demonstrate(self) -> Columns:
        """Return this rank's share of the demonstrations for the warm start."""


@runtime_checkable
class InterruptibleEngine(Protocol):
    """An engine whose rows go on with newer weights, segment by segment."""

    def play_segment(
        self,
        episodes: Sequence[Any],
        /,
        draws: Draws,
        segment: Segment,
        journals: tuple[Journal | None, Journal],
    ) -> tuple[Columns, int]:
        """Sample a segment of training rows; return the rows so far and the number of tokens that it sampled.

        Args:
            episodes: Rows to sample.
            draws: Name of the random draws, to which each row is appended.
            segment: Segment to sample with the present weights.
            journals: Files of the rows as the segment before left them (``None`` for the first segment), and of the
                rows that this segment leaves, some of which an earlier attempt may have written.

        Raises:
            InfrastructureError: The rows of the segment before are gone.
        """


class EmbodiedEngine(EpisodeEngine["Episode"], Protocol):
    """An episode engine with environments, which can be observed and filmed."""

    @property
    def config(self) -> EmbodiedConfig:
        """Configuration of the run."""

    def evaluation_episodes(
        self, mode: str = "greedy", task: int | None = None, *, share: Share | None = None
    ) -> Sequence[Episode]:
        """Return a share of the evaluation, of all tasks or of the one with index ``task``."""

    def first_observations(self) -> dict[str, dict[str, Any]]:
        """Return a digest of each task's first observation; runs with equal digests observe alike."""

    def record_video(self, path: Path, num_episodes: int) -> str | None:
        """Film evaluation episodes into an animated picture; return the reason if that is impossible."""


@runtime_checkable
class ResponseJudge(Protocol):
    """An engine with a reward function: its rows have no ``success`` until it judges them."""

    def judge(self, batch: Batch, split: str) -> tuple[Batch, dict[str, Metric], list[dict[str, Any]]]:
        """Return the rows with ``success`` and ``scores``, metrics, and a few examples as text.

        Raises:
            RewardError: The reward function failed; the message names the row's uid.
        """


class LabellingEngine(EpisodeEngine["Episode"], Protocol):
    """An episode engine whose environments have an expert, which labels the states that the policy visits."""

    def label(self, episodes: Sequence[Episode], /, draws: Draws, iteration: int) -> Columns:
        """Play training episodes; return them with the expert's actions (:mod:`embodyflow.types`).

        Args:
            episodes: Episodes to play.
            draws: Name of the random draws, to which each episode's row is appended.
            iteration: Index of the iteration, from 1, which decides how often the expert acts.
        """


class GroupEngine(RolloutEngine, Protocol):
    """An engine that plays single groups side by side, with one version of the policy at a time."""

    def for_another_version(self) -> Self:
        """Return an engine that plays groups of another version beside this one; what it can, it shares with it."""

    def begin(self) -> None:
        """Begin to play groups with the weights that were loaded last."""

    def end(self) -> None:
        """Cancel the groups that are still played, so that other weights can be loaded."""

    def play_group(
        self, seed: int, node_id: str, index: int, attempt: int, journal: Journal, timeout: float
    ) -> Columns:
        """Play a group; may be called from several threads.

        Args:
            seed: Seed of the run.
            node_id: Name of the node, part of the seed of a row.
            index: Index of the group in the run, from 0.
            attempt: Number of times that the group was drawn before.
            journal: Journal of the group, beside which the engine may keep what a repeated call needs.
            timeout: Time limit in seconds.

        Raises:
            TimeoutError: The group took longer.
        """


class InterruptibleGroupEngine(GroupEngine, Protocol):
    """A group engine whose rows go on with newer weights as soon as it is offered any.

    It is given no weights by ``update_weights``. The versions of a group's rows are in the journal's file ``swaps``
    (:mod:`embodyflow.rollouts.streaming.swap_journal`), which exists before the group is played.
    """

    def offer(self, versions: Mapping[int, Callable[[], Mapping[str, np.ndarray]]]) -> None:
        """Let all groups go on with the newest of these versions; may be called from any thread.

        Args:
            versions: Functions that return the weights of each version that is kept.
        """


class ControlEngine(RolloutEngine, Protocol):
    """A rollout engine that steps its environments a fixed number of times; episodes span iterations."""

    @property
    def config(self) -> ControlConfig:
        """Configuration of the run."""

    def collect(self, iteration: int, draws: Draws, folder: Path | None = None) -> tuple[Columns, Finished]:
        """Step every environment ``rollout.num_steps`` times; return the rows and the episodes that ended.

        Args:
            iteration: Index of the iteration, from 1.
            draws: Name of the random draws, to which each environment's number is appended.
            folder: Folder that keeps the open episodes between iterations; ``None`` keeps them in memory.
        """

    def evaluate(self, episodes: Sequence[int], journal: Journal | None = None) -> Finished:
        """Play evaluation episodes with the policy's mean actions.

        Args:
            episodes: Numbers of the episodes, from 0.
            journal: File that keeps episodes as they end, and may have those of an earlier attempt.
        """


class TrainerEngine(Reducer, Protocol):
    """An engine of the trainer group: policy, reference and, if the advantage needs one, critic.

    All methods are collectives, called on every rank.
    """

    def kl_coef_in(self, iteration: int) -> float:
        """Return the coefficient of the KL term in the present iteration, which the adaptive controller may change."""

    def log_probs(self, batch: Batch, *, reference: bool) -> torch.Tensor:
        """Return the log-probs of the batch's tokens under the policy or its reference, float32 [N, T, L]."""

    def log_probs_and_entropy(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the policy's log-probs of the batch's tokens and its entropies in nats, float32 [N, T, L]."""

    def values(self, batch: Batch) -> torch.Tensor:
        """Return the critic's value before each decision, float32 [N, T]."""

    def scaled_rewards(self, batch: Batch) -> torch.Tensor:
        """Return rewards divided by the running deviation of returns, float32 [N, T, L].

        Only policies that scale rewards have rows with ``running_returns``, which this method reads.
        """

    def agent_baselines(self, batch: Batch, *, positions: Index, total_rows: int) -> torch.Tensor:
        """Return the running baseline of each token's agent before the row's episode, float32 [N, R, 1].

        The baselines stay as they are until the policy trains on the rows. Only ``algorithm.advantage=rae`` has some.

        Args:
            batch: Rows of this rank, with ``rewards`` and ``token_agent``.
            positions: Positions of these rows in the whole batch, int64 [N].
            total_rows: Number of rows in the whole batch.
        """

    def step(
        self, batch: Batch, *, positions: Index, total_rows: int, seed: int, iteration: int = 1
    ) -> dict[str, Metric]:
        """Take the policy's optimizer steps of an iteration.

        Args:
            batch: Rows of this rank, with ``old_log_probs`` and ``advantages``.
            positions: Positions of these rows in the whole batch, int64 [N].
            total_rows: Number of rows in the whole batch.
            seed: Seed of the mini-batches.
            iteration: Index of the iteration, from 1; the learning rate may depend on it.
        """

    def step_critic(
        self, batch: Batch, *, positions: Index, total_rows: int, seed: int, iteration: int = 1
    ) -> dict[str, Metric]:
        """Take the critic's optimizer steps of an iteration, on rows with ``values`` and ``returns``."""

    def step_both(
        self, batch: Batch, *, positions: Index, total_rows: int, seed: int, iteration: int = 1
    ) -> dict[str, Metric]:
        """Train policy and critic in the same optimizer steps."""

    def fit(self, demos: Batch, seed: int) -> dict[str, Metric]:
        """Fine-tune the policy on demonstrations, then make the result the start of RL."""

    def fit_further(self, num_steps: int) -> dict[str, Metric]:
        """Take further steps of the last :meth:`fit`, then make the result the start of RL."""

    # What the worker and the session ask for; node functions leave it alone.

    def connect(self, address: str) -> None:
        """Join the process group that rank 0 leads at ``address``; the models are those of the start."""

    def weights(self) -> dict[str, np.ndarray]:
        """Return the policy's full weights by name, on rank 0."""

    def weights_in_parts(self, *, frozen_only: bool = False) -> FullWeights:
        """Return the same in parts, for publication; the collective ends when all ranks have exhausted the parts.

        Args:
            frozen_only: Leave out the weights that training changes. Asked for only if there are others.
        """

    def probe(self) -> dict[str, np.ndarray]:
        """Return arrays by which rollout engines check new weights before they use them; may be empty."""

    def fingerprint(self) -> tuple[int, ...]:
        """Return hashes of this rank's part of all models; they change when a weight does."""

    def save(self, folder: str, whole: bool = True) -> None:
        """Write models and optimizers to an empty folder; ``whole`` includes weights that are never trained."""

    def load(self, folder: str) -> None:
        """Restore a state that :meth:`save` wrote."""

    def load_reference(self, folder: str) -> None:
        """Restore the reference policy from the checkpoint of iteration 0."""

    def begin_with_models(self) -> None:
        """Make the models of another run, which :meth:`load` restored, the start of RL; optimizers stay as they are."""

    def load_weights_file(self, path: str) -> None:
        """Make the full weights in a file the start of RL."""

    def save_weights_file(self, path: str) -> None:
        """Write the policy's full weights to a file; rank 0 writes."""

    def save_pretrained(self, folder: str) -> None:
        """Export the policy as a folder that its class can load; rank 0 writes."""


class OffPolicyEngine(TrainerEngine, Protocol):
    """A trainer engine with a replay buffer."""

    def store(self, batch: Batch, iteration: int) -> dict[str, Metric]:
        """Append an iteration's transitions to the replay buffer."""

    def train(self, draws: Draws, iteration: int) -> dict[str, Metric]:
        """Take the updates that are due after an iteration's transitions.

        Args:
            draws: Name of the random draws, to which the index of the update in the run is appended.
            iteration: Index of the iteration, from 1; the learning rates may depend on it.
        """

    def train_offline(self, draws: Draws, iteration: int) -> dict[str, Metric]:
        """Take the updates of an iteration without new transitions, from demonstrations alone; see :meth:`train`."""


class LabelTrainerEngine(TrainerEngine, Protocol):
    """A trainer engine with the labelled steps of all iterations."""

    def store(self, batch: Batch, iteration: int) -> dict[str, Metric]:
        """Add an iteration's labelled steps to those of the iterations before."""

    def imitate(self, seed: int, iteration: int) -> dict[str, Metric]:
        """Fit the policy to all labelled steps.

        Args:
            seed: Seed for drawing the batches.
            iteration: Index of the iteration, from 1; the learning rate may depend on it.
        """
