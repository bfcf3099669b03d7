"""Names of the columns of rows."""

FINAL = "final_"
"""Prefix of the columns with the observation after an episode's last action."""

COLUMNS = frozenset(
    (
        *("uid", "group_id", "policy_version", "seed", "instruction_ids", "action_tokens", "actions", "log_probs"),
        *("loss_mask", "env_task_id", "goal", "num_steps", "episode_return", "success", "terminated", "truncated"),
        *("final_state", "bootstrap_values", "prompt_tokens", "prompt_length", "response_length", "prompt_id"),
        *("rewards", "kl_penalty", "advantages", "old_log_probs", "ref_log_probs", "values", "returns", "scores"),
        *("progress_distance", "trained", "token_weights", "decision_weights", "selected"),
    )
)
"""Reserved column names (:mod:`embodyflow.types`), some of which exist only in parts of a run. Observations are columns
too, so they need other names."""
