"""Node functions: one verb each, run on the Ray workers that hold the rows.

Every function has the form ``f(batch, config=None, *, worker, call, **kwargs) -> NodeOutput``. ``batch`` has the rank's
rows, ``config`` is the node's configuration, ``worker`` is the engine of this rank (:mod:`embodyflow.nodes.engines`),
and ``call`` knows iteration and seed (:mod:`embodyflow.nodes.context`). A pipeline names a function
``"tasks:generate"``. Your own function goes in the same place as ``"my_module:my_function"``, and may ignore the
keywords.
"""

from tasks.classifier import classify_success
from tasks.control import collect_steps, evaluate_returns, split_decisions, value_steps
from tasks.critic import compute_value, train_actor_critic, train_critic
from tasks.dagger import label_episodes, store_labels, train_on_labels
from tasks.episodes import keep_episodes
from tasks.evaluation import (
    contact_sheet,
    evaluate_policy,
    measure_warm_start,
    observe,
    play_evaluation,
    record_video,
)
from tasks.log_probs import compute_old_log_prob, compute_ref_log_prob
from tasks.off_policy import store_episodes, store_transitions, train_off_policy, train_offline
from tasks.progress import score_progress
from tasks.rewards import (
    compute_advantage,
    compute_agent_baseline,
    compute_baseline,
    compute_kl_penalty,
    compute_reward,
)
from tasks.rollout import demonstrate, gather_groups, generate
from tasks.sampling import dynamic_sampling, filter_groups
from tasks.training import fit, fit_further, train_actor

embodied_sampling = filter_groups  # the name in siiRL's graphs

__all__ = [
    "classify_success",
    "collect_steps",
    "compute_advantage",
    "compute_agent_baseline",
    "compute_baseline",
    "compute_kl_penalty",
    "compute_old_log_prob",
    "compute_ref_log_prob",
    "compute_reward",
    "compute_value",
    "contact_sheet",
    "demonstrate",
    "dynamic_sampling",
    "embodied_sampling",
    "evaluate_policy",
    "evaluate_returns",
    "filter_groups",
    "fit",
    "fit_further",
    "gather_groups",
    "generate",
    "keep_episodes",
    "label_episodes",
    "measure_warm_start",
    "observe",
    "play_evaluation",
    "record_video",
    "score_progress",
    "split_decisions",
    "store_episodes",
    "store_labels",
    "store_transitions",
    "train_actor",
    "train_actor_critic",
    "train_critic",
    "train_off_policy",
    "train_offline",
    "train_on_labels",
    "value_steps",
]
