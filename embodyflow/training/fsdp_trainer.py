"""The trainer engine: policy, reference and critic, sharded with FSDP2 over the ranks of a torch.distributed group."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.numpy import load_file, save_file
from tensordict import TensorDict
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint

from embodyflow.config import RunConfig
from embodyflow.config.trainer import OptimizerConfig
from embodyflow.data.metrics import Metric, last
from embodyflow.data.parts import FullWeights
from embodyflow.policies.base import Critic, Policy
from embodyflow.policies.policy_registry import build_policy
from embodyflow.policies.running_statistics.return_scale import return_scale_of
from embodyflow.process.determinism import use_deterministic_kernels
from embodyflow.process.files.file_modes import follow_umask
from embodyflow.process.heap import keep_freed_memory
from embodyflow.process.rendezvous import join_group
from embodyflow.references import resolve
from embodyflow.seeding import derive_seed
from embodyflow.training.agent_baselines import AgentBaselines
from embodyflow.training.checkpoint_reading import load_checkpoint
from embodyflow.training.imitation.imitation import Imitation, Samples
from embodyflow.training.learner import Learner
from embodyflow.training.objectives import Objective, PolicyObjective, ValueObjective
from embodyflow.training.parallel.mesh import Mesh
from embodyflow.training.parallel.sharding import reshard, shard
from embodyflow.training.policy_weights import AllWeights, PolicyWeights, local
from embodyflow.training.steps.micro_batches import micro_batches
from embodyflow.training.value_head import SharedCritic, SharedObjective, build_critic_for


class FSDPTrainer:
    """One rank of the trainer group. It has a critic if ``algorithm.advantage`` needs values.

    Args:
        config: Run configuration.
        rank: Rank of this process.
        world_size: Number of ranks in the group.
    """

    def __init__(self, config: RunConfig, rank: int, world_size: int) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        use_deterministic_kernels(config.cluster.device)
        self.config, self.rank, self.world_size = config, rank, world_size
        self._build_models()

    def _build_models(self) -> None:
        config = self.config
        torch.manual_seed(derive_seed(config.seed, "initial weights"))
        self.policy = self._build_policy()
        self.policy_weights = self._build_policy_weights()
        self.critic: Critic | None = None
        if config.algorithm.needs_critic:
            self.critic = build_critic_for(config, self.policy, config.cluster.device)
        self._learners: dict[str, Learner] = {}
        self._joint_objective: Objective | None = None
        self._baselines = AgentBaselines(config) if config.algorithm.keeps_baselines else None
        self._imitation: Imitation | None = None

    def connect(self, address: str) -> None:
        """Join the process group of rank 0 at ``address`` and shard the models over it.

        A rank that outlived a sibling first leaves its old group and rebuilds its models with their initial weights.
        """
        cluster, config = self.config.cluster, self.config
        if dist.is_initialized():
            dist.destroy_process_group()
            self._build_models()
        backend = "cpu:gloo" if cluster.device == "cpu" else f"cpu:gloo,cuda:{cluster.backend}"
        join_group(backend, address, self.rank, self.world_size)
        self._mesh = Mesh(cluster.device, self.world_size, config.trainer.tensor_parallel_size)
        for each in self._models():
            self._shard(each)
        self._load_deferred_weights()
        self._build_learners()
        self._restart_from_policy()

    def _build_learners(self) -> None:
        config = self.config
        self._objective = PolicyObjective(self.policy, config)
        self._learners |= self._policy_learners()
        if self.critic is not None:
            value_objective = ValueObjective(self.critic, config)
            self._learners["critic"] = self._build_learner(self.critic.model, value_objective, "critic", config.critic)
            if isinstance(self.critic, SharedCritic):
                temperature = config.rollout.temperature
                self._joint_objective = SharedObjective(self._objective, value_objective, self.critic, temperature)

    def _policy_learners(self) -> dict[str, Learner]:
        """Return the learners of the policy by name."""
        return {"policy": self._build_learner(self.policy.model, self._objective, "train", self.config.trainer)}

    def _build_learner(self, model: nn.Module, objective: Objective, area: str, optimizer: OptimizerConfig) -> Learner:
        """Return the learner of a model; see :class:`~embodyflow.training.learner.Learner`."""
        config = self.config
        return Learner(model, objective, area, optimizer, config.trainer, self._mesh, traces_steps=config.traces_steps)

    def log_probs(self, batch: TensorDict, *, reference: bool) -> torch.Tensor:
        """Return the log-probs of the batch's tokens, float32 ``[N, T, L]``, under the policy or its reference."""
        temperature = self.config.rollout.temperature
        if not reference:
            return self._log_probs(self.policy, batch, temperature)
        with self.policy_weights.reference() as policy:
            return self._log_probs(policy, batch, temperature)

    def log_probs_and_entropy(self, batch: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the policy's log-probs of the batch's tokens and its entropies in nats, float32 ``[N, T, L]``."""
        temperature = self.config.rollout.temperature
        both = self._in_parts(lambda rows: torch.stack(self.policy.evaluate(rows, temperature), -1), batch)
        return both[..., 0].contiguous(), both[..., 1].contiguous()

    def values(self, batch: TensorDict) -> torch.Tensor:
        """Return the critic's value before each decision, float32 ``[N, T]``; 0 where there is no decision.

        With ``critic.level=action`` each action of the chunk has a value, ``[N, T, C]``.
        """
        assert self.critic is not None, "algorithm.advantage has no critic"
        return self._in_parts(self.critic.evaluate, batch)

    def scaled_rewards(self, batch: TensorDict) -> torch.Tensor:
        """Return the batch's rewards divided by the running deviation of returns, float32 ``[N, T, L]``; a collective.

        The statistics stay as they are until the policy trains on the rows;
        see :class:`~embodyflow.policies.running_statistics.return_scale.ReturnScale`.
        """
        scale = return_scale_of(self.policy.model)
        assert scale is not None, "the policy does not scale rewards"
        decided = batch["loss_mask"].any(-1)
        return scale.scaled(batch["rewards"], batch["running_returns"], decided, self.all_reduce)

    def agent_baselines(self, batch: TensorDict, *, positions: np.ndarray, total_rows: int) -> torch.Tensor:
        """Return the running baseline of each token's agent before the row's episode, float32 ``[N, R, 1]``.

        It is a collective. The baselines stay as they are until the policy trains on the rows; see
        :class:`~embodyflow.training.agent_baselines.AgentBaselines`.
        """
        assert self._baselines is not None, "algorithm.advantage keeps no baselines"
        return self._baselines.of_tokens(batch, positions, total_rows, self.all_reduce)

    def step(
        self, batch: TensorDict, *, positions: np.ndarray, total_rows: int, seed: int, iteration: int = 1
    ) -> dict[str, Metric]:
        """Train the policy on the rows; see :meth:`~embodyflow.training.learner.Learner.train`.

        Args:
            batch: This rank's rows, with ``old_log_probs`` and ``advantages`` (and ``ref_log_probs``).
            positions: Positions of these rows in the whole batch, int64 ``[N]``.
            total_rows: Number of rows in the whole batch.
            seed: Seed for drawing the mini-batches.
            iteration: Index of the iteration, from 1; the learning rate schedule may depend on it.
        """
        return self._train_policy(batch, positions, total_rows, seed, iteration)

    def step_both(
        self, batch: TensorDict, *, positions: np.ndarray, total_rows: int, seed: int, iteration: int = 1
    ) -> dict[str, Metric]:
        """Train policy and critic in the same optimizer steps.

        The rows need the columns of both :meth:`step` and :meth:`step_critic`. Gradients are clipped by one norm over
        both models, and the number of epochs is the policy's. A critic with the policy's features takes part in its
        forward pass.
        """
        joint = [self._learners["critic"]]
        return self._train_policy(batch, positions, total_rows, seed, iteration, joint)

    def step_critic(
        self, batch: TensorDict, *, positions: np.ndarray, total_rows: int, seed: int, iteration: int = 1
    ) -> dict[str, Metric]:
        """Train the critic on rows with ``values`` and ``returns``; arguments are those of :meth:`step`."""
        rate = self._rate(iteration)
        return self._learners["critic"].train(batch, positions=positions, total_rows=total_rows, seed=seed, rate=rate)

    @property
    def kl_coef(self) -> float:
        """The current KL coefficient; the adaptive controller updates it after each training of the policy."""
        return self._objective.kl_coef

    def kl_coef_in(self, iteration: int) -> float:
        """Return the KL coefficient of the present iteration.

        Args:
            iteration: Its index, from 1, which alone decides an annealed coefficient.
        """
        kl = self.config.algorithm.kl
        return self.kl_coef if kl.final_coef is None else kl.annealed_coef(iteration, self._schedule_iterations)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elementwise sum over all parts of a batch; a collective, so every rank must call it."""
        return self._mesh.sum(tensor)

    def fit(self, demos: TensorDict, seed: int) -> dict[str, Metric]:
        """Fine-tune on demonstrations (behaviour cloning), then start RL from the result with a fresh optimizer.

        Every rank holds all demonstrations and trains on its part of each batch.

        Args:
            demos: Demonstrations from the rollout engine's ``demonstrate``.
            seed: Seed for drawing the batches.
        """
        config = self.config.warm_start
        assert config is not None
        policy = self._policy_to_fit
        samples: Samples = resolve(config.samples)(policy, demos, self.config)
        with self.policy_weights.warm_starting():
            part, num_parts = self._mesh.part, self._mesh.num_parts
            self._imitation = Imitation(policy.model, samples, config, seed=seed, part=part, num_parts=num_parts)
        metrics = self.fit_further(config.steps)
        if config.until is None:
            self._imitation = None
        return metrics

    def fit_further(self, num_steps: int) -> dict[str, Metric]:
        """Take further steps of the last :meth:`fit`, which needs ``warm_start.until``; then start RL from the result.

        The weights are those of a single fit with as many steps.

        Raises:
            RuntimeError: There is no fit to continue.
        """
        if self._imitation is None:
            raise RuntimeError("there is no fit to continue; fit must be called first, with warm_start.until")
        with self.policy_weights.warm_starting():
            metrics = self._imitation.advance(num_steps)
        self._restart_from_policy()
        return metrics

    def weights(self) -> dict[str, np.ndarray]:
        """Return the policy's full weights by name on rank 0; a collective, so every rank must call it."""
        return self.policy_weights.full()

    def weights_in_parts(self, *, frozen_only: bool = False) -> FullWeights:
        """Return the same in parts, without a copy of the whole; a collective that ends with the last part.

        Args:
            frozen_only: Leave out the weights that training changes.
        """
        return self.policy_weights.in_parts(frozen_only=frozen_only)

    def probe(self) -> dict[str, np.ndarray]:
        """Return arrays by name against which rollout workers check new weights; this trainer has none."""
        return {}

    def fingerprint(self) -> tuple[int, ...]:
        """Return hashes of this rank's shards of policy, reference and critic, which change when a weight changes."""
        of_models = [value for each in self._models() for value in each.model.state_dict().values()]
        parts = [local(value) for value in (*of_models, *self.policy_weights.reference_values())]
        # If a tensor has fewer rows than there are ranks, some shards are empty.
        return tuple(int(torch.hash_tensor(part).item()) for part in parts if part.numel())

    def save_weights_file(self, path: str) -> None:
        """Write the policy's full weights to a safetensors file; a collective in which rank 0 writes."""
        weights = self.weights()
        if self.rank == 0:
            save_file(weights, path)
            follow_umask(Path(path))

    def load_weights_file(self, path: str) -> None:
        """Start RL from the policy weights in a file, with a fresh optimizer, as :meth:`fit` does."""
        self._imitation = None  # the file holds its result
        self.policy_weights.load(load_file(path))
        self._restart_from_policy()

    def begin_with_models(self) -> None:
        """Make the policy that :meth:`load` restored the reference; critics and optimizers stay as they are.

        The KL coefficient starts at its first value, since the KL to the new reference is 0.
        """
        self.policy_weights.set_reference()
        self._objective.kl_coef = self.config.algorithm.kl.coef

    def save_pretrained(self, folder: str) -> None:
        """Export the policy to a folder that its class can load; rank 0 writes files whose modes follow the umask."""
        self.policy_weights.export(Path(folder))
        if self.rank == 0:
            follow_umask(Path(folder))

    def save(self, folder: str, whole: bool = True) -> None:
        """Write models and optimizers to a folder as a torch.distributed.checkpoint, loadable on any number of ranks.

        Args:
            folder: An empty folder.
            whole: Include the policy's frozen weights, which :meth:`load_reference` needs.
        """
        state = self._state_dict()
        if whole:
            self._add_frozen_weights(state)
        save_checkpoint(state, checkpoint_id=folder)

    def load(self, folder: str) -> None:
        """Restore models and optimizers from a folder that :meth:`save` wrote."""
        state = self._state_dict()
        load_checkpoint(state, folder)
        for name, learner in self._learners.items():
            learner.load_state_dict(state[name])
        if "kl_coef" in state:
            self._objective.kl_coef = state["kl_coef"].item()
        if self._baselines is not None:
            self._baselines.values = state["agent_baselines"]
        if "reference" in state:
            self.policy_weights.load_reference_state(state["reference"])

    def load_reference(self, folder: str) -> None:
        """Restore the reference policy, which RL started from, from the checkpoint of iteration 0."""
        self.policy_weights.load_reference(folder)

    def close(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _train_policy(
        self,
        batch: TensorDict,
        positions: np.ndarray,
        total_rows: int,
        seed: int,
        iteration: int,
        joint: Sequence[Learner] = (),
    ) -> dict[str, Metric]:
        """Take the policy's optimizer steps of an iteration, then update KL coefficient, reference and baselines."""
        kl = self.config.algorithm.kl
        rate, kl_coef = self._rate(iteration), self.kl_coef_in(iteration)
        self._objective.kl_coef = kl_coef  # that of a checkpoint may be of a shorter or another run
        metrics = self._take_steps(batch, positions, total_rows, seed, iteration, joint)
        self._objective.adapt_kl_coef(batch, total_rows, self.all_reduce)
        self._objective.kl_coef = self.kl_coef_in(iteration + 1)
        if kl.changes_coef:
            metrics["policy/kl_coef"] = last(kl_coef)
        if kl.refreshes(iteration):
            self.policy_weights.set_reference()
        if self._baselines is not None:
            self._baselines.advance(batch, positions, total_rows, self.all_reduce)
            metrics |= {f"advantage/baseline_{name}": last(b) for name, b in self._baselines.by_name().items()}
        return metrics | {"train/learning_rate": last(rate * self.config.trainer.learning_rate)}

    def _take_steps(
        self,
        batch: TensorDict,
        positions: np.ndarray,
        total_rows: int,
        seed: int,
        iteration: int,
        joint: Sequence[Learner],
    ) -> dict[str, Metric]:
        """Take the optimizer steps of an iteration with the policy's learners."""
        return self._learners["policy"].train(
            batch,
            positions=positions,
            total_rows=total_rows,
            seed=seed,
            rate=self._rate(iteration),
            joint=joint,
            objective=self._joint_objective if joint else None,
        )

    def _log_probs(self, policy: Policy, batch: TensorDict, temperature: float) -> torch.Tensor:
        return self._in_parts(lambda rows: policy.evaluate(rows, temperature)[0], batch)

    def _in_parts(self, evaluate: Callable[[TensorDict], torch.Tensor], batch: TensorDict) -> torch.Tensor:
        """Return ``evaluate(batch)`` on the CPU, computed one micro-batch at a time without gradients."""
        cuts = micro_batches(batch, self.config.trainer, self._mesh)
        with torch.no_grad():
            parts = [evaluate(batch[cut] if len(cuts) > 1 else batch).cpu() for cut in cuts or [slice(0, 0)]]
        for each in self._models():
            reshard(each.model)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _build_policy(self) -> Policy:
        return build_policy(self.config.policy, self.config.cluster.device)

    def _build_policy_weights(self) -> PolicyWeights:
        return build_policy_weights(self.policy, self.config)

    @property
    def _policy_to_fit(self) -> Policy:
        """The policy that a warm start fits to demonstrations."""
        return self.policy

    def _shard(self, each: Policy | Critic) -> None:
        """Shard a model over the ranks."""
        shard(each.model, each.blocks, self._mesh, self.config.trainer)

    def _load_deferred_weights(self) -> None:
        """Load the weights of models that were built without them; here every model has its weights."""

    def _models(self) -> list[Policy | Critic]:
        return [*self.policy_weights.policies, *([] if self.critic is None else [self.critic])]

    def _rate(self, iteration: int) -> float:
        return self.config.trainer.rate_fraction(iteration, self.config.iterations)

    @property
    def _schedule_iterations(self) -> int:
        return self.config.trainer.schedule_iterations or self.config.iterations

    def _state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {name: learner.state_dict() for name, learner in self._learners.items()}
        if self.config.algorithm.kl.changes_coef:  # a fixed coefficient is in the configuration
            state["kl_coef"] = torch.tensor(self.kl_coef, dtype=torch.float64)
        if self._baselines is not None:
            state["agent_baselines"] = self._baselines.values.clone()
        if self.config.algorithm.kl.refresh_every is not None:  # otherwise it is in the checkpoint of iteration 0
            state["reference"] = self.policy_weights.reference_state()
        return state

    def _add_frozen_weights(self, state: dict[str, Any]) -> None:
        """Add the policy's frozen weights to a checkpoint that has the trained ones."""
        state["policy"]["model"] = get_model_state_dict(self.policy.model)

    def _restart_from_policy(self) -> None:
        """Make the current policy the reference and the critic's initial weights, and reset the optimizers."""
        state = self.policy_weights.set_reference()
        if self.critic is not None:
            self.critic.start_from(state)
        for learner in self._learners.values():
            learner.restart()


def build_policy_weights(policy: Policy, config: RunConfig) -> PolicyWeights:
    """Return the handle on the policy's trained weights: all of them, or adapters if ``trainer.lora`` is set."""
    if config.trainer.lora is None:
        return AllWeights(policy)
    from embodyflow.training.lora import Adapters  # takes seconds to import

    base = getattr(config.policy, "path", None) if config.warm_start is None else None
    return Adapters(policy, config.trainer.lora, config.seed, base)
