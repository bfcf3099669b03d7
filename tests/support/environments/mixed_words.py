"""Overrides of small runs with two members: points that move in one dimension and in three."""

POINT = "id:'mixed_kinds:Point-v0'"
ADAPTED = "adapter:{success_info:success,expert:'mixed_kinds:towards_origin'}"
LINE = f"{POINT},{ADAPTED},tasks:[slide to the middle],max_steps:12,kwargs:{{dims:1,bound:2.0}}"
SPACE = f"{POINT},{ADAPTED},tasks:[fly home],max_steps:20,kwargs:{{dims:3,near:0.4}}"
SMALL = (
    *("policy.chunk_size=5", "policy.hidden_size=32", "rollout.num_workers=1", "rollout.envs_per_worker=4"),
    *("rollout.num_groups=4", "rollout.group_size=4", "evaluation.num_goals=8", "evaluation.video=false"),
    *("trainer.num_minibatches=1", "warm_start.num_demos=2", "warm_start.steps=30"),
)


def mixed_words(line: str = LINE, space: str = SPACE, *words: str) -> list[str]:
    """Return the overrides of a run with the members ``line`` and ``space``, each given in Hydra's grammar."""
    shipped = [f"~env.members.{name}" for name in ("reach", "lift", "pusht")]
    members = (f"+env.members.line={{{line}}}", f"+env.members.space={{{space}}}")
    return ["experiment=mixed", *shipped, *members, *SMALL, *words]
