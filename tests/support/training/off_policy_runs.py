"""Off-policy runs in one process, whose processes can be lost at any point."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainers import free_address

from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.references import resolve

SMALL = (
    *("experiment=pendulum", "env.id=matching_env:Matching-v0", "env.max_steps=5"),
    *("policy.state_dim=1", "policy.action_dim=1", "policy.hidden_size=16"),
    *("rollout.envs_per_worker=2", "rollout.num_steps=8", "off_policy.batch_size=16"),
    *("off_policy.random_transitions=20", "off_policy.replay_capacity=60"),
)


class OffPolicyRun:
    """A run with one rollout worker in a folder; a second object of the same folder is its next process.

    Args:
        folder: Folder of the run.
        words: Overrides of the configuration; later ones win.
        last: Iteration whose commit the run continues from; ``None`` begins it.
    """

    def __init__(self, folder: Path, words: Sequence[str] = (), last: int | None = None) -> None:
        chosen = {word.partition("=")[0]: word for word in (*SMALL, *words)}
        self.config: Any = compose_config(list(chosen.values()))
        engines = {role: resolve(shape.engine)(self.config, 0, 1) for role, shape in self.config.groups.items()}
        self.rollout, self.trainer = engines["rollout"], engines["trainer"]
        self.trainer.connect(free_address())
        self._folder = folder
        if last is None:
            self.commit(0)
        else:
            self.trainer.load(str(self.checkpoint(last)))
            self._publish(last)

    def checkpoint(self, iteration: int) -> Path:
        return self._folder / "checkpoints" / str(iteration)

    def gather(self, iteration: int) -> None:
        """Collect and store the transitions of an iteration."""
        draws = (self.config.seed, iteration, "rollout")
        rows, self.finished = self.rollout.collect(iteration, draws, self._folder / "open_episodes")
        self.trainer.store(to_batch(rows), iteration)

    def train(self, iteration: int) -> Any:
        return self.trainer.train((self.config.seed, iteration, "train"), iteration)

    def commit(self, iteration: int) -> None:
        self.checkpoint(iteration).mkdir(parents=True)
        self.trainer.save(str(self.checkpoint(iteration)), whole=iteration == 0)
        self._publish(iteration)

    def iterate(self, iterations: range) -> Any:
        """Run and commit iterations; return the metrics of the last."""
        for iteration in iterations:
            self.gather(iteration)
            metrics = self.train(iteration)
            self.commit(iteration)
        return metrics

    def files(self) -> dict[str, bytes]:
        """Return the content of the replay buffer's files by name."""
        return {path.name: path.read_bytes() for path in sorted((self._folder / "replay").glob("*.transitions"))}

    def close(self) -> None:
        self.rollout.close()
        self.trainer.close()

    def _publish(self, version: int) -> None:
        self.rollout.update_weights(self.trainer.weights(), version)
