"""The lifecycle of a training run. It is the same for every algorithm; algorithms differ in their graphs."""

from functools import partial
from typing import Any

from prefect.logging import get_run_logger

from embodyflow.config import RunConfig
from embodyflow.config.branch import BranchConfig
from embodyflow.errors import ConfigError
from embodyflow.graph import TaskGraph, load_pipeline
from embodyflow.health.examination import Alarm
from embodyflow.orchestration.display.progress_log import log_progress
from embodyflow.orchestration.display.reporting import report_end, report_progress, report_start, warn_of_unrestorable
from embodyflow.orchestration.health.alarms import act_on_alarms, act_on_failure
from embodyflow.orchestration.health.roll_back import RollBackNeeded, roll_back
from embodyflow.orchestration.request.request import (
    RunRequest,
    bind_to_flow_run,
    check,
    open_folder,
    stretched_schedule,
)
from embodyflow.orchestration.request.run_name import show_run_name
from embodyflow.orchestration.run.iterations.iteration import begin_commit, publish, run_iteration
from embodyflow.orchestration.run.iterations.lookahead import Lookahead
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.orchestration.run.open_run import open_run
from embodyflow.orchestration.run.parity import observe
from embodyflow.orchestration.run.recovery import leaves, must_leave_nodes, recover, restore, with_recovery
from embodyflow.orchestration.run.run_log import logged_to
from embodyflow.orchestration.run.storage_faults import storage_faults_explained
from embodyflow.orchestration.run.warm_start import sft, warm_start_key
from embodyflow.process.heap import frozen_objects
from embodyflow.process.tracing import span
from embodyflow.record.model_card import write_model_card
from embodyflow.record.run_folder import RunFolder, unrestorable_lines


async def train(request: RunRequest) -> dict[str, Any]:
    """Train as requested and return the run's summary.

    The request is checked before any process starts, and all processes have ended when this returns or raises.

    Raises:
        ConfigError: The request is wrong, or the cluster lacks resources for it.
        StorageError: The disk is full or read-only, or the run's folder is gone.
    """
    request = bind_to_flow_run(request)
    config = check(request, starts=True)
    await show_run_name(str(config.run_id))
    graph = load_pipeline(**config.pipeline.source())
    folder = open_folder(request, config)
    with folder.locked():
        try:
            with storage_faults_explained(folder), logged_to(folder):
                get_run_logger().info("run %s in %s", config.run_id, folder.path)
                if request.resume is not None and (line := stretched_schedule(folder, config)):
                    get_run_logger().warning(line)
                warn_of_unrestorable(folder)
                resumed = request.resume is not None or config.begins_at > 0
                return await _train_to_the_end(folder, config, graph, resumed=resumed)
        except Exception as error:
            _free_name(folder, error)
            raise


def _free_name(folder: RunFolder, error: Exception) -> None:
    """Remove the folder of a run that failed before its first commit, so that another attempt may have its name."""
    if folder.checkpoints.committed() or not folder.is_present():
        return
    try:
        folder.remove()
    except (OSError, ConfigError) as failed:  # such as on a disk that has become read-only, or a link
        error.add_note(f"{folder.path} was not removed: {failed}")


async def _train_to_the_end(folder: RunFolder, config: RunConfig, graph: TaskGraph, *, resumed: bool) -> dict[str, Any]:
    """Train, and reopen the run with the changed configuration after each roll-back; return the summary."""
    while True:
        async with open_run(folder, config, graph) as run:
            if (summary := await _train(run, resumed=resumed)) is not None:
                return summary
        resumed = True


async def _train(run: Run, *, resumed: bool) -> dict[str, Any] | None:
    """Train to the end and return the summary, or up to a roll-back and return ``None``."""
    report_start(run)
    first = await with_recovery(run, "the start", partial(_start, run, resumed=resumed))
    with frozen_objects():
        alarm = await _run_iterations(run, first)
    if alarm is not None:
        await roll_back(run, alarm)
        return None
    await run.stages.drain()
    summary = summarize(run)
    write_model_card(run.folder.path / "policy", run.config, summary)
    run.folder.write_summary(summary)
    report_end(run, summary)
    run.folder.write_status("done", run.config.iterations, run.config.iterations)
    return summary


async def _run_iterations(run: Run, first: int) -> Alarm | None:
    """Run all iterations and export the policy; return the alarm that asks for a roll-back, or ``None``.

    Nothing of the run is in flight any more at its end.
    """
    lookahead = Lookahead(partial(_run_in_turn, run), run.turns.max_staleness, run.config.iterations)
    try:
        for index in range(first, run.config.iterations + 1):
            await with_recovery(run, f"iteration {index}", partial(_run_until, run, lookahead, index))
        await with_recovery(run, "the export", partial(_export, run, lookahead))
    except Exception as error:
        needed = [each for each in leaves(error) if isinstance(each, RollBackNeeded)]
        if not needed:
            raise
        return needed[0].alarm
    finally:
        await lookahead.stop()
        await run.evaluations.stop()
        await run.rollouts.stop()
    return None


