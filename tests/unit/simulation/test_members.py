"""Several kinds of environments in one run: their padding, what is refused, and that all are checked."""

from typing import Any

import numpy as np
import pytest
from mixed_kinds import Point
from mixed_words import ADAPTED, LINE, POINT, SPACE, mixed_words
from refusals import refusal

from embodyflow.cli.environments.check_env import show
from embodyflow.config.composition.compose import compose_config, validate_config
from embodyflow.errors import ConfigError
from embodyflow.simulation.make_env import make_env


def test_the_members_say_what_the_run_plays() -> None:
    config = compose_config(mixed_words())
    assert config.env.id == "line+space" and config.env.max_steps == 20
    assert config.env.tasks == ("line/slide to the middle", "space/fly home")
    assert [config.env.max_steps_of(task) for task in (0, 1)] == [12, 20]
    assert (config.policy.state_dim, config.policy.action_dim) == (3, 3)
    assert config.policy.member_action_dims == (1, 3)


def test_a_stored_configuration_is_valid_as_it_is() -> None:
    config = compose_config(mixed_words())
    assert validate_config(config.model_dump(mode="json")) == config


def test_states_and_actions_are_padded_and_scaled() -> None:
    env = make_env(compose_config(mixed_words()).env, "line/slide to the middle", "train")
    plain = Point(dims=1, bound=2.0)
    observation, _ = env.reset(seed=3, options={"goal": 3})
    state, _ = plain.reset(seed=3)
    assert np.array_equal(observation["state"], np.array([state[0], 0, 0], np.float32))
    assert observation["member"].tolist() == [0]
    # 0.5 of the bound 2 is an action of 1, a step of 0.05; the other two numbers have no effect.
    after, _, _, _, _ = env.step(np.array([0.5, -1, 1], np.float32))
    assert after["state"] == pytest.approx([state[0] + 0.05, 0, 0], abs=1e-6)
    expert = env.unwrapped.expert_action()  # type: ignore[attr-defined]
    assert expert.tolist() == [-np.sign(state[0]), 0, 0]
    assert env.observation_space.contains(after) and env.action_space.shape == (3,)


def test_bounds_of_a_member_without_an_adapter_are_scaled_too() -> None:
    """An environment with goals of its own may have any bounds."""
    from embodyflow.simulation.member_env import MemberEnv, Padding

    class Goals(Point):
        instruction, num_goals = "move", {"train": 1, "demo": 1, "eval": 1}

        def expert_action(self) -> np.ndarray:
            return np.array([1.0, -2.0], np.float32)

    inner = Goals(dims=2, bound=4.0)
    env = MemberEnv(inner, 1, Padding(3, (1, 2, 3), {}))
    env.reset(seed=0)
    before = inner.at.copy()
    env.step(np.array([0.25, -1.0, 1.0], np.float32))  # own actions 1 and -4
    assert inner.at - before == pytest.approx([0.025, -0.1])
    assert env.expert_action().tolist() == [0.25, -0.5, 0.0]


