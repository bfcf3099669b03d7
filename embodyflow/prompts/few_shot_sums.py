"""Sums after worked examples, for pretrained models that were not tuned to follow instructions."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from embodyflow.prompts.arithmetic import ArithmeticPrompts
from embodyflow.prompts.prompt_config import FewShotSumsConfig
from embodyflow.prompts.prompts import Prompt, Split


class FewShotSumsPrompts(ArithmeticPrompts):
    """Sums of two numbers, each after the same examples, a line each: ``48+5=53``.

    The examples are among the first demonstrations, and none is the mirror image of another. So no example is a sum to
    train or to validate on.
    """

    def __init__(self, config: FewShotSumsConfig) -> None:
        super().__init__(config)
        self._few = config

    def prompt(self, split: Split, index: int) -> Prompt:
        """Return the examples, and the sum up to its equals sign."""
        left, right = self.pair(split, index)
        prompt_id = left * 10**self.num_digits + right
        return Prompt(prompt_id, f"{self._examples}{left}+{right}=", None, str(left + right), "few_shot_sums")

    def demonstration(self, split: Split, index: int) -> str:
        """Return the result."""
        return str(sum(self.pair(split, index)))

    @cached_property
    def _examples(self) -> str:
        # Mirror images are neighbours; steps of three skip them and take both orders.
        pairs = [self.pair("demo", 3 * number) for number in range(self._few.num_examples)]
        return "".join(f"{left}+{right}={left + right}\n" for left, right in pairs)

    def _unordered_pairs(self) -> NDArray[np.int64]:
        few = self._few
        grids = np.meshgrid(_numbers(few.num_other_digits), _numbers(few.num_digits), indexing="ij")
        pairs = np.stack(grids, axis=-1).reshape(-1, 2)
        return pairs[pairs[:, 0] <= pairs[:, 1]]


def _numbers(num_digits: int) -> NDArray[np.int64]:
    return np.arange(10 ** (num_digits - 1), 10**num_digits)
