"""The trainer engine: a policy sharded by FSDP2 over the ranks of a torch.distributed group.

Every mean is over the *global* mini-batch: losses are weighted by counts over all ranks and micro-batches, so the
gradient does not depend on how the rows are cut.
"""

import copy
import math
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.numpy import load_file, save_file
from tensordict import TensorDict
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from embodyflow.algorithms.aggregation import count_tokens, token_weights
from embodyflow.algorithms.covariance import select_tokens
from embodyflow.algorithms.losses import LossInputs
from embodyflow.algorithms.masked import Metrics
from embodyflow.algorithms.objective import policy_objective
from embodyflow.config import RunConfig
from embodyflow.data.metrics import Metric, last, mean
from embodyflow.engines.environments import make_env
from embodyflow.policies.registry import build_policy
from embodyflow.policies.tiny_vla.modeling_tiny_vla import TinyVLA
from embodyflow.seeding import derive_seed

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class FSDPTrainer:
    """One rank of the trainer group.

    Args:
        config: of the run.
        rank: of this process.
        world_size: ranks of the group.
    """

    def __init__(self, config: RunConfig, rank: int, world_size: int) -> None:
        torch.set_num_threads(1)
        self.config, self.rank, self.world_size = config, rank, world_size
        torch.manual_seed(derive_seed(config.seed, "initial weights"))
        env = make_env(config.env, config.env.tasks[0], "train")
        self.policy = build_policy(config.policy, env, config.cluster.device)
        env.close()
        self.reference = copy.deepcopy(self.policy)

    def connect(self, address: str) -> None:
        """Join the process group that rank 0 leads at ``address`` and shard the policy over it."""
        cluster = self.config.cluster
        backend = "cpu:gloo" if cluster.device == "cpu" else f"cpu:gloo,cuda:{cluster.backend}"
        dist.init_process_group(backend, init_method=f"tcp://{address}", rank=self.rank, world_size=self.world_size)
        mesh = init_device_mesh(cluster.device, (self.world_size,))
        for policy in (self.policy, self.reference):
            blocks: Any = policy.model.blocks
            for block in blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(policy.model, mesh=mesh)
        self.reference.model.requires_grad_(False)
        self._new_optimizer()

    def log_probs(self, batch: TensorDict, *, reference: bool) -> torch.Tensor:
        """Return the log-probs of the batch's tokens, float32 ``[N, T, L]``, under the policy or its reference."""
        policy = self.reference if reference else self.policy
        with torch.no_grad():
            log_probs, _ = policy.evaluate(batch, self.config.rollout.temperature)
        return log_probs.cpu()

    def step(self, batch: TensorDict, *, offset: int, total_rows: int, seed: int) -> dict[str, Metric]:
        """Train on the rows: ``epochs`` passes of ``num_minibatches`` optimizer steps.

        Which mini-batch a row belongs to is drawn from its position in the whole batch, so it does not depend on the
        number of ranks.

        Args:
            batch: this rank's rows, with ``old_log_probs`` and ``advantages`` (and ``ref_log_probs``).
            offset: position of its first row in the whole batch.
            total_rows: rows of the whole batch; without any, nothing is trained.
            seed: of the draw.

        Raises:
            FloatingPointError: loss or gradient is not finite; the weights are those before the step.
        """
        if total_rows == 0:
            return {"train/optimizer_steps": last(0)}
        trainer = self.config.trainer
        num_minibatches = min(trainer.num_minibatches, total_rows)
        order = np.random.default_rng(seed).permutation(total_rows)
        minibatch_of = np.empty(total_rows, np.int64)
        minibatch_of[order] = np.arange(total_rows) * num_minibatches // total_rows
        mine = torch.from_numpy(minibatch_of[offset : offset + len(batch)])
        totals: dict[str, torch.Tensor] = {}
        norms = []
        for _ in range(trainer.epochs):
            for index in range(num_minibatches):
                norm = self._minibatch_step(batch[mine == index], totals)
                norms.append(norm)
        metrics = {name: _mean_of(pair) for name, pair in totals.items()}
        metrics["train/grad_norm"] = last(float(np.mean(norms)))
        metrics["train/optimizer_steps"] = last(len(norms))
        return metrics

    def fit(self, demos: TensorDict, seed: int) -> dict[str, Metric]:
        """Fine-tune on demonstrations (behaviour cloning), then start RL from the result with a fresh optimizer.

        Every rank holds all demonstrations and takes its part of each batch.

        Args:
            demos: see :meth:`~embodyflow.engines.embodied_rollout.EmbodiedRollout.demonstrate`.
            seed: of the batches.
        """
        assert self.config.warm_start is not None
        sft = self.config.warm_start
        samples = _Samples(demos, self.config.policy.chunk_size)
        self.policy.set_normalization(samples.observation["state"])
        optimizer = torch.optim.AdamW(self.policy.model.parameters(), lr=sft.learning_rate, weight_decay=0.0)
        rng = np.random.default_rng(seed)
        losses = []
        for _ in range(sft.steps):
            chosen = rng.integers(len(samples), size=sft.batch_size)
            observation, actions, mask = samples.take(chosen[self.rank :: self.world_size])
            num_tokens = samples.mask[chosen].sum() * self.config.policy.action_dim
            loss = self.policy.imitation_loss(observation, actions, mask, sft.smoothing_bins) / num_tokens
            (loss * self.world_size).backward()
            torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        self._restart_from_policy()
        return {"sft/loss": mean(float(np.mean(losses[-50:]))), "sft/num_samples": last(len(samples))}

    def weights(self) -> dict[str, np.ndarray]:
        """Return the full weights by name; a collective: every rank calls it and rank 0 gets them."""
        state: dict[str, Any] = get_model_state_dict(self.policy.model, options=FULL)
        # On one rank the state is the parameters themselves, which the next step changes: hence the copy.
        return {name: value.numpy().copy() for name, value in state.items()}

    def save_weights_file(self, path: str) -> None:
        """Write the full weights to a safetensors file; a collective, rank 0 writes."""
        weights = self.weights()
        if self.rank == 0:
            save_file(weights, path)

    def load_weights_file(self, path: str) -> None:
        """Start RL from the weights in a file: they become policy and reference, with a fresh optimizer."""
        state: dict[str, Any] = {name: torch.from_numpy(array) for name, array in load_file(path).items()}
        set_model_state_dict(self.policy.model, state, options=StateDictOptions(full_state_dict=True))
        self._restart_from_policy()

    def save_pretrained(self, folder: str) -> None:
        """Export the policy as a Hugging Face folder that its ``from_pretrained`` loads; rank 0 writes."""
        weights = self.weights()
        if self.rank == 0:
            model = TinyVLA(self.config.policy)
            model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
            model.save_pretrained(folder)

    def save(self, folder: str) -> None:
        """Write policy and optimizer to a folder (torch.distributed.checkpoint; loads on any number of ranks)."""
        model, optimizer = get_state_dict(self.policy.model, self._optimizer)
        save_checkpoint({"model": model, "optimizer": optimizer}, checkpoint_id=folder)

    def load(self, folder: str) -> None:
        """Restore what :meth:`save` wrote."""
        model, optimizer = get_state_dict(self.policy.model, self._optimizer)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        load_checkpoint(state, checkpoint_id=folder)
        set_state_dict(
            self.policy.model,
            self._optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )

    def load_reference(self, folder: str) -> None:
        """Restore the reference policy from the checkpoint of iteration 0."""
        model: dict[str, Any] = {"model": get_model_state_dict(self.reference.model)}
        load_checkpoint(model, checkpoint_id=folder)
        set_model_state_dict(self.reference.model, model["model"])

    def close(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _new_optimizer(self) -> None:
        trainer = self.config.trainer
        self._optimizer = torch.optim.AdamW(
            self.policy.model.parameters(), lr=trainer.learning_rate, weight_decay=trainer.weight_decay
        )

    def _restart_from_policy(self) -> None:
        self.reference.model.load_state_dict(self.policy.model.state_dict())
        self._new_optimizer()

    def _minibatch_step(self, rows: TensorDict, totals: dict[str, torch.Tensor]) -> float:
        """Take one optimizer step over this rank's rows of a mini-batch; return the gradient's norm."""
        mask = rows["loss_mask"].flatten(1)
        algorithm = self.config.algorithm
        weights = token_weights(mask, algorithm.aggregation, count_tokens(mask, self._all_reduce))
        selected = select_tokens(
            rows["old_log_probs"].flatten(1),
            rows["advantages"].flatten(1),
            mask,
            rows["seed"],
            algorithm,
            self._all_reduce,
        )
        size = self.config.trainer.micro_batch_rows or max(len(rows), 1)
        # Forward and backward are collectives, so all ranks take as many as the one with the most.
        num_micro = int(self._all_reduce_max(math.ceil(len(rows) / size)))
        self._optimizer.zero_grad()
        for index in range(max(num_micro, 1)):
            cut = slice(index * size, (index + 1) * size)
            loss, metrics = self._loss(rows[cut], weights[cut], None if selected is None else selected[cut])
            (loss * self.world_size).backward()  # FSDP averages gradients over ranks, we want their sum
            for name, (value, count) in metrics.items():
                pair = torch.stack([value.double(), count.double()])
                totals[name] = totals[name] + pair if name in totals else pair
        clipped: Any = torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self.config.trainer.max_grad_norm)
        norm = float(clipped.full_tensor())
        if not math.isfinite(norm):
            raise FloatingPointError(f"the gradient's norm is {norm}: the step was not taken")
        self._optimizer.step()
        return norm

    def _loss(
        self, rows: TensorDict, weights: torch.Tensor, selected: torch.Tensor | None
    ) -> tuple[torch.Tensor, Metrics]:
        log_probs, entropy = self.policy.evaluate(rows, self.config.rollout.temperature)
        inputs = LossInputs(
            log_probs=log_probs.flatten(1),
            old_log_probs=rows["old_log_probs"].flatten(1),
            advantages=rows["advantages"].flatten(1),
            mask=rows["loss_mask"].flatten(1),
            entropy=entropy.flatten(1),
            ref_log_probs=rows["ref_log_probs"].flatten(1),
            selected=selected,
        )
        return policy_objective(inputs, weights, self.config.algorithm)

    def _all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        summed = tensor.clone()
        dist.all_reduce(summed)
        return summed

    def _all_reduce_max(self, value: float) -> float:
        tensor = torch.tensor(float(value))
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.item()


