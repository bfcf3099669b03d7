"""Words of small off-policy runs in goal environments."""

REACHING = (
    *("env.id=goal_envs:Reaching-v0", "env.max_steps=5", "env.adapter.state=[observation,achieved_goal,desired_goal]"),
    *("policy.state_dim=6", "policy.action_dim=2"),
)
HINDSIGHT = (*REACHING, "off_policy.hindsight.ratio=4")
