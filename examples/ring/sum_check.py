"""An environment that checks a sum, and pays less for each further try."""

from typing import Any


class SumCheck:
    """Checks the number after the last ``##`` of the last agent."""

    def reset(self, prompt: list[dict[str, Any]]) -> None:
        """Begin an episode with a chat that asks for a sum."""
        self.question, self.tries = prompt[-1]["content"], 0

    async def step(self, actions: list[str], ground_truth: str) -> tuple[list[str], float, bool]:
        """Return a text for each agent, the reward, and whether the sum is right.

        Args:
            actions: Texts of the agents in their order.
            ground_truth: The sum.
        """
        self.tries += 1
        is_right = actions[-1].rpartition("##")[2].strip() == ground_truth
        # The text for the last agent begins the next round; the others read theirs besides.
        observations = ["wrong"] * (len(actions) - 1) + [self.question]
        return observations, 1.0 / self.tries if is_right else 0.0, is_right
