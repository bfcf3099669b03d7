"""Seeds of environments as rows: an agent begins an episode in the environment that its row seeds."""

from embodyflow.errors import ConfigError
from embodyflow.prompts.prompt_config import SeedsConfig
from embodyflow.prompts.prompts import Prompt, Split, consecutive_splits


class SeedPrompts:
    """Consecutive seeds: those of validation first, then demonstrations, then training.

    So more seeds to train on leave the seeds of validation as they are. A row has its seed in ``row["seed"]``.

    Args:
        config: Number of seeds, and the message before the environment's first text.
    """

    def __init__(self, config: SeedsConfig) -> None:
        self._config = config
        sizes = config.num_validation, config.num_demos, config.num_train
        self._seeds = consecutive_splits(*sizes, first=config.first_seed)

    def num_prompts(self, split: Split) -> int:
        """Return the number of seeds in a split."""
        return len(self._seeds[split])

    def prompt(self, split: Split, index: int) -> Prompt:
        """Return the row of a seed: its message, without an observation."""
        if not 0 <= index < self.num_prompts(split):
            raise IndexError(f"index={index}: allowed are 0 to {self.num_prompts(split) - 1}, the {split} seeds")
        seed = self._seeds[split][index]
        return Prompt(seed, None, [{"role": "user", "content": self._config.prompt}], "", "seeds", {"seed": seed})

    def demonstration(self, split: Split, index: int) -> str:
        """Refuse: a seed alone has no response.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "data=seeds: has no demonstrations of its own; set warm_start=null, or use a workflow with them"
        )

    def demonstration_turns(self, split: Split, index: int) -> tuple[str, ...]:
        """Refuse as :meth:`demonstration` does; a workflow that is a ``Demonstrator`` plays the turns itself."""
        return (self.demonstration(split, index),)

    def place(self, split: Split, index: int) -> str:
        """Return the seed, for messages."""
        return f"seed {self._seeds[split][index]}"
