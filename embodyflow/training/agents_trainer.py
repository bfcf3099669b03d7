"""The trainer of agents with weights of their own: a policy, an optimizer and a reference for each."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor

from embodyflow.config.agents.agent import AgentJobConfig
from embodyflow.data.metrics import Metric, last, merge_metrics
from embodyflow.policies.base import Policy
from embodyflow.policies.language.agent_arrays import named_for
from embodyflow.policies.language.causal_lm.agents_causal_lm import AgentPolicies
from embodyflow.training.language_trainer import LanguageTrainer
from embodyflow.training.learner import Learner
from embodyflow.training.objectives import PolicyObjective
from embodyflow.training.parallel.mesh import Mesh
from embodyflow.training.policy_weights import AllWeights, PolicyWeights, restore_reference

_DIGEST_BITS = 52
"""Bits of a digest, which a float64 holds exactly."""


class AgentsTrainer(LanguageTrainer):
    """One rank of the trainer group of agents with ``rollout.agent.weights=own``.

    An agent's learner sees the tokens of that agent alone: its weights, norms and means over tokens are those of a
    training without the other agents. The critic, if any, is one for all of them.
    """

    config: AgentJobConfig
    policy: AgentPolicies

    def probe(self) -> dict[str, np.ndarray]:
        """Return log-probs of the probe under each agent's policy; every rank must call it."""
        arrays: dict[str, np.ndarray] = {}
        for name, member in self.policy.members.items():
            arrays |= named_for(name, self._probe_of(member.policy))
        return arrays

    def _build_policy(self) -> Policy:
        return AgentPolicies(self.config.agents, self._build_model())

    def _build_policy_weights(self) -> PolicyWeights:
        return AgentWeights(self.policy)

    @property
    def _policy_to_fit(self) -> Policy:
        return self.policy.members[self.config.agents[0]].policy

    def _policy_learners(self) -> dict[str, Learner]:
        trainer, self._objectives = self.config.trainer, dict[str, PolicyObjective]()
        learners = {}
        for name, member in self.policy.members.items():
            self._objectives[name] = PolicyObjective(member, self.config)
            learners[learner_name(name)] = self._build_learner(member.model, self._objectives[name], "train", trainer)
        return learners

    def _take_steps(
        self,
        batch: TensorDict,
        positions: np.ndarray,
        total_rows: int,
        seed: int,
        iteration: int,
        joint: Sequence[Learner],
    ) -> dict[str, Metric]:
        """Let the agents whose turn it is train, each on its own tokens; return metrics of all and of each."""
        if joint:
            raise ValueError("rollout.agent.weights=own: critic and policies take steps of their own; use train_critic")
        measured: dict[str, dict[str, Metric]] = {}
        for name in self.config.rollout.agent.agents_in_training(iteration):
            self._objectives[name].kl_coef = self.kl_coef
            measured[name] = self._learners[learner_name(name)].train(
                self.policy.members[name].own(batch),
                positions=positions,
                total_rows=total_rows,
                seed=seed,
                rate=self._rate(iteration),
            )
        digests = {
            f"policy/weights_digest/{name}": last(_digest(member.model, self._mesh))
            for name, member in self.policy.members.items()
        }
        return _of_all(list(measured.values())) | _of_each(measured) | digests

    def _add_frozen_weights(self, state: dict[str, Any]) -> None:
        for name, member in self.policy.members.items():
            state[learner_name(name)]["model"] = get_model_state_dict(member.model)


class AgentWeights(AllWeights):
    """Weights of the policies of several agents, all of which are trained; each agent has a reference."""

    _policy: AgentPolicies

    @property
    def policies(self) -> list[Policy]:
        """The policies of the agents; each is sharded by itself."""
        return [each.policy for each in self._policy.members.values()]

    @contextmanager
    def warm_starting(self) -> Iterator[None]:
        """Give all agents the weights of the first one at the end of the block, which fits that one."""
        yield
        first, *others = self._policy.members.values()
        for each in others:
            each.model.load_state_dict(first.model.state_dict())

    def set_reference(self) -> Mapping[str, Any]:
        """Copy the weights to the references; return the state of the first agent, which a critic may start from."""
        super().set_reference()
        first = next(iter(self._policy.members.values()))
        state: Mapping[str, Any] = first.model.state_dict()
        return state

    def load_reference(self, folder: str) -> None:
        """Restore the references from a checkpoint."""
        for name, member in self._policy.members.items():
            begin = f"{name}."
            own = {key.removeprefix(begin): value for key, value in self._reference.items() if key.startswith(begin)}
            restore_reference(member.model, own, folder, learner_name(name))


def learner_name(agent: str) -> str:
    """Return the name of an agent's learner, under which a checkpoint has its weights and moments."""
    return f"policy.{agent}"


def _of_all(measured: Sequence[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Return metrics over the tokens of all agents that trained; steps and passes add up, norms are a mean."""
    merged = merge_metrics(measured)
    for name in ("train/optimizer_steps", "perf/train_micro_batches"):
        if name in merged:
            merged[name] = last(sum(each[name].value for each in measured))
    if "train/grad_norm" in merged:
        merged["train/grad_norm"] = last(float(np.mean([each["train/grad_norm"].value for each in measured])))
    return merged


def _of_each(measured: Mapping[str, Mapping[str, Metric]]) -> dict[str, Metric]:
    """Return the metrics of each agent's training under its name; its passes are only in the sum."""
    each: dict[str, Metric] = {}
    for agent, metrics in measured.items():
        for name, metric in metrics.items():
            area, _, rest = name.partition("/")
            if area == "train":
                each[f"train/{rest}/{agent}"] = metric
            elif area == "policy":
                each[f"policy/{rest}/{agent}"] = metric
    return each


def _digest(model: nn.Module, mesh: Mesh) -> int:
    """Return a number that changes when a weight of a sharded model changes; a collective."""
    mixed = 0
    for place, value in enumerate(model.state_dict().values()):
        part = value.to_local() if isinstance(value, DTensor) else value
        if part.numel():
            mixed += int(torch.hash_tensor(part).item()) * (2 * place + 1)
    size = 2**_DIGEST_BITS
    return int(mesh.sum(torch.tensor(mixed % size)).item()) % size
