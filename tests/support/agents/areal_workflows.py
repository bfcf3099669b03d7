"""Workflow classes as AReaL has them; none knows of embodyflow. ``Request`` has the fields of its ``ModelRequest``."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import torch

SEEN: list[dict[str, Any]] = []
"""Data of the last episodes."""


@dataclass
class Request:
    input_ids: list[int]
    gconfig: Any
    tokenizer: Any = None
    rid: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


def count_digits(prompt, completions, prompt_ids, completion_ids, answer, **data) -> float:
    """A reward function of AReaL's form."""
    return float(sum(letter.isdigit() for letter in completions))


class Retry:
    """Asks again until a turn has enough digits."""

    def __init__(self, reward_fn, gconfig, tokenizer, max_turns: int, turn_discount: float = 0.5):
        self.reward_fn, self.tokenizer = reward_fn, tokenizer
        self.gconfig = gconfig.new_with_stop_and_pad_token_ids(tokenizer)
        self.max_turns, self.turn_discount = max_turns, turn_discount
        self.again = tokenizer("error: ", add_special_tokens=False)["input_ids"]

    async def arun_episode(self, engine, data):
        SEEN.append(data)
        text = self.tokenizer.apply_chat_template(data["messages"], tokenize=False, add_generation_prompt=True)
        input_ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        sequence, log_probs, mask, versions, reward, discount = [], [], [], [], 0.0, 1.0
        for turn in range(self.max_turns):
            response = await engine.agenerate(Request(input_ids, self.gconfig.new(n_samples=1), self.tokenizer))
            words = self.tokenizer.decode(response.output_tokens)
            reward = self.reward_fn("", words, response.input_tokens, response.output_tokens, **data)
            new = len(response.input_tokens) - len(sequence)
            sequence += response.input_tokens[-new:] + response.output_tokens
            log_probs += [0.0] * new + response.output_logprobs
            mask += [0] * new + [1] * response.output_len
            versions += [-1] * new + response.output_versions
            if turn + 1 < self.max_turns:
                input_ids = input_ids + response.output_tokens + self.again
                discount *= self.turn_discount
        return self.result(sequence, log_probs, mask, versions, reward * discount)

    def result(self, sequence, log_probs, mask, versions, reward):
        tensors = {
            "input_ids": torch.tensor(sequence, dtype=torch.int32),
            "logprobs": torch.tensor(log_probs, dtype=torch.float32),
            "loss_mask": torch.tensor(mask, dtype=torch.int32),
            "versions": torch.tensor(versions, dtype=torch.int32),
            "rewards": torch.tensor(reward, dtype=torch.float32),
            "attention_mask": torch.ones(len(sequence), dtype=torch.bool),
        }
        return {name: tensor.unsqueeze(0) for name, tensor in tensors.items()}


class Picky(Retry):
    """Rejects episodes whose turn has an odd number of tokens."""

    async def arun_episode(self, engine, data):
        result = await super().arun_episode(engine, data)
        return None if int(result["loss_mask"].sum()) % 2 else result


class BestOfTwo(Retry):
    """Samples two answers side by side and returns one."""

    async def arun_episode(self, engine, data):
        text = self.tokenizer.apply_chat_template(data["messages"], tokenize=False, add_generation_prompt=True)
        asked = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        answers = await asyncio.gather(*(engine.agenerate(Request(asked, self.gconfig)) for _ in range(2)))
        best = max(answers, key=lambda answer: answer.output_len)
        zeros = len(asked)
        return self.result(
            asked + best.output_tokens,
            [0.0] * zeros + best.output_logprobs,
            [0] * zeros + [1] * best.output_len,
            [-1] * zeros + best.output_versions,
            1.0,
        )


class Spoiled(Retry):
    """Changes what it returns."""

    spoil = staticmethod(lambda result: result)

    async def arun_episode(self, engine, data):
        return self.spoil(await super().arun_episode(engine, data))


class Open:
    """Takes any argument, and greedy requests."""

    def __init__(self, **kwargs):
        self.kwargs = kwargs

    async def arun_episode(self, engine, data):
        return None
