"""Model of OpenVLA: a vision backbone, a projector and a Llama, whose last 256 words mean actions.

OpenVLA (Kim et al., 2024, arXiv:2406.09246) decodes one word after the other. OpenVLA-OFT (Kim et al., 2025,
arXiv:2502.19645) decodes a chunk of actions in one forward pass: blanks stand for the words to come, a stop word
follows them, and every position attends to every other, as in its fork of transformers. Parameters have the names of
the published checkpoints.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.openvla.checkpoint_openvla import Description
from embodyflow.policies.embodied.openvla.vision_openvla import PUBLISHED, TowerSizes, VisionBackbone
from embodyflow.policies.pretrained.checkpoints import load_weights
from embodyflow.policies.pretrained.weight_files import weight_paths

Choose = Callable[[Tensor, slice], Tensor]
"""Chooses tokens, int64 [N, k], by logits float32 [N, k, bins] at k places, a slice of a decision's L."""


class Projector(nn.Module):
    """Maps features of patches to embeddings of words: three layers for two towers, two for one."""

    def __init__(self, num_towers: int, size: int, out_size: int) -> None:
        super().__init__()
        widths = [size, 4 * size, out_size, out_size] if num_towers > 1 else [size, out_size, out_size]
        self.fc1, self.fc2 = nn.Linear(widths[0], widths[1]), nn.Linear(widths[1], widths[2])
        self.fc3 = nn.Linear(widths[2], widths[3]) if num_towers > 1 else None

    def forward(self, features: Tensor) -> Tensor:
        """Map float [N, P, D] to [N, P, hidden]."""
        hidden: Tensor = self.fc2(F.gelu(self.fc1(features)))
        return hidden if self.fc3 is None else self.fc3(F.gelu(hidden))


