"""Causal language models as a :class:`~embodyflow.policies.base.Policy`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.language.causal_lm import checkpoint_causal_lm as checkpoint
from embodyflow.policies.language.causal_lm.chosen_causal_lm import choose
from embodyflow.policies.language.causal_lm.configuration_causal_lm import CausalLMConfig
from embodyflow.policies.language.causal_lm.head_causal_lm import choose_in_pieces, is_for_pieces
from embodyflow.policies.language.causal_lm.modeling_causal_lm import (
    blocks_of,
    build_empty_model,
    build_model,
    folder_of,
    save_folder,
)
from embodyflow.policies.language.causal_lm.packing_causal_lm import Packed, pack_rows
from embodyflow.policies.language.causal_lm.shared_prompts_causal_lm import is_used_in, pack_shared
from embodyflow.policies.language.causal_lm.tokenizer_causal_lm import build_tokenizer


class CausalLMPolicy:
    """Computes the log-probs of responses, packed without padding; generation engines do the sampling.

    Each token is a decision: for a response of R tokens, T = R and L = 1.

    Args:
        config: Configuration of the model.
        device: Device of the model.
        reads_later: Whether :meth:`read` loads a pretrained model's weights, where its checkpoint allows it.
    """

    def __init__(self, config: CausalLMConfig, device: str, *, reads_later: bool = False) -> None:
        self.config = config
        self.tokenizer = build_tokenizer(config)
        empty = build_empty_model(config, self.tokenizer) if reads_later else None
        self._is_empty = empty is not None
        self.model: torch.nn.Module = build_model(config, self.tokenizer).to(device) if empty is None else empty
        self._device = device

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """Layers of the decoder."""
        return blocks_of(self.model)

    def read(self) -> None:
        """Load the weights that the model was built without, if any; of a sharded model each rank loads its part."""
        if self._is_empty:
            assert self.config.path is not None
            checkpoint.read(self.model, folder_of(self.config.path), self._device)
            self._is_empty = False

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropy of a batch's responses, float32 ``[N, R, 1]``; zero outside its mask."""
        packed = pack(batch, self.model, self._device)
        log_probs, entropy = chosen(self.model, packed, temperature)
        shape = batch["loss_mask"].shape
        if not len(packed.targets):
            nothing = log_probs.sum() * 0.0 + log_probs.new_zeros(shape)
            return nothing, nothing
        keep = batch["loss_mask"].to(self._device)
        where, blank = (packed.rows, packed.steps), log_probs.new_zeros(shape[:2])
        placed = [blank.index_put(where, each).unsqueeze(-1) * keep for each in (log_probs, entropy)]
        return placed[0], placed[1]

    def export(self, weights: Mapping[str, np.ndarray], folder: Path) -> None:
        """Write a Hugging Face folder that ``AutoModelForCausalLM.from_pretrained`` and vLLM can load."""
        model: Any = build_model(self.config, self.tokenizer)
        model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
        save_folder(model, self.tokenizer, folder)


def pack(batch: TensorDict, model: Any, device: str) -> Packed:
    """Pack language rows in the way of the model's attention: by :func:`pack_shared` or :func:`pack_rows`."""
    if is_used_in(model):
        return pack_shared(batch, device)
    return pack_rows(batch, device, model.config._attn_implementation, model.config.model_type)


def chosen(model: Any, packed: Packed, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probs and entropies of the response tokens, float32 ``[K]`` each; of a blank one if K = 0."""
    if len(packed.targets) and is_for_pieces(model, packed.input_ids.numel()):
        places = packed.lines, packed.positions
        return choose_in_pieces(model, _inputs(packed), places, packed.targets, temperature)
    logits = before_responses(model, packed)
    targets = packed.targets if len(packed.targets) else packed.targets.new_zeros(1)
    return choose(logits, targets, temperature)


def before_responses(model: Any, packed: Packed) -> torch.Tensor:
    """Return a model's outputs, float32 ``[K, V]``, at the token before each response token."""
    # The head skips positions at which no line has a response, such as those that all rows' prompts occupy.
    kept, index = packed.positions.unique(return_inverse=True)
    if not len(kept):
        kept = packed.positions.new_zeros(1)
    arguments: dict[str, Any] = {"logits_to_keep": kept} if hasattr(model, "lm_head") else {}
    logits: torch.Tensor = model(**_inputs(packed), **arguments).logits
    if not len(packed.positions):
        return logits[:1, 0].float()
    return logits[packed.lines, index if hasattr(model, "lm_head") else packed.positions].float()


def _inputs(packed: Packed) -> dict[str, Any]:
    inputs = {"input_ids": packed.input_ids, "position_ids": packed.position_ids, "use_cache": False}
    return inputs if packed.attention_lines is None else inputs | {"attention_lines": packed.attention_lines}
