"""The lifecycle of a training run. It is the same for every algorithm; algorithms differ in their graphs."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from prefect.logging import get_run_logger

from embodyflow.config.branch import BranchConfig
from embodyflow.graph import load_pipeline
from embodyflow.orchestration.display.reporting import report_end, report_progress, report_start, warn_of_unrestorable
from embodyflow.orchestration.evaluation.evaluation import film, is_filmed
from embodyflow.orchestration.request.request import (
    RunRequest,
    bind_to_flow_run,
    check,
    open_folder,
    stretched_schedule,
)
from embodyflow.orchestration.request.run_name import show_run_name
from embodyflow.orchestration.run.iteration import begin_commit, publish_and_save, run_iteration
from embodyflow.orchestration.run.lookahead import Lookahead
from embodyflow.orchestration.run.nodes import Run
from embodyflow.orchestration.run.open_run import open_run
from embodyflow.orchestration.run.parity import observe
from embodyflow.orchestration.run.recovery import restore, with_recovery
from embodyflow.orchestration.run.run_log import logged_to
from embodyflow.orchestration.run.storage_faults import storage_faults_explained
from embodyflow.orchestration.run.warm_start import sft, warm_start_key
from embodyflow.process.tracing import span
from embodyflow.record.model_card import write_model_card
from embodyflow.record.progress_line import progress_line
from embodyflow.record.run_folder import RunFolder, unrestorable_lines
from embodyflow.references import resolve


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
                async with open_run(folder, config, graph) as run:
                    return await _train(run, resumed=request.resume is not None or config.begins_at > 0)
        except Exception as error:
            _free_name(folder, error)
            raise


def _free_name(folder: RunFolder, error: Exception) -> None:
    """Remove the folder of a run that failed before its first commit, so that another attempt may have its name."""
    if folder.checkpoints.committed() or not folder.is_present():
        return
    try:
        folder.remove()
    except OSError as failed:  # such as on a disk that has become read-only
        error.add_note(f"{folder.path} was not removed: {failed}")


async def _train(run: Run, *, resumed: bool) -> dict[str, Any]:
    report_start(run)
    first = await with_recovery(run, "the start", partial(_start, run, resumed=resumed))
    lookahead = Lookahead(partial(_run_in_turn, run), run.turns.max_staleness, run.config.iterations)
    try:
        for index in range(first, run.config.iterations + 1):
            await with_recovery(run, f"iteration {index}", partial(_run_until, run, lookahead, index))
        await with_recovery(run, "the export", partial(_export, run, lookahead))
    finally:
        await lookahead.stop()
        await run.rollouts.stop()
    await run.stages.drain()
    summary = summarize(run)
    write_model_card(run.folder.path / "policy", run.config, summary)
    run.folder.write_summary(summary)
    report_end(run, summary)
    run.folder.write_status("done", run.config.iterations, run.config.iterations)
    return summary


async def _start(run: Run, *, resumed: bool) -> int:
    """Restore the last commit, or commit a warm-started policy as iteration 0; return the committed iteration."""
    if resumed:
        run.folder.summary_path.unlink(missing_ok=True)  # with more iterations a finished run is incomplete again
        last = await restore(run)
        get_run_logger().info("resumed after iteration %d", last)
        return last
    return await _begin(run)


async def _run_until(run: Run, lookahead: Lookahead, index: int) -> None:
    """Run whatever is left until an iteration is finished and, if due, evaluated.

    Usually that is the iteration itself. After a recovery it is everything since the restored commit, which is an
    earlier one than the last if that has a damaged checkpoint.
    """
    after = run.turns.last_finished
    await _evaluate_if_due(run, after)
    await lookahead.run_until(index, after)


async def _run_in_turn(run: Run, index: int) -> None:
    await run.turns.wait_to_roll_out(index)
    with span(f"iteration {index}", "iteration", track="iterations", iteration=index, run=str(run.config.run_id)):
        _log_progress(run, index, await run_iteration(run, index))
        report_progress(run, index)
        await _evaluate_if_due(run, index)
        run.turns.mark_finished(index)


async def _export(run: Run, lookahead: Lookahead) -> None:
    """Export the policy to the run's folder ``policy``."""
    await _run_until(run, lookahead, run.config.iterations)
    run.folder.require_present()
    with span("export", "run", track="phases"):
        await run.session.export("save_pretrained", run.folder.path / "policy")


async def _evaluate_if_due(run: Run, index: int) -> None:
    if not run.config.evaluates_after(index):
        return
    if run.folder.metrics.evaluation(index) is None:
        await resolve(run.config.evaluator)(run, index)
        _log_progress(run, index, run.folder.metrics.evaluation(index) or {})
    # Also if the process that evaluated was killed before this line.
    await run.stages.record_evaluation(index, run.session.weights_digest)
    if run.config.records_video_after(index) and not is_filmed(run, index):  # a run may fail between the two
        await film(run, index)
    run.folder.write_status("train", index, run.config.iterations)


def _log_progress(run: Run, index: int, metrics: Mapping[str, Any]) -> None:
    """Log a line of metrics in a few words, which is all that ``prefect deployment run --watch`` shows of it."""
    record = {**metrics, "iteration": index}
    if (line := progress_line(record, run.config.headline, run.config.iterations)) is not None:
        get_run_logger().info("%s", line)


async def _begin(run: Run) -> int:
    """Warm-start the policy and commit it as version 0; record its first observations for later evaluations."""
    if run.config.records_observations:
        run.folder.write_observations(await observe(run))
    if run.config.branch is not None:
        await _take_weights(run, run.config.branch)
    elif run.config.warm_start is not None:
        run.folder.write_status("sft", 0, run.config.iterations)
        with span("warm start", "run", track="phases"):
            metrics = await sft(warm_start_key(run.config))
        if run.config.warm_start.until is not None:
            _record_warm_start(run, metrics)
    await publish_and_save(0)
    begin_commit(0)
    await run.rollouts.start(0)
    return 0


async def _take_weights(run: Run, branch: BranchConfig) -> None:
    """Start from the policy's weights in another run's checkpoint, with fresh critics and optimizers."""
    assert branch.iteration is not None
    weights = run.folder.path / "origin.safetensors"
    await run.session.restore(run.folder.origin.folder(branch.iteration))
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
        **({"unrestorable": unrestorable_lines(unrestorable)} if (unrestorable := run.folder.unrestorable()) else {}),
    }
