"""The checks of ``embodyflow check-env`` for a natively batched environment."""

import time

import numpy as np

from embodyflow.cli.environments.described_spaces import describe_space, entries_of_space
from embodyflow.cli.environments.env_checks import Check, Finding, Subject
from embodyflow.simulation.batched.checks import PROBE_LANES, opened_batch
from embodyflow.simulation.make_env import unrestorable_tasks
from embodyflow.simulation.restorability import probe_actions, remedy

SPEED_SECONDS = 1.0


def _spaces(subject: Subject) -> Finding:
    with opened_batch(subject.config, PROBE_LANES, 0) as vector:
        seen = [f"{name} {describe_space(space)}" for name, space in entries_of_space(vector.observation_space).items()]
        return Finding("ok", f"a lane has actions {describe_space(vector.action_space)}; observes {', '.join(seen)}")


def _resets(subject: Subject) -> Finding:
    with opened_batch(subject.config, PROBE_LANES, 0) as vector:
        if not vector.resets_itself:
            return Finding("ok", "each episode of a lane begins by a seed of its own")
        idle = "; the step after an end is no transition" if vector.skips_resets else ""
        return Finding("note", f"the batch begins episodes by itself, from one seed{idle}")


def _restore(subject: Subject) -> Finding:
    for line in unrestorable_tasks(subject.config).values():
        return Finding("FAIL", line, remedy(line))
    return Finding("ok", "the batch can be repeated from its seed after other episodes, and in another instance")


def _speed(subject: Subject) -> Finding:
    with opened_batch(subject.config, PROBE_LANES, 0) as vector:
        vector.reset(seeds=list(range(PROBE_LANES)))
        actions, steps, started = probe_actions(vector.action_space), 0, time.perf_counter()
        while time.perf_counter() - started < SPEED_SECONDS:
            step = vector.step(np.stack([np.asarray(actions[steps % len(actions)])[None]] * PROBE_LANES))
            steps += 1
            over = np.flatnonzero(step.terminated | step.truncated).tolist()
            if over:
                vector.reset(over, None if vector.resets_itself else over)
        rate = steps * PROBE_LANES / (time.perf_counter() - started)
        return Finding("ok", f"{rate:.0f} steps/s of {PROBE_LANES} lanes together")


BATCH_CHECKS: dict[str, Check] = {
    "spaces": _spaces,
    "resets": _resets,
    "restore by seed": _restore,
    "speed": _speed,
}
