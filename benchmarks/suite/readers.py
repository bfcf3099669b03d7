"""Figures in the result files of the benchmarks: a function for each script, from its document."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.suite.figures import Figures

OURS = "embodyflow"
SB3 = "stable-baselines3"


def vector_env(document: Mapping[str, Any]) -> list[Figures]:
    """Return steps per second, beside the fastest peer of each environment."""
    figures = []
    for each in document["comparisons"]:
        steps, contenders = document["num_envs"] * each["steps_per_round"], each["contenders"]
        ours, theirs = (
            tuple(steps / seconds for seconds in contenders[each[who]]["wall_seconds_per_round"])
            for who in ("ours", "best_peer")
        )
        case = f"{each['environment']}, chunks of {each['chunk_size']}"
        figures.append(Figures(case, each["best_peer"], "steps/s", ours, theirs, lower_is_better=False))
    return figures


def libero_steps(document: Mapping[str, Any]) -> list[Figures]:
    """Return steps of states per CPU second."""
    return [
        _rates(task, "robosuite", "steps/CPU s", rates["ours"], rates["robosuite"])
        for task, rates in document["steps_per_cpu_second_per_round"].items()
    ]


def libero_images(document: Mapping[str, Any]) -> list[Figures]:
    """Return steps with images per second."""
    peer = "LIBERO SubprocVectorEnv"
    figures = []
    for each in document["comparisons"]:
        rates = each["steps_per_wall_second_per_round"]
        figures.append(_rates(f"images, chunks of {each['chunk_size']}", peer, "steps/s", rates[OURS], rates[peer]))
    return figures


def data_plane(document: Mapping[str, Any]) -> list[Figures]:
    """Return the times until every target holds its rows, beside Ray references."""
    figures = []
    for each in document["results"]:
        (sources, targets), peer = each["layout"], "ray refs"
        ours, theirs = (each[name]["deliver_ms_per_round"] for name in ("ours", peer))
        case = f"{each['megabytes']} MB {each['kind']}, {sources} → {targets}"
        figures.append(_times(case, "Ray references", "ms", ours, theirs))
    return figures


def planning(document: Sequence[Mapping[str, Any]]) -> list[Figures]:
    """Return the times of a plan, for the cases that the peer has planned too."""
    return [
        _times(
            f"{each['rows']:,} rows, {each['sources']} → {each['targets']}, nodes: {each['nodes']}",
            "verl",
            "ms",
            each["ours_ms_per_round"],
            each["verl_ms_per_round"],
        )
        for each in document
        if each["peer"]
    ]


def generation(document: Mapping[str, Any]) -> list[Figures]:
    """Return completion tokens per second of our transformers engine, beside transformers' ``generate``."""
    figures = []
    for each in document["comparisons"]:
        peer, key = "transformers generate", "tokens_per_wall_second_per_round"
        ours, theirs = (each["contenders"][name][key] for name in ("embodyflow hf", peer))
        figures.append(_rates(each["workload"], peer, "tokens/s", ours, theirs))
    return figures


def llm_grpo(document: Mapping[str, Any]) -> list[Figures]:
    """Return the times of an iteration of GRPO."""
    figures = []
    for each in document["comparisons"]:
        seconds = each["seconds_per_round"]
        figures.append(_times(each["workload"], "TRL", "s", seconds[OURS], seconds["trl"]))
    return figures


def agent_against_trl(document: Mapping[str, Any]) -> list[Figures]:
    """Return the times of the rollouts of 64 episodes with a tool."""
    figures = []
    for each in document["comparisons"]:
        ours, theirs = (each["contenders"][name]["seconds"] for name in (OURS, "trl GRPOTrainer"))
        figures.append(_times(f"64 episodes, {each['workload']} tools", "TRL", "s", ours, theirs))
    return figures


def ppo_control(document: Mapping[str, Any]) -> list[Figures]:
    """Return steps per second; each seed is a round."""
    return [
        _rates(experiment, SB3, "steps/s", ours, theirs)
        for experiment, ours, theirs in _by_seed(document["runs"], "steps_per_wall_second")
    ]


def off_policy(document: Mapping[str, Any]) -> list[Figures]:
    """Return CPU seconds of equally many steps and updates; each seed is a round."""
    return [
        _times(experiment, SB3, "CPU s", ours, theirs)
        for experiment, ours, theirs in _by_seed(document["runs"], "cpu_seconds")
    ]


def orchestration(document: Mapping[str, Any]) -> list[Figures]:
    """Return the times of an iteration of empty nodes, beside an empty flow of as many tasks; each block is a round."""
    names = {"ours": "a task run per node", "one": "a task run per iteration"}
    return [
        _times(f"{name}, {database}", "plain Prefect", "ms", blocks[kind], blocks["plain"])
        for database, blocks in document["milliseconds_per_block"].items()
        for kind, name in names.items()
    ]


def _rates(case: str, peer: str, unit: str, ours: Sequence[float], theirs: Sequence[float]) -> Figures:
    return Figures(case, peer, unit, tuple(ours), tuple(theirs), lower_is_better=False)


def _times(case: str, peer: str, unit: str, ours: Sequence[float], theirs: Sequence[float]) -> Figures:
    return Figures(case, peer, unit, tuple(ours), tuple(theirs), lower_is_better=True)


def _by_seed(runs: Sequence[Mapping[str, Any]], key: str) -> list[tuple[str, list[float], list[float]]]:
    """Return each experiment with a value of our runs and of Stable-Baselines3's, both in the order of the seeds."""
    found = []
    for experiment in sorted({run["experiment"] for run in runs}):
        ours, theirs = (
            {run["seed"]: run[key] for run in runs if (run["experiment"], run["contender"]) == (experiment, name)}
            for name in (OURS, SB3)
        )
        if ours.keys() != theirs.keys():
            raise ValueError(f"{experiment}: the seeds of the contenders differ: {sorted(ours)} and {sorted(theirs)}")
        found.append((experiment, [ours[seed] for seed in sorted(ours)], [theirs[seed] for seed in sorted(ours)]))
    return found
