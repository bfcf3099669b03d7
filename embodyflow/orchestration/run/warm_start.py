"""Warm start: supervised fine-tuning on demonstrations, cached per configuration."""

import hashlib
import json
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger

import embodyflow
from embodyflow.config import RunConfig
from embodyflow.config.run import WarmStartUntilConfig
from embodyflow.data.metrics import merge_metrics, to_floats
from embodyflow.orchestration.run.iterations.nodes import CURRENT_RUN
from embodyflow.orchestration.server.subflow_heartbeats import subflow_heartbeats
from embodyflow.workers.calls import NodeReport, NodeWork
from embodyflow.workers.rows.layout import Layout


def warm_start_key(config: RunConfig) -> str:
    """Return the cache key of a warm start: a digest of everything that its weights depend on."""
    files = [_fingerprint(Path(name).expanduser()) for name in config.warm_start_files]
    parts = config.warm_start_facts() | {"version": embodyflow.__version__, "files": files}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _cache_key(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    return f"warm-start-{parameters['key']}-{Path(parameters['path']).absolute()}"


@task(name="warm_start", task_run_name="warm_start", cache_key_fn=_cache_key, persist_result=True)
async def warm_start(key: str, path: str) -> dict[str, Any]:
    """Collect demonstrations, fit the policy to them and write its weights to ``path``.

    Returns:
        The file's SHA-256 and the metrics of the fit. Prefect caches them under the key, so the next run with the same
        configuration reuses the file.
    """
    session, logger = CURRENT_RUN.get().session, get_run_logger()
    demos = await session.run_node(NodeWork("demonstrate", "tasks:demonstrate", "rollout", 0))
    logger.info("recorded %d demonstrations in %.1f s", demos.num_rows, demos.seconds)
    fitted = await session.run_node(NodeWork("fit", "tasks:fit", "trainer", 0, layout=Layout.REPLICATE), [demos])
    logger.info("fitted the policy in %.1f s", fitted.seconds)
    config = session.config.warm_start
    assert config is not None
    measured: dict[str, float] = {}
    if config.until is not None:
        fitted, measured = await _fit_until(config.until, config.steps, fitted)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    await session.export("save_weights_file", Path(path))
    await session.free("0/")
    return {"sha256": _sha256(path), "metrics": to_floats(merge_metrics([demos.metrics, fitted.metrics])) | measured}


async def _fit_until(
    until: WarmStartUntilConfig, steps: int, fitted: NodeReport
) -> tuple[NodeReport, dict[str, float]]:
    """Measure the policy and fit it further until it has the wanted quality or the number of steps is exhausted.

    Args:
        until: Wanted quality and bound.
        steps: Optimizer steps taken so far.
        fitted: Report of the fit so far.

    Returns:
        Report of the last fit, and the metrics of the last measurement.
    """
    session, logger = CURRENT_RUN.get().session, get_run_logger()
    while True:
        # Rollout workers load weights when the version changes. Those of RL begin at 0, and -1 means none.
        await session.publish_weights(-1 - steps)
        work = NodeWork(f"measure_{steps}", "tasks:measure_warm_start", "rollout", 0)
        measured = to_floats((await session.run_node(work)).metrics)
        success = measured["sft/success_rate"]
        logger.info("sampled success %.3f after %d steps of the warm start", success, steps)
        if success >= until.success or steps >= until.max_steps:
            break
        more = min(until.every, until.max_steps - steps)
        steps += more
        # A worker runs a training node of this name once, so every stretch has its own.
        work = NodeWork(f"fit_{steps}", "tasks:fit_further", "trainer", 0, {"num_steps": more})
        fitted = await session.run_node(work)
    if success < until.success:
        logger.warning(
            "warm_start.until.success=%g: not reached; sampled success is %.3f after warm_start.until.max_steps=%d",
            until.success,
            success,
            until.max_steps,
        )
    return fitted, measured | {"sft/reached": float(success >= until.success)}


@flow(name="sft", flow_run_name="sft-{key}", persist_result=False)
async def sft(key: str) -> dict[str, Any]:
    """Load the warm-started weights into the trainer, from the cache if possible; return the metrics of the fit."""
    run = CURRENT_RUN.get()
    path = str(Path(run.config.run_root).absolute() / ".warm_start" / f"{key}.safetensors")
    async with subflow_heartbeats():
        result = await warm_start(key, path)
        if not Path(path).is_file() or _sha256(path) != result["sha256"]:
            get_run_logger().warning("%s is missing or damaged; repeating the warm start", path)
            result = await warm_start.with_options(refresh_cache=True)(key, path)
        await run.session.load_weights(Path(path))
    metrics: dict[str, Any] = result["metrics"]
    return metrics


def _fingerprint(path: Path) -> Any:
    """Return a value that changes when a file or folder changes; ``None`` if there is neither at the path."""
    if path.is_file():
        return _sha256(str(path))
    # A model's folder may have many GB, so its files are compared by size and modification time.
    files = sorted(file for file in path.rglob("*") if file.is_file())
    stats = [(str(file.relative_to(path)), file.stat()) for file in files]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats] or None


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
