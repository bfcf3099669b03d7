"""A small Gemma 3 in a GGUF file, as llama.cpp converts one."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants
from language_models import ALPHABET
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
VOCAB = (*SPECIAL, "▁", *ALPHABET.replace(" ", ""))
BEGIN = 2
WINDOW = 4

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
"""Names of a layer's weights in transformers and in GGUF."""


def build_model() -> Any:
    """Return a Gemma 3 of random weights with six local layers and a full one."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=len(VOCAB),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=7,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=64,
        sliding_window=WINDOW,
        initializer_range=0.3,
    )
    return Gemma3ForCausalLM(config).eval()


def write_gguf(model: Any, file: Path, *, quantised: str = "", add_begin: bool | None = True) -> Path:
    """Write a model with a tokenizer of characters; return the file.

    Args:
        model: Model of :func:`build_model`.
        file: File to write.
        quantised: End of the names of the weights that are rounded to 8 bits.
        add_begin: Whether texts begin with a token; ``None`` does not say.
    """
    config, writer = model.config, GGUFWriter(file, "gemma3")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_sliding_window(config.sliding_window)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token.encode() for token in VOCAB])
    writer.add_token_scores([-float(index) for index in range(len(VOCAB))])
    special = [TokenType.CONTROL] * 3 + [TokenType.UNKNOWN]
    writer.add_token_types([*special, *[TokenType.NORMAL] * (len(VOCAB) - len(special))])
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(3)
    if add_begin is not None:
        writer.add_add_bos_token(add_begin)
    for name, value in model.model.state_dict().items():
        array = value.numpy() + (1.0 if "norm" in name else 0.0)  # llama.cpp stores the factor itself
        if quantised and name.endswith(quantised):
            rounded = quants.quantize(array, GGMLQuantizationType.Q8_0)
            writer.add_tensor(_name(name), rounded, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(_name(name), np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _name(name: str) -> str:
    if not name.startswith("layers."):
        return {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[name]
    _, number, rest = name.split(".", 2)
    return f"blk.{number}.{NAMES[rest.removesuffix('.weight')]}.weight"
