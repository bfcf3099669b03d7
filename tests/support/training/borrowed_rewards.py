"""Reward functions as users of verl and TRL write them, and one of our own."""

import numpy as np

from embodyflow.rewards.interface import outcome

ASKED = [{"role": "user", "content": "What is 30+4?"}]


def compute_score(data_source, solution_str, ground_truth, extra_info):
    """Score as verl's functions do."""
    right = solution_str == ground_truth
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": solution_str, "index": extra_info["index"]}


def compute_score_plain(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    return np.float32(solution_str == ground_truth) * 0.9 + bonus


def compute_score_without_score(data_source, solution_str, ground_truth, extra_info):
    return {"reward": 1.0}


def accuracy_reward(completions, solution, **kwargs):
    """Score as TRL's functions do."""
    assert all(len(column) == len(completions) for column in (solution, *kwargs.values()))
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if content == gold else 0.0 for content, gold in zip(contents, solution, strict=True)]


def length_reward(completions, completion_ids):
    return [len(text) + 100.0 * len(ids) for text, ids in zip(completions, completion_ids, strict=True)]


def prompt_reward(prompts, completions, **kwargs):
    return [float(prompt == ASKED or prompt == "p") for prompt in prompts]


def nothing(completions, **kwargs):
    return [None for _ in completions]


def one_for_all(completions, **kwargs):
    return 1.0


def ours(sample):
    return outcome(sample.row["ability"] == "math")


def compute_score_with(data_source, solution_str, ground_truth, extra_info, accuracy, style=0.5):
    return {"score": 2.0, "acc": accuracy, "style": style, "pred": solution_str}
