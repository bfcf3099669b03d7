"""Low-rank adapters, by the library peft: few weights are trained, and without them the policy is what it was.

A linear layer's weight W is frozen, and the layer computes W x + (alpha / rank) B A x. A is drawn and B is zero at
first, so the policy starts as it was (LoRA, Hu et al. 2021, arXiv:2106.09685).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.fsdp import FSDPModule

from embodyflow.config.trainer import LoRAConfig
from embodyflow.errors import ConfigError
from embodyflow.policies.base import Policy
from embodyflow.seeding import derive_seed
from embodyflow.training.policy_weights import full_state, load_full

BASE, A, B = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"
"""What peft puts into the names of a layer's own and of its adapter's weights."""


class Adapters:
    """Only adapters are trained; without them the policy is what it was at the start.

    Args:
        policy: not sharded yet; gets its adapters, and its other weights are frozen.
        config: size and place of the adapters.
        seed: of the run.
        base: where the policy's own weights are, if they are those of the start of RL: a folder or a name on the hub.

    Raises:
        ConfigError: ``target_modules`` names nothing, or what cannot have an adapter.
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
        self._fresh = {name: value.detach().cpu().clone() for name, value in trained.items()}

    @property
    def policies(self) -> list[Policy]:
        """The policy."""
        return [self._policy]

    @contextmanager
    def reference(self) -> Iterator[Policy]:
        """Give the policy with its adapters off."""
        for layer in self._adapted:
            layer.enable_adapters(False)
        try:
            yield self._policy
        finally:
            for layer in self._adapted:
                layer.enable_adapters(True)

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Train what the policy has trained without adapters, which are off."""
        own = [value for name, value in self._model.named_parameters() if name.replace(BASE, ".") in self._own]
        with self.reference():
            for value in own:
                value.requires_grad_(True)
            for module in self._model.modules():
                if isinstance(module, FSDPModule):  # has the dtype of gradients looked at again
                    module.unshard()
                    module.reshard()
            try:
                yield
            finally:
                for value in own:
                    value.requires_grad_(False)

    def start(self) -> Mapping[str, Any]:
        """Return the state without adapters: it is the start of RL already, for it is frozen in RL."""
        state = self._model.state_dict()
        return {name.replace(BASE, "."): value for name, value in state.items() if name not in self._fresh}

    def full(self) -> dict[str, np.ndarray]:
        """Return the full weights with the adapters added, W + (alpha / rank) B A, on rank 0."""
        return {name: value.numpy().copy() for name, value in merged(full_state(self._model), self._scale).items()}

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take these weights as those without adapters; the adapters are those of the start."""
        own = {name.replace(BASE, "."): name for name in self._model.state_dict() if name not in self._fresh}
        state = {own[name]: torch.from_numpy(array) for name, array in weights.items()}
        load_full(self._model, state | self._fresh)

    def load_start(self, folder: str) -> None:
        """Restore the frozen weights."""
        state = {n: v for n, v in get_model_state_dict(self._model).items() if n not in self._fresh}
        load_checkpoint({"policy": {"model": state}}, checkpoint_id=folder)
        set_model_state_dict(self._model, state, options=StateDictOptions(strict=False))

    def export(self, folder: Path) -> None:
        """Write the policy with its adapters merged, and in ``adapter`` what peft loads.

        In ``base`` is what that belongs to, if it is nowhere else.
        """
        state = full_state(self._model)
        if not state:
            return
        places = {folder: merged(state, self._scale)}
        if self._base is None:
            places[folder / "base"] = {n.replace(BASE, "."): v for n, v in state.items() if n not in self._fresh}
        for place, weights in places.items():
            self._policy.export({name: value.numpy() for name, value in weights.items()}, place)
        adapter = folder / "adapter"
        self._peft.base_model_name_or_path = self._base or str(folder / "base")
        self._peft.save_pretrained(adapter)
        # peft's own names: of the model in its wrapper, without that of the adapter
        tensors = {f"base_model.model.{n.replace('.default.', '.')}": state[n].contiguous() for n in self._fresh}
        save_file(tensors, adapter / "adapter_model.safetensors", metadata={"format": "pt"})


def adapted_layers(policy: Policy, config: LoRAConfig) -> list[str]:
    """Return the full names of the layers that get an adapter: of those only that the policy trains.

    Raises:
        ConfigError: a name of ``target_modules`` is no such linear layer's, or one's whose weight has a second use.
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
            raise ConfigError("trainer.lora: no block of the policy has a linear layer that is trained")
        return chosen
    chosen = []
    for target in config.target_modules:
        found = [name for name in linear if f".{name}".endswith(f".{target}")]
        if not found:
            ends = sorted({name.rpartition(".")[2] for name in linear} - {str(number) for number in range(1000)})
            raise ConfigError(
                f"trainer.lora.target_modules={target}: no linear layer that is trained has such a name; allowed are, "
                f"for example, {', '.join(ends)}"
            )
        chosen += found
    uses: dict[int, list[str]] = {}
    for name, value in policy.model.named_parameters(remove_duplicate=False):
        uses.setdefault(id(value), []).append(name)
    for names in uses.values():
        if len(names) > 1 and (tied := {name.removesuffix(".weight") for name in names} & set(chosen)):
            raise ConfigError(f"trainer.lora.target_modules={tied.pop()}: its weight is also {names[0]}; leave it out")
    return sorted(set(chosen))


def merged(state: Mapping[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    """Return a whole state with its adapters added to the weights that they belong to, by the names without adapters.

    Args:
        state: of the model with adapters; stays as it is.
        scale: alpha / rank.
    """
    whole = {}
    for name, value in state.items():
        layer, base, kind = name.rpartition(BASE)
        if not base:
            if not name.endswith((A, B)):
                whole[name] = value
        elif kind == "weight":
            whole[f"{layer}.weight"] = torch.addmm(value, state[layer + B], state[layer + A], alpha=scale)
        else:
            whole[f"{layer}.{kind}"] = value
    return whole
