"""``embodyflow replay``: a recorded episode, how it was trained on, and its replay."""

import errno
import os
import sys
from pathlib import Path

import numpy as np
import torch
from rich.table import Table

from embodyflow.algorithms.behavior import behavior_weights
from embodyflow.algorithms.kl import estimate_kl
from embodyflow.cli.episodes.conversations import conversation
from embodyflow.cli.episodes.episode_list import open_episodes
from embodyflow.cli.episodes.episode_tables import EpisodeRow, episode_row, mean_advantage, policy_loss, total_reward
from embodyflow.cli.tables import as_it_is, table_console
from embodyflow.config.agents.agent import AgentJobConfig
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.record.episodes.episode_record import Episodes, find_episode
from embodyflow.record.run_folder import RunFolder
from embodyflow.rollouts.replay import film, first_difference


def replay(path: Path, uid: int) -> int:
    """Replay an episode of a run, compare it with the record and print how it was trained on.

    A conversation is printed turn by turn and not replayed, because tools may answer otherwise today.

    Returns:
        0 if the replay is bit-identical to the record, or if the task's seed does not restore an episode; else 1.

    Raises:
        ConfigError: There is no such run or episode.
    """
    folder, config = open_episodes(path)
    console = table_console()
    if isinstance(config, AgentJobConfig):
        console.print(*conversation(folder, config, uid))
        return 0
    iteration, episodes, row = find_episode(folder, uid)
    episode = episode_row(episodes, row)
    console.print(_facts(config, iteration, episodes, episode))
    if episode["trained"]:
        console.print(_decisions(config, episode, _kl_coef(folder, config, iteration)))
    difference = first_difference(config, episode)
    task = config.env.tasks[int(episode["env_task_id"])]
    if line := folder.unrestorable().get(task):
        outcome = "equals the record this time" if difference is None else f"differs from the record; {difference}"
        print(f"replay: proves nothing, because {task} is not restored by its seed ({line}); it {outcome}")
    elif difference is not None:
        print(f"replay: differs from the record; {difference}", file=sys.stderr)
        return 1
    else:
        print(f"replay: bit-identical in {episode['num_steps']} steps: observations, return and outcome")
    print(f"video: {_filmed(folder, config, episode)}")
    return 0


def _filmed(folder: RunFolder, config: EmbodiedConfig, episode: EpisodeRow) -> str:
    """Write the animation of an episode; return its path, or the reason without one: the run may be another user's."""
    try:
        videos = folder.subfolder("videos")
        if not os.access(videos, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        return f"none, because {folder.path / 'videos'} cannot be written: {error.strerror}"
    video = videos / f"episode-{episode['uid']}.gif"
    return film(config, episode, video) or str(video)


def _facts(config: EmbodiedConfig, iteration: int, episodes: Episodes, episode: EpisodeRow) -> Table:
    """Return a table of the episode's facts, in comparison with its group."""
    table = Table(f"episode {episode['uid']}", "", box=None)
    siblings = episodes["group_id"] == episode["group_id"]
    facts = {
        "iteration": iteration,
        "policy version": episode["policy_version"],
        "task": config.env.tasks[episode["env_task_id"]],
        "goal": episode["goal"],
        "sampling seed": episode["seed"],
        "outcome": f"{'success' if episode['success'] else 'failure'} after {episode['num_steps']} steps",
        "environment return": f"{episode['episode_return']:.6g}",
        "group": f"{episode['group_id']}: {episodes['success'][siblings].sum()} of {siblings.sum()} succeeded",
    }
    if "progress_distance" in episode:
        facts["distance to success"] = f"{episode['progress_distance']:.4g} standard deviations"
    if episode["trained"]:
        scores = episodes["rewards"][siblings & episodes["trained"]].sum(axis=(1, 2))
        facts |= {
            "reward": f"{total_reward(episode):.4g}",
            "group rewards": f"mean {scores.mean():.4g}, standard deviation {scores.std(ddof=1):.4g}",
            f"advantage ({config.algorithm.advantage})": f"{mean_advantage(episode):.4g}",
        }
    else:
        facts["trained on"] = "no: its group was filtered out"
    for name, value in facts.items():
        table.add_row(name, as_it_is(value))
    return table


def _kl_coef(folder: RunFolder, config: EmbodiedConfig, iteration: int) -> float:
    """Return the KL coefficient of an iteration, from its metrics if the coefficient is adaptive."""
    of_iteration = (line for line in folder.metrics.read() if line["iteration"] == iteration)
    coefs = (line["policy/kl_coef"] for line in of_iteration if "policy/kl_coef" in line)  # skips evaluations
    return float(next(coefs, config.algorithm.kl.coef))


def _decisions(config: EmbodiedConfig, episode: EpisodeRow, kl_coef: float) -> Table:
    """Return a table of reward, advantage and loss per decision, as in the first optimizer step, at ratio 1."""
    algorithm = config.algorithm
    mask = torch.from_numpy(episode["loss_mask"])
    old, advantages = (torch.from_numpy(episode[name]) for name in ("old_log_probs", "advantages"))
    columns = {"reward": torch.from_numpy(episode["rewards"]), "advantage": advantages, "log-prob": old}
    if "ref_log_probs" in episode:  # a custom graph may have no reference
        reference = torch.from_numpy(episode["ref_log_probs"])
        columns["KL to reference"] = estimate_kl(old, reference, algorithm.kl.estimator)
    columns[f"loss ({algorithm.loss})"] = policy_loss(config.algorithm, old, advantages, mask)
    if algorithm.old_log_probs == "proximal":
        proximal, acted, seen = (each.reshape(1, -1) for each in (old, torch.from_numpy(episode["log_probs"]), mask))
        columns["weight"] = behavior_weights(proximal, acted, seen, algorithm).view_as(old)
        columns["weighted loss"] = columns["weight"] * columns[f"loss ({algorithm.loss})"]
    if algorithm.kl.coef > 0:
        columns[f"{kl_coef:g} x KL"] = kl_coef * columns["KL to reference"]
    table = Table(
        "decision",
        "tokens",
        *columns,
        box=None,
        title="per decision: sums over its tokens; means for advantage and weight",
    )
    for t in np.flatnonzero(episode["loss_mask"].any(axis=-1)).tolist():
        sums = {name: values[t][mask[t]].sum() for name, values in columns.items()}
        for name in sums.keys() & {"advantage", "weight"}:
            sums[name] /= mask[t].sum()
        table.add_row(str(t), str(int(mask[t].sum())), *(f"{float(value):.4g}" for value in sums.values()))
    return table
