"""CPU time of the gradient steps of ``experiment=half_cheetah``, eager and with ``trainer.compile=true``.

    python -m benchmarks.control.compiled_steps --rounds 9

Both trainers take the optimizer steps of an iteration in turns, on the rows of one iteration of 16 environments. Ratios
are taken per round; the figures are medians. The first call of the compiled trainer compiles, or loads from the cache.
"""

import argparse
import statistics
import time
from typing import Any

from benchmarks.control.in_process import InProcessRun

WORDS = ("experiment=half_cheetah", "algorithm=ppo", "rollout.envs_per_worker=16")


class Steps:
    """The gradient steps of a run's first iteration, to be repeated.

    Args:
        words: Overrides of the configuration.
    """

    def __init__(self, *words: str) -> None:
        run = InProcessRun([*WORDS, *words])
        self._step, self._call = run.trainer.step_both, dict[str, Any]()
        run.trainer.step_both = self._first
        run.warm_start()
        run.iterate(1)

    def _first(self, batch: Any, **arguments: Any) -> Any:
        self._call = {"batch": batch.clone(), **arguments}
        began = time.perf_counter()
        metrics = self._step(batch, **arguments)
        self.num_steps = metrics["train/optimizer_steps"].value
        print(f"the first steps take {time.perf_counter() - began:.1f} s of wall time")
        return metrics

    def milliseconds(self) -> float:
        """Return the CPU time of a step in ms, over one more iteration's."""
        began = time.process_time()
        self._step(**self._call)
        return (time.process_time() - began) * 1000 / self.num_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    eager, compiled = Steps(), Steps("trainer.compile=true")
    pairs = [(eager.milliseconds(), compiled.milliseconds()) for _ in range(rounds)]
    for name, each in zip(("eager", "compiled"), zip(*pairs, strict=True), strict=True):
        print(f"{name:9} {statistics.median(each):.2f} ms of CPU time per step")
    print(f"compiled steps are {statistics.median(a / b for a, b in pairs):.2f} times as fast")


if __name__ == "__main__":
    main()
