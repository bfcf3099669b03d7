"""Small OpenVLAs of random weights, observations for them, and a slow model in numpy to compare with."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from embodyflow.policies.embodied.openvla.configuration_openvla import OpenVLAConfig, OpenVLAScratchConfig
from embodyflow.policies.embodied.openvla.policy_openvla import OpenVLAPolicy
from embodyflow.policies.embodied.openvla_l1.configuration_openvla_l1 import OpenVLAL1Config
from embodyflow.policies.embodied.openvla_l1.policy_openvla_l1 import OpenVLAL1Policy

TOKENIZER = "embodyflow.policies.embodied.openvla.tokenizer_openvla:build_tokenizer"
INSTRUCTIONS = ("open the drawer", "pick up the black bowl", "push", "close it")
Array = np.ndarray


def new_config(**keys: Any) -> OpenVLAConfig:
    sizes = {"scratch": OpenVLAScratchConfig(), "tokenizer": TOKENIZER, "action_dim": 3, "gripper": "as_predicted"}
    return OpenVLAConfig(**(sizes | keys))


def new_policy(**keys: Any) -> OpenVLAPolicy:
    """Make a policy whose attention and logits are far from even, like a trained policy's."""
    torch.manual_seed(0)
    policy = OpenVLAPolicy(new_config(**keys), "cpu")
    if policy.config.path is None:
        for name, parameter in policy.model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight", "embed_tokens.weight", "lm_head.weight")):
                parameter.data.mul_(8.0)
    return policy


def new_l1_policy(**keys: Any) -> OpenVLAL1Policy:
    """Make a policy with a regression head, of random weights."""
    torch.manual_seed(0)
    sizes = {"scratch": OpenVLAScratchConfig(), "tokenizer": TOKENIZER, "action_dim": 3, "gripper": "as_predicted"}
    sizes |= {"state_dim": 5, "chunk_size": 2, "head_hidden_size": 16, "initial_scale": 0.2}
    return OpenVLAL1Policy(OpenVLAL1Config(**(sizes | keys)), "cpu")


def observe(policy: OpenVLAPolicy, num_rows: int, size: int = 32) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    instructions = [policy.encode_instruction(INSTRUCTIONS[row % len(INSTRUCTIONS)]) for row in range(num_rows)]
    cameras = policy.config.cameras
    images = {camera: rng.integers(256, size=(num_rows, size, size, 3), dtype=np.uint8) for camera in cameras}
    return {"instruction_ids": np.stack(instructions), **images}


