"""The life of a training run, whatever its algorithm: the graph makes the difference."""

from functools import partial
from typing import Any

from prefect.logging import get_run_logger

from embodyflow.errors import ConfigError
from embodyflow.graph import load_pipeline
from embodyflow.orchestration.evaluation.evaluation import evaluate, film, filmed
from embodyflow.orchestration.request.request import (
    RunRequest,
    check,
    of_this_flow_run,
    open_folder,
    stretched_schedule,
)
from embodyflow.orchestration.run.iteration import begin_to_count, hand_over, run_iteration
from embodyflow.orchestration.run.lookahead import Lookahead
from embodyflow.orchestration.run.nodes import Run
from embodyflow.orchestration.run.opened_run import opened
from embodyflow.orchestration.run.parity import observe
from embodyflow.orchestration.run.recovery import restore, surviving
from embodyflow.orchestration.run.warm_start import sft, warm_start_key
from embodyflow.orchestration.server.reporting import report_end, report_progress, report_start
from embodyflow.record.run_folder import RunFolder


async def train(request: RunRequest) -> dict[str, Any]:
    """Train as the request says, and return the run's summary.

    Everything that can be wrong with the request is found before a process is started; every process that was
    started has ended when this returns or raises.
    """
    request = of_this_flow_run(request)
    config = check(request)
    graph = load_pipeline(**config.pipeline.source())
    folder = open_folder(request, config)
    get_run_logger().info("run %s in %s", config.run_id, folder.path)
    if request.resume is not None and (line := stretched_schedule(folder, config)):
        get_run_logger().warning(line)
    with folder.locked():
        try:
            async with opened(folder, config, graph) as run:
                return await _train(run, resumed=request.resume is not None)
        except ConfigError:
            if not folder.committed():  # nothing has come of it: the name is free for another try
                folder.remove()
            raise


async def _train(run: Run, *, resumed: bool) -> dict[str, Any]:
    report_start(run)
    first = await surviving(run, "the start", partial(_start, run, resumed=resumed))
    lookahead = Lookahead(partial(_iterate, run), run.turns.max_staleness, run.config.iterations)
    try:
        for index in range(first, run.config.iterations + 1):
            await surviving(run, f"iteration {index}", partial(_reach, run, lookahead, index))
        await surviving(run, "the export", partial(_export, run, lookahead))
    finally:
        await lookahead.stop()
    await run.stages.settle()
    summary = summarize(run)
    run.folder.write_summary(summary)
    report_end(run, summary)
    run.folder.write_status("done", run.config.iterations, run.config.iterations)
    return summary


async def _start(run: Run, *, resumed: bool) -> int:
    """Return the iteration to go on after: the last commit's, or 0 with the policy warm-started and committed."""
    if resumed:
        run.folder.summary_path.unlink(missing_ok=True)  # it may go on beyond its end: it is not complete any more
        last = await restore(run)
        get_run_logger().info("resumed after iteration %d", last)
        return last
    return await _begin(run)


async def _reach(run: Run, lookahead: Lookahead, index: int) -> None:
    """Do what is left to do until an iteration is done and, where that is due, evaluated.

    By custom that is the iteration. After a failure it is whatever comes after the commit that the run went back to,
    which need not be the last one: its checkpoint may turn out to be damaged.
    """
    after = run.turns.last_finished
    await _evaluate_if_due(run, after)
    await lookahead.reach(index, after)


async def _iterate(run: Run, index: int) -> None:
    await run.turns.to_roll_out(index)
    await run_iteration(run, index)
    report_progress(run, index)
    await _evaluate_if_due(run, index)
    run.turns.finished(index)


async def _export(run: Run, lookahead: Lookahead) -> None:
    """Write the policy for others to use."""
    await _reach(run, lookahead, run.config.iterations)
    await run.session.export("save_pretrained", run.folder.path / "policy")


async def _evaluate_if_due(run: Run, index: int) -> None:
    if not run.config.evaluates_after(index):
        return
    if not _evaluated(run.folder, index):
        await evaluate(run, index)
    if run.config.films_after(index) and not filmed(run, index):  # a failure may lie between the two
        await film(run, index)


async def _begin(run: Run) -> int:
    """Warm-start the policy and commit it as version 0; note what it sees, for evaluations to see the same."""
    if run.config.notes_observations:
        run.folder.write_observations(await observe(run))
    if run.config.warm_start is not None:
        run.folder.write_status("sft", 0, run.config.iterations)
        await sft(warm_start_key(run.config))
    await hand_over(0)
    begin_to_count(0)
    return 0


def _evaluated(folder: RunFolder, index: int) -> bool:
    return any(r["iteration"] == index and "eval/greedy_success_rate" in r for r in folder.metrics())


def summarize(run: Run) -> dict[str, Any]:
    """Return what ``summary.json`` says of a finished run."""
    records = run.folder.metrics()
    seconds = sum(r.get("perf/iteration_seconds", 0.0) for r in records)
    return {
        "run_id": run.config.run_id,
        **run.config.summarize(records),
        "seed": run.config.seed,
        "train_seconds": round(seconds, 2),
        "iterations": run.config.iterations,
        "weights_digest": run.session.weights_digest,
    }
