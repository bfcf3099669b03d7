"""``embodyflow episodes``: the recorded episodes of a run, one per line."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.table import Column, Table
from rich.text import Text

from embodyflow.cli.episodes.conversations import COLUMNS as CONVERSATION_COLUMNS
from embodyflow.cli.episodes.conversations import conversation_cells
from embodyflow.cli.episodes.episode_tables import EpisodeRow, episode_row, mean_advantage, total_reward
from embodyflow.cli.tables import as_it_is, table_console
from embodyflow.config.agents.agent import AgentJobConfig
from embodyflow.config.composition.compose import validate_recorded
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.errors import ConfigError
from embodyflow.record.episodes.episode_record import read_episodes
from embodyflow.record.run_folder import RunFolder, unrestorable_lines

EPISODE_COLUMNS = ("uid", "iteration", "task", "goal", "outcome", "steps", "return", "score", "advantage")


@dataclass(frozen=True)
class EpisodeFilter:
    """Which episodes to list.

    Attributes:
        iteration: Iteration that played them; ``None`` for all.
        task: Name of their task; ``None`` for all.
        outcome: ``success`` or ``failure``; ``None`` for both.
        page: Number of the page, from 1.
        page_size: Most episodes of a page; 0 shows all of them.
    """

    iteration: int | None = None
    task: str | None = None
    outcome: Literal["success", "failure"] | None = None
    page: int = 1
    page_size: int = 0


def show_episodes(path: Path, chosen: EpisodeFilter | None = None) -> int:
    """Print the recorded episodes of a run, one per line.

    Args:
        path: Folder of the run.
        chosen: Episodes to list; ``None`` lists all.

    Raises:
        ConfigError: The folder does not hold a run with episodes, none is kept, or none is chosen.
    """
    folder, config = open_episodes(path)
    chosen = chosen or EpisodeFilter()
    tasks = config.env.tasks if isinstance(config, EmbodiedConfig) else None
    check_task(chosen, tasks)
    columns, cells = _layout(config)
    rows = [
        cells(iteration, episode)
        for iteration, episodes in read_episodes(folder)
        if chosen.iteration in (None, iteration)
        for episode in (episode_row(episodes, row) for row in range(len(episodes["uid"])))
        if is_chosen(chosen, tasks, episode)
    ]
    _print_page(Table(*(Column(name, overflow="fold") for name in columns), box=None), rows, chosen)
    for line in unrestorable_lines(folder.unrestorable()):
        print(line, file=sys.stderr)
    return 0


def check_task(chosen: EpisodeFilter, tasks: Sequence[str] | None) -> None:
    """Check that a run has the task of a filter; ``tasks`` are those of the run, ``None`` without tasks.

    Raises:
        ConfigError: It has no such task.
    """
    if chosen.task is not None and chosen.task not in (tasks or ()):
        raise ConfigError(f"--task={chosen.task}: allowed are {', '.join(tasks) if tasks else 'runs with env.tasks'}")


def open_episodes(path: Path) -> tuple[RunFolder, EmbodiedConfig | AgentJobConfig]:
    """Return the folder and the configuration of a run that records whole episodes.

    Raises:
        ConfigError: The folder does not hold such a run.
    """
    if not (path / "config.yaml").is_file():
        raise ConfigError(f"{path}: has no config.yaml; name the folder of a run, such as runs/mine")
    folder = RunFolder(path)
    config = validate_recorded(folder.config(), str(path))
    if not isinstance(config, EmbodiedConfig | AgentJobConfig):
        raise ConfigError(
            f"{path}: is a run with job={config.job}, which records no whole episodes; allowed are embodied and agent"
        )
    return folder, config


Cells = tuple[str | Text, ...]


def _layout(config: EmbodiedConfig | AgentJobConfig) -> tuple[tuple[str, ...], Callable[[int, EpisodeRow], Cells]]:
    """Return the columns of the list, and a function that maps an iteration and an episode to their cells."""
    if isinstance(config, AgentJobConfig):
        return CONVERSATION_COLUMNS, conversation_cells(config)
    return EPISODE_COLUMNS, lambda iteration, episode: _cells(config, iteration, episode)


def _cells(config: EmbodiedConfig, iteration: int, episode: EpisodeRow) -> Cells:
    values = (total_reward(episode), mean_advantage(episode))
    return (
        str(episode["uid"]),
        str(iteration),
        as_it_is(config.env.tasks[episode["env_task_id"]]),
        str(episode["goal"]),
        "success" if episode["success"] else "failure",
        str(episode["num_steps"]),
        f"{episode['episode_return']:.4g}",
        *(f"{value:.4g}" if value is not None else "dropped" for value in values),
    )


def is_chosen(chosen: EpisodeFilter, tasks: Sequence[str] | None, episode: EpisodeRow) -> bool:
    """Return True if a filter takes an episode; ``tasks`` are those of the run, ``None`` without tasks."""
    if chosen.task is not None and (tasks is None or tasks[episode["env_task_id"]] != chosen.task):
        return False
    if chosen.outcome is None:
        return True
    is_known = tasks is not None or episode["trained"]  # a dropped conversation has no recorded verdict
    return bool(is_known and chosen.outcome == ("success" if episode["success"] else "failure"))


def _print_page(table: Table, rows: list[Cells], chosen: EpisodeFilter) -> None:
    """Print the chosen page of the rows.

    Raises:
        ConfigError: The page has no rows.
    """
    size = chosen.page_size or max(len(rows), 1)
    shown = rows[(chosen.page - 1) * size : chosen.page * size]
    if not shown:
        pages = -(-len(rows) // size)
        raise ConfigError(f"--page={chosen.page}: {len(rows)} episodes are chosen, on {pages} pages")
    for cells in shown:
        table.add_row(*cells)
    table_console().print(table)
    if len(shown) < len(rows):
        more = f"; --page {chosen.page + 1} shows more" if chosen.page * size < len(rows) else ""
        print(f"page {chosen.page}: {len(shown)} of {len(rows)} episodes{more}", file=sys.stderr)
