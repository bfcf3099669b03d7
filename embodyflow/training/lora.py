"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685), built with peft.

A linear layer's weight W is frozen, and the layer computes W x + (alpha / rank) B A x. A starts random and B starts at
zero, so the adapted policy starts equal to the base policy.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import FSDPModule

from embodyflow.config.trainer import LoRAConfig
from embodyflow.data.parts import FullWeights, Part
from embodyflow.errors import ConfigError
from embodyflow.policies.base import Policy
from embodyflow.seeding import derive_seed
from embodyflow.training.checkpoint_reading import load_checkpoint
from embodyflow.training.parallel.weight_buckets import ShardedWeights
from embodyflow.training.policy_weights import frozen_names, full_state, load_full

BASE, A, B = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"
"""Parts of parameter names that peft adds for a layer's own weights and for its adapter's two matrices."""


class Adapters:
    """Weights of a policy that trains only adapters. With the adapters off, the policy is its own reference.

    Args:
        policy: Policy before sharding. It gets adapters, and its other weights are frozen.
        config: Rank, scale and layers of the adapters.
        seed: Seed of the run.
        base: Folder or hub name with the base weights, or ``None`` if a warm start changes them before RL.

    Raises:
        ConfigError: ``target_modules`` names no layer, or a layer that cannot have an adapter.
    """

    def __init__(self, policy: Policy, config: LoRAConfig, seed: int, base: str | None) -> None:
        self._policy, self._model, self._base = policy, policy.model, base
        alpha = 2.0 * config.rank if config.alpha is None else config.alpha
        self._scale = alpha / config.rank
        self._peft = LoraConfig(
            r=config.rank,
            lora_alpha=alpha,
            lora_dropout=0.0,
            bias="none",
            target_modules=adapted_layers(policy, config),
        )
        self._own = {name for name, value in self._model.named_parameters() if value.requires_grad}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "adapters"))
            inject_adapter_in_model(self._peft, self._model)
        self._adapted = [module for module in self._model.modules() if isinstance(module, LoraLayer)]
        trained = {name: value for name, value in self._model.named_parameters() if value.requires_grad}
        self._initial = {name: value.detach().cpu().clone() for name, value in trained.items()}

    @property
    def policies(self) -> list[Policy]:
        """The policy."""
        return [self._policy]

    @contextmanager
    def reference(self) -> Iterator[Policy]:
        """Yield the policy with its adapters off."""
        for layer in self._adapted:
            layer.enable_adapters(False)
        try:
            yield self._policy
        finally:
            for layer in self._adapted:
                layer.enable_adapters(True)

    @contextmanager
    def warm_starting(self) -> Iterator[None]:
        """Make the base weights trainable and turn the adapters off within the block."""
        own = [value for name, value in self._model.named_parameters() if name.replace(BASE, ".") in self._own]
        with self.reference():
            for value in own:
                value.requires_grad_(True)
            for module in self._model.modules():
                if isinstance(module, FSDPModule):  # FSDP updates the gradients' dtype when it unshards
                    module.unshard()
                    module.reshard()
            try:
                yield
            finally:
                for value in own:
                    value.requires_grad_(False)

    def set_reference(self) -> Mapping[str, Any]:
        """Return the state without adapters; RL freezes it, so it already is the reference."""
        state = self._model.state_dict()
        return {name.replace(BASE, "."): value for name, value in state.items() if name not in self._initial}

    def reference_values(self) -> list[torch.Tensor]:
        """Return nothing: the policy without adapters is the reference."""
        return []

    def reference_state(self) -> dict[str, Any]:
        """Raise an error: the policy without adapters is the reference, which cannot move."""
        raise RuntimeError("trainer.lora: the reference is the policy without adapters, which does not move")

    def load_reference_state(self, state: dict[str, Any]) -> None:
        """Raise the error of :meth:`reference_state`."""
        self.reference_state()

    def full(self) -> dict[str, np.ndarray]:
        """Return the full weights with merged adapters, W + (alpha / rank) B A, on rank 0."""
        merged = merge_adapters(full_state(self._model), self._scale)
        return {name: value.numpy().copy() for name, value in merged.items()}

    def in_parts(self, *, frozen_only: bool = False) -> FullWeights:
        """Return the full weights with merged adapters in parts; a weight with an adapter is one part."""
        state: dict[str, Any] = get_model_state_dict(self._model)
        weights = ShardedWeights(state)
        own = {name.replace(BASE, "."): name for name in weights.outlines if not name.endswith((A, B))}
        kept = frozen_names(self._model)
        frozen = frozenset(name for name, stored in own.items() if stored in kept and not _is_adapted(stored))
        if frozen_only:
            own = {name: stored for name, stored in own.items() if name in frozen}
        outlines = {name: weights.outlines[stored] for name, stored in own.items()}
        return FullWeights(outlines, self._merged_parts(weights, own), frozen)

    def _merged_parts(self, weights: ShardedWeights, own: Mapping[str, str]) -> Iterator[Part]:
        """Yield merged weights in order of their names; ``own`` has the name of each in the model with adapters."""
        for name, stored in sorted(own.items()):
            if not _is_adapted(stored):
                for part in weights.parts([stored]):
                    yield replace(part, name=name)
                continue
            layer = stored.removesuffix(f"{BASE}weight")
            state = {each: weights.whole(each) for each in (stored, layer + A, layer + B)}
            found = {each: value for each, value in state.items() if value is not None}
            for array in merge_adapters(found, self._scale).values():  # none on other ranks
                yield Part(name, 0, array.numpy().reshape(-1))

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Load these weights as the base weights, and reset the adapters to their initial values."""
        own = {name.replace(BASE, "."): name for name in self._model.state_dict() if name not in self._initial}
        state = {own[name]: torch.from_numpy(array) for name, array in weights.items()}
        load_full(self._model, state | self._initial)

    def load_reference(self, folder: str) -> None:
        """Restore the frozen weights."""
        state = {n: v for n, v in get_model_state_dict(self._model).items() if n not in self._initial}
        load_checkpoint({"policy": {"model": state}}, folder)
        set_model_state_dict(self._model, state, options=StateDictOptions(strict=False))

    def export(self, folder: Path) -> None:
        """Write the policy with merged adapters, and the adapters alone in ``adapter`` for peft.

        The folder ``base`` gets the base weights if they are not stored elsewhere.
        """
        state = full_state(self._model)
        if not state:
            return
        places = {folder: merge_adapters(state, self._scale)}
        if self._base is None:
            places[folder / "base"] = {n.replace(BASE, "."): v for n, v in state.items() if n not in self._initial}
        for place, weights in places.items():
            self._policy.export({name: value.numpy() for name, value in weights.items()}, place)
        adapter = folder / "adapter"
        self._peft.base_model_name_or_path = self._base or str(folder / "base")
        self._peft.save_pretrained(adapter)
        # peft stores the names of its wrapped model, without the adapter's name.
        tensors = {f"base_model.model.{n.replace('.default.', '.')}": state[n].contiguous() for n in self._initial}
        save_file(tensors, adapter / "adapter_model.safetensors", metadata={"format": "pt"})


def _is_adapted(name: str) -> bool:
    """Return True if a parameter is the weight of a layer with an adapter."""
    return name.endswith(f"{BASE}weight")


def adapted_layers(policy: Policy, config: LoRAConfig) -> list[str]:
    """Return the full names of the layers that get an adapter; only layers that the policy trains can have one.

    Raises:
        ConfigError: A name in ``target_modules`` matches no trained linear layer, or a layer with a tied weight.
    """
    linear = {
        name
        for name, module in policy.model.named_modules()
        if isinstance(module, nn.Linear) and module.weight.requires_grad
    }
    if config.target_modules is None:
        inside = {id(module) for block in policy.blocks for module in block.modules()}
        chosen = [name for name, module in policy.model.named_modules() if name in linear and id(module) in inside]
        if not chosen:
            raise ConfigError("trainer.lora: the policy has no trained linear layer in its blocks")
        return chosen
    chosen = []
    for target in config.target_modules:
        found = [name for name in linear if f".{name}".endswith(f".{target}")]
        if not found:
            ends = sorted({name.rpartition(".")[2] for name in linear} - {str(number) for number in range(1000)})
            raise ConfigError(
                f"trainer.lora.target_modules={target}: matches no trained linear layer; allowed are, for example, "
                f"{', '.join(ends)}"
            )
        chosen += found
    uses: dict[int, list[str]] = {}
    for name, value in policy.model.named_parameters(remove_duplicate=False):
        uses.setdefault(id(value), []).append(name)
    for names in uses.values():
        if len(names) > 1 and (tied := {name.removesuffix(".weight") for name in names} & set(chosen)):
            raise ConfigError(f"trainer.lora.target_modules={tied.pop()}: its weight is tied to {names[0]}; remove it")
    return sorted(set(chosen))


def merge_adapters(state: Mapping[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    """Return a full state with its adapters merged, under the names that the model has without adapters.

    Args:
        state: Full state of the model with adapters; it is not changed.
        scale: Factor of the adapters' product, alpha / rank.
    """
    merged = {}
    for name, value in state.items():
        layer, base, kind = name.rpartition(BASE)
        if not base:
            if not name.endswith((A, B)):
                merged[name] = value
        elif kind == "weight":
            merged[f"{layer}.weight"] = torch.addmm(value, state[layer + B], state[layer + A], alpha=scale)
        else:
            merged[f"{layer}.{kind}"] = value
    return merged
