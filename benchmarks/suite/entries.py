"""The comparisons of the suite, and the scripts that it leaves out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.suite import readers
from benchmarks.suite.figures import Figures

MAX_SECONDS = 1200
"""Limit of the whole suite: the seconds of all entries together."""


@dataclass(frozen=True)
class Entry:
    """A benchmark against a peer in its quick form.

    Attributes:
        script: Module below ``benchmarks``, such as ``robots.vector_env``. It takes ``--output``.
        title: Subject of the comparison, and the peer.
        arguments: Its arguments in the quick form.
        packages: Distributions that it needs beyond those of ``pip install embodyflow``.
        read: Function from the JSON document that it writes to figures.
        max_spread: Largest spread of the ratio with which the machine counts as quiet.
        max_seconds: Seconds after which it is stopped.
        variables: Environment variables that it needs.
    """

    script: str
    title: str
    arguments: tuple[str, ...]
    packages: tuple[str, ...]
    read: Callable[[Any], Sequence[Figures]]
    max_spread: float
    max_seconds: int
    variables: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the script without its folder, which is the name of the entry."""
        return self.script.rpartition(".")[2]


ENTRIES = (
    Entry(
        script="robots.vector_env",
        title="Vector environments, beside Gymnasium's and Stable-Baselines3's",
        arguments=("--rounds", "5", "--steps", "60"),
        packages=("gymnasium", "stable-baselines3", "metaworld", "mujoco"),
        read=readers.vector_env,
        max_spread=0.15,
        max_seconds=150,
    ),
    Entry(
        script="robots.libero_steps",
        title="LIBERO by states, beside robosuite",
        arguments=("--quick",),
        packages=("hf-libero", "robosuite"),
        read=readers.libero_steps,
        max_spread=0.1,
        max_seconds=45,
        variables=("LIBERO_ASSETS",),
    ),
    Entry(
        script="robots.libero_images",
        title="LIBERO with images, beside its own SubprocVectorEnv",
        arguments=("--rounds", "5"),
        packages=("hf-libero", "robosuite"),
        read=readers.libero_images,
        max_spread=0.2,
        max_seconds=105,
        variables=("LIBERO_ASSETS",),
    ),
    Entry(
        script="orchestration.data_plane",
        title="Rows between worker groups, beside Ray references",
        arguments=("--quick", "--megabytes", "100"),
        packages=("ray",),
        read=readers.data_plane,
        max_spread=0.3,
        max_seconds=100,
    ),
    Entry(
        script="orchestration.planning",
        title="Plans of a redistribution, beside verl",
        arguments=("--quick",),
        packages=("verl",),
        read=readers.planning,
        max_spread=0.15,
        max_seconds=30,
    ),
    Entry(
        script="language.generation",
        title="Generation, beside transformers' generate",
        arguments=("--quick",),
        packages=("transformers",),
        read=readers.generation,
        max_spread=0.15,
        max_seconds=85,
    ),
    Entry(
        script="language.llm_grpo",
        title="An iteration of GRPO on a language model, beside TRL",
        arguments=("--rounds", "5", "--workloads", "64 responses of 32 tokens", "64 long-tailed responses"),
        packages=("transformers", "trl"),
        read=readers.llm_grpo,
        max_spread=0.15,
        max_seconds=100,
    ),
    Entry(
        script="agents.agent_against_trl",
        title="Rollouts with a tool, beside TRL",
        arguments=("--quick", "--rounds", "5"),
        packages=("transformers", "trl", "jmespath"),
        read=readers.agent_against_trl,
        max_spread=0.2,
        max_seconds=130,
    ),
    Entry(
        script="control.ppo_control",
        title="PPO with Ray and Prefect, beside Stable-Baselines3",
        arguments=("--experiment", "half_cheetah", "--iterations", "4", "--seeds", "0", "1", "2"),
        packages=("stable-baselines3", "ray", "prefect"),
        read=readers.ppo_control,
        max_spread=0.2,
        max_seconds=230,
    ),
    Entry(
        script="control.off_policy",
        title="SAC in one process, beside Stable-Baselines3",
        arguments=("--steps", "500"),
        packages=("stable-baselines3",),
        read=readers.off_policy,
        max_spread=0.15,
        max_seconds=130,
    ),
    Entry(
        script="orchestration.orchestration",
        title="Seven empty nodes with Ray and commit, beside plain Prefect",
        arguments=("--quick",),
        packages=("prefect", "ray"),
        read=readers.orchestration,
        max_spread=0.3,
        max_seconds=95,
    ),
)

