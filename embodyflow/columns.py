"""Names of the columns of rows."""

FINAL = "final_"
"""Prefix of the columns with the observation after an episode's last action."""

INTERNAL = {
    "progress_distance": "Distance of an episode to the nearest success, in standard deviations (SRPO); float32 [N].",
    "solved_at_reset": "Whether an evaluation's goal was reached before the policy acted; bool [N].",
    "trained": "Whether the record of a played episode is of one that was trained on; bool [N].",
    "token_weights": "Weight of a token in its mini-batch's loss; float64 [N, T, L].",
    "decision_weights": "Weight of a value in its mini-batch's critic loss; float64 [N, T·V].",
    "token_staleness": "Versions between the policy that sampled a token and the trainer's; int [N, T, L].",
    "selected": "Whether `clip_cov` or `kl_cov` treats a token apart; bool [N, T, L].",
}
"""Columns that only one part of a run adds and reads, with their meanings."""

COLUMNS = frozenset(
    (
        *("uid", "group_id", "policy_version", "seed", "instruction_ids", "action_tokens", "actions", "log_probs"),
        *("loss_mask", "env_task_id", "goal", "num_steps", "episode_return", "success", "terminated", "truncated"),
        *("token_origin", "token_context", "token_turn", "token_turn_reward", "token_agent", "token_agent_reward"),
        "token_baseline",
        *("num_turns", "tool_calls", "tool_mistakes", "rewarded", "agents_rewarded", "own_reward", "own_success"),
        *("final_state", "bootstrap_values", "prompt_tokens", "prompt_length", "response_length", "prompt_id"),
        *("rewards", "kl_penalty", "advantages", "old_log_probs", "ref_log_probs", "values", "returns", "scores"),
        *("token_version", "baseline", "expert_actions", "labelled", "by_expert"),
        *INTERNAL,
    )
)
"""Reserved column names (:mod:`embodyflow.types`), some of which exist only in parts of a run. Observations are columns
too, so they need other names."""