async def _start(run: Run, *, resumed: bool) -> int:
    """Restore the last commit, or commit a warm-started policy as iteration 0; return the committed iteration."""
    if resumed:
        run.folder.summary_path.unlink(missing_ok=True)  # with more iterations a finished run is incomplete again
        last = await restore(run)
        get_run_logger().info("resumed after iteration %d", last)
        return last
    return await _begin(run)


async def _run_until(run: Run, lookahead: Lookahead, index: int) -> None:
    """Run whatever is left until an iteration is finished.

    Usually that is the iteration itself. After a recovery it is everything since the restored commit, which is an
    earlier one than the last if that has a damaged checkpoint.
    """
    if await must_leave_nodes(run):
        await lookahead.stop()
        await recover(run)
    after = run.turns.last_finished
    await run.evaluations.resume(run, after)
    if run.turns.is_restored:
        await act_on_alarms(run, after)
    await lookahead.run_until(index, after)


async def _run_in_turn(run: Run, index: int) -> None:
    await run.turns.wait_to_roll_out(index)
    with span(f"iteration {index}", "iteration", track="iterations", iteration=index, run=str(run.config.run_id)):
        metrics = await _run_watched(run, index)
        log_progress(run, index, metrics)
        report_progress(run, index)
        await run.evaluations.after(run, index)
        await act_on_alarms(run, index, metrics)
        run.turns.mark_finished(index)


async def _run_watched(run: Run, index: int) -> dict[str, float]:
    """Run an iteration and return its metrics; if a number is NaN or inf, do what ``health.nan`` asks for."""
    try:
        return await run_iteration(run, index)
    except Exception as error:
        await act_on_failure(run, index, error)
        raise


async def _export(run: Run, lookahead: Lookahead) -> None:
    """Export the policy to the run's folder ``policy``, and wait for the evaluations beside training."""
    await _run_until(run, lookahead, run.config.iterations)
    run.folder.require_present()
    with span("export", "run", track="phases"):
        await run.session.export("save_pretrained", run.folder.path / "policy")
    await run.evaluations.finish()


async def _begin(run: Run) -> int:
    """Warm-start the policy and commit it as version 0; record its first observations for later evaluations."""
    if run.config.records_observations:
        run.folder.write_observations(await observe(run))
    if run.config.branch is not None:
        await _take_models(run, run.config.branch)
    elif run.config.warm_start is not None:
        run.folder.write_status("sft", 0, run.config.iterations)
        with span("warm start", "run", track="phases"):
            metrics = await sft(warm_start_key(run.config))
        if run.config.warm_start.until is not None:
            _record_warm_start(run, metrics)
    await publish(0)
    await begin_commit(0)
    await run.rollouts.start(0)
    return 0


async def _take_models(run: Run, branch: BranchConfig) -> None:
    """Start from the policy's weights in another run's checkpoint, with its critics and optimizers or fresh ones."""
    assert branch.iteration is not None
    weights = run.folder.path / "origin.safetensors"
    await run.session.restore(run.folder.origin.folder(branch.iteration))
    if branch.take == "models":
        await run.session.begin_with_models()
        return
    await run.session.export("save_weights_file", weights)
    await run.session.rebuild_models()  # critics begin afresh too
    await run.session.load_weights(weights)
    weights.unlink()


def _record_warm_start(run: Run, metrics: dict[str, Any]) -> None:
    """Record how the warm start ended; once, although a run that is killed before version 0 begins again."""
    if not any("sft/reached" in record for record in run.folder.metrics.read()):
        run.folder.metrics.append({"iteration": 0, **metrics})
    for tracker in run.trackers:
        tracker.log(0, metrics)


def summarize(run: Run) -> dict[str, Any]:
    """Return the content of ``summary.json`` for a finished run."""
    records = run.folder.metrics.read()
    seconds = sum(r.get("perf/iteration_seconds", 0.0) for r in records)
    return {
        "run_id": run.config.run_id,
        **run.config.summarize(records),
        "seed": run.config.seed,
        "train_seconds": round(seconds, 2),
        "iterations": run.config.iterations,
        "weights_digest": run.session.weights_digest,
        **({"roll_backs": len(roll_backs)} if (roll_backs := run.stages.ledger.roll_backs()) else {}),
        **({"unrestorable": unrestorable_lines(unrestorable)} if (unrestorable := run.folder.unrestorable()) else {}),
    }
