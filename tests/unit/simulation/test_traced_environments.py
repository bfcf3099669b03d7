"""Environment processes in the trace of a run."""

from pathlib import Path

import numpy as np
from counting_env import Counter
from traces import checked_trace

from embodyflow.process.tracing import recording, span
from embodyflow.record.trace_file import write_trace
from embodyflow.simulation.vector.env import VectorEnv


def test_each_process_records_its_steps_also_after_its_death(tmp_path: Path) -> None:
    ones, deadly = np.ones((2, 1, 2)), np.array([[[14.0, 0.0]], [[1.0, 0.0]]])
    with recording(tmp_path / "trace", "rollout 0"), VectorEnv([Counter] * 2, num_workers=2, chunk_size=1) as env:
        env.reset(seeds=[1, 2])
        with span("rollout", "call"):
            env.step(ones)
        with span("deadly", "call"):
            try:
                env.step(deadly)
            except Exception:
                env.reset(seeds=[1, 2])
    write_trace(tmp_path / "trace", tmp_path / "trace.json")
    trace = checked_trace(tmp_path / "trace.json")
    [call], waits = (
        trace.named("rollout"),
        [each for each in trace.named("wait for step") if each.process == "rollout 0"],
    )
    assert waits[0].around == ("rollout",)
    steps = [each for each in trace.named("step") if call.begin <= each.begin <= call.end]
    assert sorted(each.process for each in steps) == [f"rollout 0 environments {number}" for number in (0, 1)]
    assert all(call.begin <= each.begin and each.end <= call.end for each in steps)  # they share the clock
    killed = [each for each in trace.named("step") if each.arguments.get("unfinished")]
    assert killed and {each.process for each in killed} == {"rollout 0 environments 0"}
