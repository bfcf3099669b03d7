"""CPU time of the gradient steps of ``experiment=half_cheetah``: by autograd, as a traced graph, and compiled.

    python -m benchmarks.control.traced_steps --rounds 9

The trainers take the optimizer steps of an iteration in turns, on the rows of one iteration of 16 environments. Ratios
are taken per round; the figures are medians. The first call of a trainer that traces takes longer, and
that of the compiled one compiles or loads from the cache.
"""

import argparse
import statistics
import time
from typing import Any

from benchmarks.control.in_process import InProcessRun
from embodyflow.config.robots.control import ControlConfig

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


def eager() -> Steps:
    """Return steps by autograd, which no key asks for: traced ones have the same bits."""
    traces_steps = ControlConfig.traces_steps
    ControlConfig.traces_steps = property(lambda _: False)
    steps = Steps()
    ControlConfig.traces_steps = traces_steps
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    contenders = {"eager": eager(), "traced": Steps(), "compiled": Steps("trainer.compile=true")}
    taken = [{name: steps.milliseconds() for name, steps in contenders.items()} for _ in range(rounds)]
    for name in contenders:
        ratio = statistics.median(each["eager"] / each[name] for each in taken)
        print(f"{name:9} {statistics.median(each[name] for each in taken):.2f} ms per step, {ratio:.2f} times as fast")


if __name__ == "__main__":
    main()