def _mean_of(sum_and_count: torch.Tensor) -> Metric:
    value, count = sum_and_count.tolist()
    return mean(value / max(count, 1.0), count)


class _Samples:
    """Every step of every demonstration, with the chunk of expert actions that follows."""

    def __init__(self, demos: TensorDict, chunk_size: int) -> None:
        lengths = demos["num_steps"].tolist()
        rows = [(row, step) for row, length in enumerate(lengths) for step in range(length)]
        row = torch.tensor([r for r, _ in rows])
        step = torch.tensor([s for _, s in rows])
        ahead = step[:, None] + torch.arange(chunk_size)
        self.mask = ahead < demos["num_steps"][row][:, None]
        self.actions = demos["actions"][row[:, None], ahead.clamp(max=demos["actions"].shape[1] - 1)]
        self.observation = {key: demos[key][row, step] for key in ("state", "image") if key in set(demos.keys())}
        self.observation["instruction_ids"] = demos["instruction_ids"][row]

    def __len__(self) -> int:
        return len(self.actions)

    def take(self, chosen: np.ndarray) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        """Return observation, actions and mask of the chosen samples."""
        index = torch.from_numpy(chosen)
        observation = {key: values[index] for key, values in self.observation.items()}
        return observation, self.actions[index], self.mask[index]