_LEARNING = "it measures learning, which takes many iterations and seeds"
_OWN = "it compares ways of our own; no peer runs in it"
_FAULTS = "it is a campaign of faults or growth; no peer runs in it"
_PART = "it is a part of other benchmarks, which import it"

LEFT_OUT = {
    "agents.agent_generation": _OWN,
    "agents.agent_learning": _LEARNING,
    "control.hindsight": _LEARNING,
    "control.success": _LEARNING,
    "language.algorithms": _LEARNING,
    "robots.batched_env": "it measures the share of a simulator's own speed that is left",
    "commands": _PART,
    "operations.chaos": _FAULTS,
    "control.cleanrl": "its peer is a package for another version of Gymnasium, in a folder of its own",
    "control.traced_steps": _OWN,
    "robots.act_dataset": _LEARNING,
    "robots.temporal_ensemble": _LEARNING,
    "robots.dagger": _LEARNING,
    "orchestration.durability": _OWN,
    "orchestration.durability_account": _OWN,
    "orchestration.empty_nodes": _PART,
    "operations.endurance": _FAULTS,
    "robots.env_faults": _FAULTS,
    "orchestration.evaluation_beside": _OWN,
    "robots.exploration": _LEARNING,
    "gpu": "needs a CUDA device",
    "operations.forecast": "it compares forecasts with runs of our own; no peer runs in it",
    "operations.head_memory": _OWN,
    "operations.health": _FAULTS,
    "control.contenders": _PART,
    "control.in_process": _PART,
    "robots.learning": _LEARNING,
    "robots.members": _LEARNING,
    "language.llm_bound": "it compares a bound with a peer, not ours",
    "language.long_tails": _PART,
    "language.math_learning": _LEARNING,
    "language.peers_formulas": "it compares values with a peer's, not speed",
    "operations.planted_collapses": _PART,
    "control.ppo_bound": "it compares a bound with a peer, not ours",
    "control.ppo_normalized": _LEARNING,
    "orchestration.processes": _PART,
    "language.real_model": _LEARNING,
    "control.replay": "it measures ours alone; no peer runs in it",
    "control.replay_images": "it measures ours alone; no peer runs in it",
    "robots.offline": _LEARNING,
    "report": _PART,
    "operations.retention": _FAULTS,
    "operations.copied_runs": _PART,
    "operations.evictions": _FAULTS,
    "operations.interruptions": _PART,
    "operations.requeues": _FAULTS,
    "operations.full_database": "it times Prefect's server with much in its database; no peer runs in it",
    "operations.queued_runs": _FAULTS,
    "robots.rlpd": _LEARNING,
    "agents.scripted_ring": _PART,
    "agents.slow_calculator": _PART,
    "agents.slow_tools": _OWN,
    "agents.self_play": _LEARNING,
    "agents.siirl_agents": "it shows that a peer's graphs run; their own code is not timed",
    "orchestration.siirl_graphs": "it shows that a peer's graphs run; their own code is not timed",
    "robots.full_size": "it measures memory and seconds of ours alone; no peer runs in it",
    "robots.random_checkpoints": _PART,
    "robots.slow_environments": _OWN,
    "robots.slow_libero": _PART,
    "robots.slow_steps": _PART,
    "operations.slow_link": "it compares links between our own machines; no peer runs in it",
    "operations.soak": _FAULTS,
    "robots.srpo": _LEARNING,
    "language.staleness": _OWN,
    "orchestration.start": "its peer is a flow that trains nothing",
    "language.streaming": _OWN,
    "operations.tracing": _OWN,
    "operations.watched_run": _PART,
    "orchestration.weights_memory": _OWN,
}
"""Modules below ``benchmarks`` that are not in the suite, each with the reason."""