class SlowOpenVLA:
    """Computes one row at a time in float64, from the weights of a published checkpoint and its ``config.json``.

    Written from the papers and the formulas of timm's and Llama's layers, not from the library's modules.
    """

    def __init__(self, weights: Mapping[str, Array], config: Mapping[str, Any]) -> None:
        self.weights = {name: array.astype(np.float64) for name, array in weights.items()}
        self.config, self.text = config, config["text_config"]

    def logits(self, pixels: Array, words: list[int], tokens: list[int], num_tokens: int, parallel: bool) -> Array:
        """Return the logits ``[L, 256]`` for pixels ``[K, 3 * towers, S, S]`` and a prompt without padding."""
        embedding = self.weights["language_model.model.embed_tokens.weight"]
        patches = [self.project(self.see(image)) for image in pixels]
        sequence = [embedding[[1]], *patches, embedding[words]]
        if parallel:
            sequence += [np.zeros((num_tokens, embedding.shape[1])), embedding[[2]]]
            first = -num_tokens - 2
        else:
            sequence.append(embedding[[self.last_word - token for token in tokens[:-1]]])
            first = -num_tokens
        hidden = self.read(np.concatenate(sequence), causal=not parallel)
        scores = hidden @ self.weights["language_model.lm_head.weight"].T
        each = [scores[first + place] for place in range(num_tokens)]
        return np.stack([[row[self.last_word - token] for token in range(256)] for row in each])

    @property
    def last_word(self) -> int:
        return int(self.text["vocab_size"]) - int(self.config["pad_to_multiple_of"]) - 1

    def see(self, image: Array) -> Array:
        names, sizes = ("featurizer", "fused_featurizer"), self.config["vision_towers"]
        towers = zip(names, sizes, np.split(image, 2), strict=True)
        return np.concatenate([self.tower(*each) for each in towers], axis=1)

    def tower(self, name: str, sizes: Mapping[str, Any], image: Array) -> Array:
        prefix, patch = f"vision_backbone.{name}.", sizes["patch_size"]
        kernel = self.weights[f"{prefix}patch_embed.proj.weight"]
        side = image.shape[1] // patch
        hidden = np.stack(
            [
                (kernel * image[:, r * patch : (r + 1) * patch, c * patch : (c + 1) * patch]).sum((1, 2, 3))
                for r in range(side)
                for c in range(side)
            ]
        )
        hidden = hidden + self.weights[f"{prefix}patch_embed.proj.bias"] + self.weights[f"{prefix}pos_embed"][0]
        if f"{prefix}cls_token" in self.weights:
            before = [self.weights[f"{prefix}{token}"][0] for token in ("cls_token", "reg_token")]
            hidden = np.concatenate([*before, hidden])
        for number in range(sizes["num_layers"] - 1):
            block = f"{prefix}blocks.{number}."
            mixed = self.self_attention(block, self.layer_norm(f"{block}norm1", hidden), sizes["num_heads"])
            hidden = hidden + mixed * self.weights.get(f"{block}ls1.scale_factor", 1.0)
            inner = gelu(self.linear(f"{block}mlp.fc1", self.layer_norm(f"{block}norm2", hidden)))
            hidden = hidden + self.linear(f"{block}mlp.fc2", inner) * self.weights.get(f"{block}ls2.scale_factor", 1.0)
        return hidden[-side * side :]

    def self_attention(self, block: str, hidden: Array, heads: int) -> Array:
        query, key, value = np.split(self.linear(f"{block}attn.qkv", hidden), 3, axis=1)
        parts = [np.split(each, heads, axis=1) for each in (query, key, value)]
        mixed = [softmax(q @ k.T / math.sqrt(q.shape[1])) @ v for q, k, v in zip(*parts, strict=True)]
        return self.linear(f"{block}attn.proj", np.concatenate(mixed, axis=1))

    def project(self, features: Array) -> Array:
        hidden = gelu(self.linear("projector.fc1", features))
        return self.linear("projector.fc3", gelu(self.linear("projector.fc2", hidden)))

    def read(self, hidden: Array, causal: bool) -> Array:
        length, heads = len(hidden), self.text["num_attention_heads"]
        blocked = np.where(np.triu(np.ones((length, length)), 1) == 1, -np.inf, 0.0) if causal else 0.0
        for number in range(self.text["num_hidden_layers"]):
            layer = f"language_model.model.layers.{number}."
            normed = self.rms_norm(f"{layer}input_layernorm", hidden)
            names = (f"{layer}self_attn.{part}_proj" for part in "qkv")
            parts = [np.split(normed @ self.weights[f"{name}.weight"].T, heads, axis=1) for name in names]
            mixed = [
                softmax(rotate(q) @ rotate(k).T / math.sqrt(q.shape[1]) + blocked) @ v
                for q, k, v in zip(*parts, strict=True)
            ]
            hidden = hidden + np.concatenate(mixed, 1) @ self.weights[f"{layer}self_attn.o_proj.weight"].T
            normed = self.rms_norm(f"{layer}post_attention_layernorm", hidden)
            gate, up = (normed @ self.weights[f"{layer}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
            hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"{layer}mlp.down_proj.weight"].T
        return self.rms_norm("language_model.model.norm", hidden)

    def linear(self, name: str, hidden: Array) -> Array:
        return hidden @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def layer_norm(self, name: str, hidden: Array) -> Array:
        centred = hidden - hidden.mean(1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-6)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def rms_norm(self, name: str, hidden: Array) -> Array:
        return hidden / np.sqrt((hidden**2).mean(1, keepdims=True) + 1e-6) * self.weights[f"{name}.weight"]


def rotate(x: Array) -> Array:
    """Rotate the pairs (i, i + half) of features by angles that grow with the position."""
    half = x.shape[1] // 2
    angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half)
    left, right = x[:, :half], x[:, half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=1)


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
