"""A small Qwen that writes given texts when it plays the agents of a ring, and the tokenizer for their templates."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import printable
from typing import Any

import torch

from embodyflow.agents.ring.member import Member
from embodyflow.config.agents.ring import RingMemberConfig
from embodyflow.prompts.prompts import Prompt, encode
from embodyflow.prompts.word_tokenizer import word_tokenizer

START, END = "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MAX_TOKENS = 2048
"""Most tokens of a prompt and its response together."""


@dataclass(frozen=True)
class Script:
    """Texts of the agents of a ring.

    Attributes:
        members: Settings of the agents, by name, as ``rollout.agent.ring.members`` has them.
        prompts: Prompts that begin a round.
        texts: Texts of each agent, of which the model writes one at random.
        verdict: Text that the environment puts behind what the last agent leaves, where it asks again.
    """

    members: Mapping[str, Mapping[str, Any]]
    prompts: Sequence[Prompt]
    texts: Mapping[str, Sequence[str]]
    verdict: str


def save_model(folder: Path, script: Script, rounds: int, steps: int = 100, seed: int = 0) -> None:
    """Write a model that imitates the script, and its tokenizer, in the form of the Hugging Face hub.

    Args:
        folder: Folder to write.
        script: Texts that it learns to write.
        rounds: Rounds of an episode that it learns.
        steps: Optimizer steps, each on an episode of eight prompts.
        seed: Seed of the weights and of the draws.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    draws = random.Random(seed)
    tokenizer = build_tokenizer(script)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    members = [Member(name, RingMemberConfig.model_validate(each)) for name, each in script.members.items()]
    for _ in range(steps):
        turns = [turn for _ in range(8) for turn in _episode(script, members, tokenizer, rounds, draws)]
        loss = model(**_padded(turns, tokenizer.pad_token_id)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build_tokenizer(script: Script) -> Any:
    """Return a tokenizer with a token for each text of the script and for each fixed part of the agents' templates."""
    settings = [each for member in script.members.values() for kind in _KINDS for each in member[kind].values()]
    parts = [part for each in settings for part in re.split(r"\$\{prompt\}|<\|im_start\|>|<\|im_end\|>", each)]
    texts = [text for texts in script.texts.values() for text in texts]
    words = dict.fromkeys((*printable, "→", *filter(None, parts), *texts, script.verdict))
    return word_tokenizer([*words], end=END, chat_template=CHAT_TEMPLATE, roles=(START,))


_KINDS = ("pre_process_kwargs", "post_process_kwargs")


def _episode(
    script: Script, members: Sequence[Member], tokenizer: Any, rounds: int, draws: random.Random
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield what each agent reads and writes, turn after turn, as the ring plays a prompt."""
    tokens = encode(draws.choice(script.prompts), tokenizer, MAX_TOKENS)
    for _ in range(rounds):
        for member in members:
            written = tuple(tokenizer.encode(draws.choice(script.texts[member.name])))
            yield [*member.open(tokenizer, tokens, None)], [*written, tokenizer.eos_token_id]
            tokens = member.close(tokenizer, tokens, written)
        tokens = tuple(tokenizer.encode(tokenizer.decode(tokens, skip_special_tokens=False) + script.verdict))


def _padded(turns: Sequence[tuple[list[int], list[int]]], pad: int) -> dict[str, torch.Tensor]:
    """Return rows padded on the right, with labels where an agent writes."""
    longest = max(len(read) + len(written) for read, written in turns)
    ids = torch.full((len(turns), longest), pad)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for row, (read, written) in enumerate(turns):
        whole = len(read) + len(written)
        ids[row, :whole] = torch.tensor([*read, *written])
        labels[row, len(read) : whole] = torch.tensor(written)
        mask[row, :whole] = 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}
