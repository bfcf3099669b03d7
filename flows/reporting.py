"""What people look at in the Prefect UI: progress, numbers, the learning curve."""

import asyncio
import base64
import io
import math
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx
import matplotlib
from prefect.artifacts import (
    acreate_image_artifact,
    acreate_link_artifact,
    acreate_markdown_artifact,
    acreate_progress_artifact,
    acreate_table_artifact,
    aupdate_progress_artifact,
)
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from embodyflow.config import RunConfig
from embodyflow.run_folder import RunFolder

matplotlib.use("Agg")
from matplotlib.figure import Figure

SHOWN = (
    "rollout/success_rate",
    "rollout/reward",
    "groups/mixed_fraction",
    "policy/kl_to_reference",
    "policy/entropy",
    "perf/env_steps_per_second",
    "perf/iteration_seconds",
)
NUMBERS_SECONDS, CURVE_SECONDS = 2.0, 10.0
"""How often progress and table, and the picture, are renewed: faster than that nobody reads."""


class Reporter:
    """Keeps a run's artifacts in the Prefect UI up to date, beside the training and never in its way.

    Args:
        config: of the run.
        folder: where the numbers are.
    """

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self._config, self._folder = config, folder
        self._progress_id: UUID | None = None
        self._done = 0
        self._news = asyncio.Event()
        self._curve_at = -math.inf

    async def start(self) -> None:
        """Create the progress bar and the link to the run's folder."""
        self._progress_id = await acreate_progress_artifact(
            0.0, key=self._key("progress"), description=f"{self._config.iterations} iterations"
        )
        uri = self._folder.path.absolute().as_uri()
        await acreate_link_artifact(
            uri,
            link_text=str(self._folder.path),
            key=self._key("folder"),
            description="numbers, checkpoints, pictures, the policy",
        )

    def iteration_done(self, index: int) -> None:
        """Take note of a committed iteration."""
        self._done = index
        self._news.set()

    async def keep_up(self) -> None:
        """Show what is new, for as long as nobody cancels it."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._show_numbers()
                if time.monotonic() - self._curve_at >= CURVE_SECONDS:
                    await self._show_curve()
            except (httpx.HTTPError, PrefectException):  # the run outlives its server; the next news tries again
                get_run_logger().warning("the artifacts in the UI are behind the run", exc_info=True)
            await asyncio.sleep(NUMBERS_SECONDS)

    async def finished(self, summary: dict[str, Any]) -> None:
        """Show the last numbers, the summary and the whole curve."""
        await self._show_numbers()
        table = summary_table(summary)
        await acreate_markdown_artifact(table, key=self._key("summary"), description="what training has changed")
        await self._show_curve()

    async def _show_numbers(self) -> None:
        assert self._progress_id is not None
        await aupdate_progress_artifact(self._progress_id, 100.0 * self._done / self._config.iterations)
        records = [record for record in self._folder.metrics() if "rollout/num_episodes" in record]
        table = [{"iteration": r["iteration"], **{name: _short(r.get(name)) for name in SHOWN}} for r in records[-20:]]
        await acreate_table_artifact(table, key=self._key("metrics"), description="latest iterations")

    async def _show_curve(self) -> None:
        self._curve_at = time.monotonic()
        picture = await asyncio.to_thread(draw_curve, self._folder.metrics(), str(self._config.run_id))
        (self._folder.subfolder("plots") / "learning_curve.png").write_bytes(picture)
        await show_picture(self._config, "learning-curve", picture, "over iterations")

    def _key(self, name: str) -> str:
        return _artifact_key(self._config, name)


async def show_examples(config: RunConfig, index: int, examples: list[dict[str, Any]]) -> None:
    """Show what the policy did in the evaluation after iteration ``index``, as a table."""
    await show_table(config, "examples", examples, f"after iteration {index}")


async def show_table(config: RunConfig, name: str, rows: list[dict[str, Any]], description: str) -> None:
    """Show a table under a name of the run's."""
    table = [{column: _short(value) for column, value in row.items()} for row in rows]
    await acreate_table_artifact(table, key=_artifact_key(config, name), description=description)