def test_a_state_that_shrinks_is_an_error_and_not_padded() -> None:
    from embodyflow.simulation.member_env import MemberEnv, Padding

    class Shrinking(Point):
        instruction, num_goals = "move", {"train": 1, "demo": 1, "eval": 1}

        def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, *rest = super().step(action)
            return observation[:1], *rest  # type: ignore[return-value]

    env = MemberEnv(Shrinking(dims=2), 0, Padding(3, (2, 3), {}))
    env.reset(seed=0)
    with pytest.raises(
        ValueError, match=r"^its observation 'state' must be float32 \(2,\) as in its observation_space"
    ):
        env.step(np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("line", "space", "message"),
    [
        (
            LINE,
            f"{POINT},tasks:[fly home],max_steps:20,kwargs:{{dims:3,kind:images}},"
            "adapter:{success_info:success,images:{image:image}}",
            "env.members.space: shows the images image [16, 16, 3], env.members.line none; all members must show the "
            "same",
        ),
        (
            LINE,
            f"{POINT},{ADAPTED},tasks:[fly home],max_steps:20,kwargs:{{dims:3,kind:unbounded}}",
            "env.members.space: env.id=mixed_kinds:Point-v0: its actions must be discrete or a Box of floats with "
            "finite bounds, are Box(-inf, inf, (3,), float32); a wrapper can do it",
        ),
        (
            LINE,
            f"{POINT},{ADAPTED},tasks:[fly home],max_steps:20,kwargs:{{dims:3,bound:3.4e38}}",
            "env.members.space: env.id=mixed_kinds:Point-v0: its actions must be discrete or a Box of floats with "
            "finite bounds, are Box(-3.4e+38, 3.4e+38, (3,), float32); a wrapper can do it",
        ),
        (
            LINE,
            f"{POINT},tasks:[fly home],max_steps:20,kwargs:{{kind:discrete}},adapter:{{success_info:success}}",
            "env.members.space: actions must be a one-dimensional Box of floats to be padded, not Discrete(2)",
        ),
        (
            LINE,
            SPACE.replace("fly home", "slide to the middle"),
            "env.members: 'line/slide to the middle' and 'space/slide to the middle' have the same instruction "
            "'slide to the middle'; the policy tells members apart by it",
        ),
        (
            LINE,
            SPACE.replace("[fly home]", "[fly home,fly home]"),
            "env.members.space: tasks: 'fly home' is listed 2 times; allowed is once",
        ),
        (LINE, SPACE.replace("[fly home]", "[]"), "env.members.space.tasks: must list the instructions to follow"),
        (
            LINE,
            f"{SPACE},max_stepz:9",
            "env.members.space.max_stepz: no such key; did you mean env.members.space.max_steps or",
        ),
    ],
)
def test_members_that_do_not_fit_are_refused(line: str, space: str, message: str) -> None:
    assert message in refusal(*mixed_words(line, space))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "+env.max_steps=9",
            "env.max_steps: must not be set beside members; allowed is to leave it out, or "
            "env.members.<name>.max_steps",
        ),
        (
            "+env.kwargs.dims=9",
            "env.kwargs: must not be set beside members; allowed is to leave it out, or env.members.<name>.kwargs",
        ),
        ("~env.members.space", "env.members: there is one; allowed are two or more, or its keys in env itself"),
        ("rollout.num_groups=5", "rollout.num_groups=5 must be a multiple of 2, for equal shares of env.members"),
        (
            "policy.action_dim=3",
            "policy.member_action_dims: must be set with env.members; policy.action_dim=null sets it",
        ),
        (
            "policy.normalize_observations=true",
            "policy.normalize_observations=true: must be false with member_action_dims, whose states are standardised "
            "by the demonstrations of each member",
        ),
        (
            "policy.action_dim=3 +policy.member_action_dims=[3,2]",
            "policy.member_action_dims=[3, 2]: the actions of env.members have [1, 3] dimensions",
        ),
        ("warm_start.dataset=/nowhere", "warm_start.dataset: must be null with env.members, whose experts demonstrate"),
        ("policy=tiny_pi0 ~policy.hidden_size", "policy.name=pi0: allowed with env.members is tiny_vla"),
    ],
)
def test_keys_that_do_not_fit_members_are_refused(words: str, message: str) -> None:
    assert message in refusal(*mixed_words(LINE, SPACE, *words.split()))


def test_a_policy_of_members_needs_members() -> None:
    with pytest.raises(ConfigError, match=r"policy.member_action_dims=\[4, 4\]: must be null without env.members"):
        compose_config(["experiment=push", "+policy.member_action_dims=[4,4]"])


def test_members_have_equally_many_groups() -> None:
    """One task and three: the first member has every second group, the tasks of the second share the others."""
    space = SPACE.replace("[fly home]", "[fly home,float home,return]")
    config = compose_config(mixed_words(LINE, space, "rollout.num_groups=6"))
    assert config.env.turns == (0, 1, 0, 2, 0, 3)
    assert refusal(*mixed_words(LINE, space)).endswith(
        "rollout.num_groups=4 must be a multiple of 6, for equal shares of env.members"
    )


def test_check_env_checks_every_member(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in mixed_words() if "env.members" in word]
    assert show(None, ["experiment=mixed", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("env.")] == ["env.members.line", "env.members.space"]