class Backbone(nn.Module):
    """Base of policy and critic: embeds images and prompt as one sequence, and reads it with the language model.

    Args:
        description: Description of the checkpoint; weights are random.
    """

    def __init__(self, description: Description) -> None:
        super().__init__()
        towers, text = tower_sizes(description), LlamaConfig(**description.config["text_config"])
        text._attn_implementation = "sdpa"
        width = sum(tower.hidden_size for tower in towers)
        self.vision_backbone = VisionBackbone(towers)
        self.projector = Projector(len(towers), width, text.hidden_size)
        self.language_model = LlamaForCausalLM(text)

    @property
    def blocks(self) -> list[nn.Module]:
        """Transformer blocks of towers and language model that have an effect."""
        vision = [block for tower in self.vision_backbone.towers for block in tower.used_blocks]
        return [*vision, *self.language_model.model.layers]

    def embed_context(self, pixels: Tensor, prompt_ids: Tensor, further: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the embeddings of ``<s>``, the patches of all images and the prompt, and a mask without padding.

        Args:
            pixels: Pixels of K images, float32 [N, K, 3·towers, S, S].
            prompt_ids: Prompt, int64 [N, I], padded by 0 in front.
            further: Embeddings that follow the patches, float [N, m, hidden].

        Returns:
            Embeddings, float [N, 1 + K·P + m + I, hidden], and the mask, bool [N, 1 + K·P + m + I].
        """
        num_rows = len(prompt_ids)
        patches = self.projector(self.vision_backbone(pixels.flatten(0, 1))).unflatten(0, (num_rows, -1)).flatten(1, 2)
        if further is not None:
            patches = torch.cat([patches, further.to(patches.dtype)], dim=1)
        start = prompt_ids.new_full((num_rows, 1), self.language_model.config.bos_token_id)
        words = self.embed(torch.cat([start, prompt_ids], dim=1))
        embedded = torch.cat([words[:, :1], patches, words[:, 1:]], dim=1)
        present = torch.cat([prompt_ids.new_ones(patches.shape[:2]), torch.ones_like(start), prompt_ids], dim=1) != 0
        return embedded, present

    def embed(self, words: Tensor) -> Tensor:
        """Return the embeddings, float [N, k, hidden], of words int64 [N, k]."""
        embeddings: Tensor = self.language_model.get_input_embeddings()(words)
        return embeddings

    def read(self, embedded: Tensor, present: Tensor, mask: Tensor | None = None, cache: Any = None) -> Tensor:
        """Return the language model's last hidden states, float [N, k, hidden], at k embeddings.

        Positions count present embeddings only, so padding makes no difference.

        Args:
            embedded: Embeddings, float [N, k, hidden].
            present: Mask without padding, bool [N, K], of the K embeddings so far, those in the cache included.
            mask: Attention mask, bool [N, 1, k, K]; by default attention is causal, to what is present.
            cache: Cache of transformers with the keys and values of earlier embeddings; these are added to it.
        """
        positions = (present.long().cumsum(-1) - 1).clamp(min=0)[:, -embedded.shape[1] :]
        hidden: Tensor = self.language_model.model(
            inputs_embeds=embedded,
            attention_mask=present.long() if mask is None else mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state
        return hidden

    def read_chunk(self, context: Tensor, present: Tensor, num_tokens: int) -> Tensor:
        """Return the hidden states that give the L tokens of a chunk, float [N, L, hidden], from one forward pass.

        Args:
            context: Embeddings of images and prompt, float [N, K, hidden].
            present: Mask without padding, bool [N, K].
            num_tokens: L.
        """
        blanks = context.new_zeros(len(context), num_tokens, context.shape[-1])
        last = present.new_full((len(context), 1), self.language_model.config.eos_token_id, dtype=torch.int64)
        present = F.pad(present, (0, num_tokens + 1), value=True)
        mask = present[:, None, None].expand(-1, -1, present.shape[1], -1)
        hidden = self.read(torch.cat([context, blanks, self.embed(last)], dim=1), present, mask)
        return hidden[:, -num_tokens - 2 : -2]  # a position predicts the next word


class OpenVLA(Backbone, ABC):
    """Maps images and prompts to the logits of action tokens.

    Args:
        description: Description of the checkpoint; weights are random.
        num_tokens: L, tokens of one decision.
    """

    forward_methods = ("features", "forward_with_features")

    def __init__(self, description: Description, num_tokens: int) -> None:
        super().__init__(description)
        self.num_tokens, self._num_bins = num_tokens, description.config["n_action_bins"]
        self._num_words = description.config["text_config"]["vocab_size"] - description.config["pad_to_multiple_of"]

    def forward(self, pixels: Tensor, prompt_ids: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Return the logits of every token of one decision, float32 [N, L, bins].

        Args:
            pixels: Pixels, see :meth:`Backbone.embed_context`.
            prompt_ids: Prompt, see there.
            tokens: Tokens of the decision, int64 [N, L]; not read where the logits do not depend on them.
        """
        return self.action_logits(self.read_tokens(pixels, prompt_ids, tokens))

    def forward_with_features(
        self, pixels: Tensor, prompt_ids: Tensor, tokens: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return logits, and the hidden state that gives the first token, float [N, hidden]; see :meth:`forward`."""
        hidden = self.read_tokens(pixels, prompt_ids, tokens)
        return self.action_logits(hidden), hidden[:, 0].clone()  # FSDP warns of views that leave a model

    @abstractmethod
    def features(self, pixels: Tensor, prompt_ids: Tensor) -> Tensor:
        """Return the hidden state that gives the first token, float [N, hidden]; see :meth:`forward`."""

    @abstractmethod
    def read_tokens(self, pixels: Tensor, prompt_ids: Tensor, tokens: Tensor | None) -> Tensor:
        """Return the hidden states that give the tokens, float [N, L, hidden]; see :meth:`forward`."""

    @abstractmethod
    def decide(self, pixels: Tensor, prompt_ids: Tensor, choose: Choose) -> tuple[Tensor, Tensor]:
        """Return chosen tokens, int64 [N, L], and their logits, float32 [N, L, bins]."""

    def action_logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of bins, float32 [N, k, bins]: those of the last words, of which the very last is bin 0."""
        words = self.language_model.lm_head(hidden)[..., self._num_words - self._num_bins : self._num_words]
        logits: Tensor = words.flip(-1).float()
        return logits

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of the words that bins int64 [N, k] stand for."""
        return self.embed(self._num_words - 1 - tokens)


class AutoregressiveOpenVLA(OpenVLA):
    """Decodes one token after the other, like OpenVLA."""

    def features(self, pixels: Tensor, prompt_ids: Tensor) -> Tensor:
        """Return the hidden state after the prompt."""
        return self.read(*self.embed_context(pixels, prompt_ids))[:, -1].clone()

    def read_tokens(self, pixels: Tensor, prompt_ids: Tensor, tokens: Tensor | None) -> Tensor:
        """Return the hidden states, each given the tokens before it; see :meth:`OpenVLA.read_tokens`."""
        assert tokens is not None
        embedded, present = self.embed_context(pixels, prompt_ids)
        embedded = torch.cat([embedded, self.embed_tokens(tokens[:, :-1])], dim=1)
        present = torch.cat([present, torch.ones_like(tokens[:, :-1], dtype=torch.bool)], dim=1)
        return self.read(embedded, present)[:, -self.num_tokens :]

    def decide(self, pixels: Tensor, prompt_ids: Tensor, choose: Choose) -> tuple[Tensor, Tensor]:
        """Choose token by token, with a cache of keys and values; see :meth:`OpenVLA.decide`."""
        embedded, present = self.embed_context(pixels, prompt_ids)
        cache = DynamicCache(config=self.language_model.config)
        tokens: list[Tensor] = []
        logits: list[Tensor] = []
        for place in range(self.num_tokens):
            if tokens:
                embedded = self.embed_tokens(tokens[-1])
                present = F.pad(present, (0, 1), value=True)
            logits.append(self.action_logits(self.read(embedded, present, cache=cache)[:, -1:]))
            tokens.append(choose(logits[-1], slice(place, place + 1)))
        return torch.cat(tokens, dim=1), torch.cat(logits, dim=1)


class ParallelOpenVLA(OpenVLA):
    """Decodes all tokens of a chunk at once, like OpenVLA-OFT with action tokens."""

    def features(self, pixels: Tensor, prompt_ids: Tensor) -> Tensor:
        """Return the hidden state of the first blank's predecessor, which attends to everything."""
        return self.read_tokens(pixels, prompt_ids, None)[:, 0].clone()

    def read_tokens(self, pixels: Tensor, prompt_ids: Tensor, tokens: Tensor | None) -> Tensor:
        """Return the hidden states, which do not depend on the tokens; see :meth:`OpenVLA.read_tokens`."""
        del tokens
        return self.read_chunk(*self.embed_context(pixels, prompt_ids), self.num_tokens)

    def decide(self, pixels: Tensor, prompt_ids: Tensor, choose: Choose) -> tuple[Tensor, Tensor]:
        """Choose all tokens by one forward pass; see :meth:`OpenVLA.decide`."""
        logits = self(pixels, prompt_ids)
        return choose(logits, slice(0, self.num_tokens)), logits


class OpenVLAValue(Backbone):
    """Maps images and prompts to their values, which are 0 before any training.

    Args:
        policy_model: Model whose parts it takes.
    """

    def __init__(self, policy_model: Backbone) -> None:
        nn.Module.__init__(self)  # the parts exist already
        self.vision_backbone, self.projector = policy_model.vision_backbone, policy_model.projector
        self.language_model = policy_model.language_model
        self.language_model.lm_head = nn.Identity()
        self.value = nn.Linear(self.language_model.config.hidden_size, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, pixels: Tensor, prompt_ids: Tensor) -> Tensor:
        """Return the values, float32 [N]; see :meth:`Backbone.embed_context` for the arguments."""
        values: Tensor = self.value(self.read(*self.embed_context(pixels, prompt_ids))[:, -1])
        return values.squeeze(-1).float()


DECODERS: Mapping[str, type[OpenVLA]] = {"autoregressive": AutoregressiveOpenVLA, "parallel": ParallelOpenVLA}


def build_model(description: Description, decoding: str, num_tokens: int) -> OpenVLA:
    """Return the model in float32, with a checkpoint's weights, or random ones from torch's global generator.

    Raises:
        ConfigError: The weights are not those of an OpenVLA of this description.
    """
    if description.folder is None:
        return DECODERS[decoding](description, num_tokens).eval()
    with torch.device("meta"):  # saves drawing 7 billion random numbers
        model = DECODERS[decoding](description, num_tokens).eval()
    build_rotary_embedding(model)
    load_weights(model, weight_paths(description.folder))
    return model


def build_rotary_embedding(model: Backbone) -> None:
    """Build the part of a model on the meta device that has no weights, which loading does not fill."""
    language_model: Any = model.language_model.model
    language_model.rotary_emb = type(language_model.rotary_emb)(model.language_model.config)


def tower_sizes(description: Description) -> list[TowerSizes]:
    """Return the sizes of the vision towers.

    Raises:
        ConfigError: A tower is unknown.
    """
    config = description.config
    if "vision_towers" in config:
        return [TowerSizes(**sizes) for sizes in config["vision_towers"]]
    names, image_sizes = config["timm_model_ids"], config["image_sizes"]
    for name in names:
        if name not in PUBLISHED:
            raise ConfigError(f"policy.path: its vision tower {name!r} is unknown; allowed are {', '.join(PUBLISHED)}")
    return [TowerSizes(image_size=size, **PUBLISHED[name]) for name, size in zip(names, image_sizes, strict=True)]