async def show_picture(config: RunConfig, name: str, picture: bytes, description: str) -> None:
    """Show a PNG under a name of the run's."""
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    await acreate_image_artifact(url, key=_artifact_key(config, name), description=description)


@asynccontextmanager
async def reporting(config: RunConfig, folder: RunFolder) -> AsyncIterator[Reporter]:
    """Report a run to the UI while the block runs."""
    reporter = Reporter(config, folder)
    await reporter.start()
    keeping_up = asyncio.create_task(reporter.keep_up())
    try:
        yield reporter
    finally:
        keeping_up.cancel()
        await asyncio.wait([keeping_up])
    if not keeping_up.cancelled():
        keeping_up.result()  # raises what ended it early


def _artifact_key(config: RunConfig, name: str) -> str:
    # Prefect allows lower-case letters, digits and dashes.
    return re.sub(r"[^a-z0-9]+", "-", f"{config.run_id}-{name}".lower()).strip("-")


def draw_curve(records: list[dict[str, Any]], title: str) -> bytes:
    """Return a PNG of success, groups with both outcomes and entropy over iterations.

    Args:
        records: lines of ``metrics.jsonl``.
        title: of the picture.
    """
    figure = Figure(figsize=(7, 3.2), dpi=110)
    margins = {"left": 0.08, "right": 0.985, "bottom": 0.15, "top": 0.9, "wspace": 0.24}  # a layout engine draws twice
    axes = figure.subplots(1, 2, width_ratios=(2, 1), gridspec_kw=margins)
    training = [r for r in records if "rollout/num_episodes" in r]
    goal = "success_rate" if any("rollout/success_rate" in r for r in training) else "reward"
    evaluated = [r for r in records if "eval/greedy_success_rate" in r]
    steps = [r["iteration"] for r in training]
    axes[0].plot(steps, [r.get(f"rollout/{goal}") for r in training], ".-", lw=1, label="training, sampled")
    mixed = [r.get("groups/mixed_fraction") for r in training]
    if any(fraction is not None for fraction in mixed):
        axes[0].plot(steps, mixed, ":", color="tab:gray", lw=1, label="groups with both outcomes")
    for mode, marker in (("greedy", "o"), ("sampled", "s")):
        rates = [r[f"eval/{mode}_success_rate"] for r in evaluated]
        below = [max(0.0, x - r[f"eval/{mode}_success_low"]) for x, r in zip(rates, evaluated, strict=True)]
        above = [max(0.0, r[f"eval/{mode}_success_high"] - x) for x, r in zip(rates, evaluated, strict=True)]
        at = [r["iteration"] for r in evaluated]
        axes[0].errorbar(at, rates, (below, above), fmt=marker, capsize=3, label=f"unseen goals, {mode}")
    for each in axes:
        each.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set(xlabel="iteration", ylabel=goal.replace("_", " "), title=title)
    if goal == "success_rate":
        axes[0].set(ylim=(-0.02, 1.04))
    axes[0].legend(fontsize=8, loc="lower right")
    axes[1].plot(steps, [r.get("policy/entropy") for r in training], ".-", lw=1)
    axes[1].set(xlabel="iteration", title="entropy per token")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def summary_table(summary: dict[str, Any]) -> str:
    """Return Markdown: what was measured before and after side by side, then everything else."""
    stems = [name.removesuffix("_before") for name in summary if name.endswith("_before")]
    pairs = {stem: (summary[f"{stem}_before"], summary[f"{stem}_after"]) for stem in stems}
    rest = {name: (value,) for name, value in summary.items() if name.rpartition("_")[0] not in pairs}
    tables = [_table(("before", "after"), pairs), _table(("",), rest)]
    return "\n".join(table for table in tables if table)


def _table(header: Sequence[str], rows: dict[str, tuple[Any, ...]]) -> str:
    if not rows:
        return ""
    cells = [["", *header], ["---"] * (1 + len(header))]
    cells += [[name.replace("_", " "), *map(str, map(_short, values))] for name, values in rows.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(str(_short(each)) for each in value)
    return f"{value:.4g}" if isinstance(value, float) else value
