"""Small language models in Hugging Face folders."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 +=."
VOCAB = ("<eos>", *ALPHABET, *("ab", "bc", "cde"))  # a token per character, and three longer ones
MAX_POSITIONS = 64


def save_model(folder: Path, *, tied: bool, seed: int = 0, **settings: Any) -> Path:
    """Write a Qwen3 model with random weights and a character tokenizer; return the folder.

    Args:
        folder: Folder to write.
        tied: Use the embedding as the head's weight.
        seed: Seed of the weights.
        **settings: Further settings of the model's configuration.
    """
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(VOCAB),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=tied,
        initializer_range=0.15,  # with the usual 0.02, tokens would be almost equally probable
        bos_token_id=None,
        eos_token_id=0,
        **settings,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(VOCAB)}, unk_token="."))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)
    return folder


def load_model(folder: Path) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
