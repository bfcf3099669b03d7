"""Trainers of robots' jobs that a later object of the same folder continues."""

from pathlib import Path
from typing import Any

from tensordict import TensorDict
from trainers import free_address

from embodyflow.references import resolve


class TrainerRun:
    """A trainer whose folder outlives it.

    Args:
        config: Configuration of an embodied run.
        folder: Folder of the run.
        demos: Demonstrations of its warm start.
        last: Iteration whose commit it continues from; ``None`` begins with the warm start.
    """

    def __init__(self, config: Any, folder: Path, demos: TensorDict, last: int | None = None) -> None:
        self.trainer = resolve(config.groups["trainer"].engine)(config, 0, 1)
        self.trainer.connect(free_address())
        self._checkpoints = folder / "checkpoints"
        if last is None:
            self.trainer.fit(demos, 0)
            self.commit(0)
        else:
            self.trainer.load_reference(str(self._checkpoints / "0"))
            self.trainer.load(str(self._checkpoints / str(last)))

    def commit(self, iteration: int) -> None:
        checkpoint = self._checkpoints / str(iteration)
        checkpoint.mkdir(parents=True, exist_ok=True)
        self.trainer.save(str(checkpoint), whole=iteration == 0)
