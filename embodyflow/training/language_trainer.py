"""The trainer of language models: tensor parallelism, deferred loading and a probe for rollout workers."""

import numpy as np

from embodyflow.data.batches import to_batch
from embodyflow.data.padding import pad_lists
from embodyflow.generation.probe import PREFIX, probe_sequences
from embodyflow.policies.base import Critic, Policy
from embodyflow.policies.language.causal_lm.configuration_causal_lm import CausalLMConfig
from embodyflow.policies.language.causal_lm.modeling_causal_lm import split_plan_of
from embodyflow.policies.language.causal_lm.policy_causal_lm import CausalLMPolicy
from embodyflow.policies.policy_registry import find_policy
from embodyflow.references import resolve
from embodyflow.training.fsdp_trainer import FSDPTrainer
from embodyflow.training.parallel.tensor_parallel import split


class LanguageTrainer(FSDPTrainer):
    """One rank of the trainer group of a language job; see :class:`~embodyflow.training.fsdp_trainer.FSDPTrainer`."""

    def _build_policy(self) -> Policy:
        return self._build_model()

    def _build_model(self) -> CausalLMPolicy:
        """Return a policy with one model; with adapters it has its weights, otherwise it may get them later."""
        config = self.config
        policy_class: type[CausalLMPolicy] = resolve(find_policy(config.policy.name).policy)
        assert isinstance(config.policy, CausalLMConfig)
        # Adapters need the weights now: peft takes places and dtypes from them.
        return policy_class(config.policy, config.cluster.device, reads_later=config.trainer.lora is None)

    def _shard(self, each: Policy | Critic) -> None:
        if (size := self.config.trainer.tensor_parallel_size) > 1:
            plan = split_plan_of(each.model, size)
            split(each.model, plan, self._mesh.tensor)
        super()._shard(each)

    def _load_deferred_weights(self) -> None:
        for policy in self.policy_weights.policies:
            assert isinstance(policy, CausalLMPolicy)
            policy.read()

    def probe(self) -> dict[str, np.ndarray]:
        """Return log-probs of the probe's responses at temperature 1, float32 ``[tokens]``; every rank must call it."""
        assert isinstance(self.policy, CausalLMPolicy)
        return self._probe_of(self.policy)

    def _probe_of(self, policy: CausalLMPolicy) -> dict[str, np.ndarray]:
        prompts, responses = zip(*probe_sequences(self.config.seed, len(policy.tokenizer)), strict=True)
        (in_prompt, prompt_tokens), (mask, tokens) = pad_lists(prompts, np.int64), pad_lists(responses, np.int64)
        rows = to_batch(
            {
                "prompt_tokens": prompt_tokens,
                "prompt_length": in_prompt.sum(1),
                "action_tokens": tokens[..., None],
                "response_length": mask.sum(1),
                "loss_mask": mask[..., None],
            }
        )
        return {f"{PREFIX}log_probs": self._log_probs(policy, rows, temperature=1.0)[..., 0].numpy()[mask]}
