"""Natively batched environments that cannot be used as configured: one line that names the key and what is allowed."""

import re

import pytest
from refusals import refusal

from embodyflow.config.composition.compose import compose_config

SIZES = ("policy.state_dim=null", "policy.action_dim=null")
CONTROL = ("experiment=reacher", "env.max_steps=12", "rollout.envs_per_worker=4", "rollout.num_steps=16", *SIZES)
BATCH = "env.vector.mode=entry_point"
AUTOMATIC = "env.vector.resets=automatic"
SAME_STEP, NEXT_STEP = "+env.kwargs.autoreset=SameStep", "+env.kwargs.autoreset=NextStep"
POINTS = "env.id=point_masses:tests/Points-v0"


def odd(kind: str) -> str:
    return f"env.id=odd_batches:{kind}-v0"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("env.id=Reacher-v5", BATCH), "env.vector.mode=entry_point: env.id=Reacher-v5 is registered without a "),
        (("env.id=point_masses:tests/PointsOnly-v0", "env.vector.mode=sync"), "env.vector.mode=sync: env.id="),
        ((odd("Eight"), BATCH), "env.id=odd_batches:Eight-v0: its num_envs is 8, not the 1 that it was asked for"),
        ((odd("NoMode"), BATCH), "env.id=odd_batches:NoMode-v0: its metadata['autoreset_mode'] must be one of "),
        ((odd("WrongShape"), BATCH), "env.id=odd_batches:WrongShape-v0: raised: ValueError: its observation 'state'"),
        ((odd("NoFinal"), BATCH, SAME_STEP), "env.id=odd_batches:NoFinal-v0: raised: ValueError: autoreset_mode=Same"),
        ((POINTS, BATCH, AUTOMATIC), "env.vector.resets=automatic: env.id=point_masses:tests/Points-v0 has Autoreset"),
        ((POINTS, BATCH, "rollout.env_processes=2"), "rollout.env_processes=2: allowed are 0 and 1 with env.vector"),
        ((POINTS, BATCH, "env.vector.autoreset=SameStep"), "env.vector.autoreset=SameStep: allowed is null with mode"),
        ((POINTS, BATCH, "env.adapter.state=[x]"), "env.vector: allowed is null with adapter"),
        ((POINTS, "env.vector.mode=sync", "env.vector.autoreset=Disabled", AUTOMATIC), "env.vector.autoreset=Disab"),
        ((POINTS, "env.vector.mode=async"), "env.vector.mode="),
        (
            (POINTS, BATCH, AUTOMATIC, NEXT_STEP, "rollout.num_steps=1", "trainer.num_minibatches=1"),
            "rollout.num_steps=1: allowed are 2 or more",
        ),
        (
            (odd("WholeSeeds"), BATCH),
            "env.id=odd_batches:WholeSeeds-v0: raised: TypeError: the seed must be a number; ",
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(words: tuple[str, ...], message: str) -> None:
    assert refusal(*CONTROL, *words).startswith(message)


def test_embodied_jobs_refuse_a_batch() -> None:
    words = ("experiment=embodied", BATCH, "warm_start=null")
    assert refusal(*words).startswith("env.vector: allowed is null with tasks, because embodied jobs step single")


def test_off_policy_training_refuses_steps_without_a_transition() -> None:
    words = ("experiment=pendulum", POINTS, *SIZES, "env.max_steps=12", BATCH, AUTOMATIC, NEXT_STEP)
    message = refusal(*words)
    assert message.startswith(
        "env.vector.resets=automatic: env.id=point_masses:tests/Points-v0 resets a lane in a step"
    )
    assert message.endswith("off_policy needs a transition in every step; allowed is seeded")


@pytest.mark.parametrize(
    ("kind", "words", "told"),
    [
        ("SaysNextStep", (AUTOMATIC,), "=NextStep: .* the infos of a step that ends an episode have 'final_obs'"),
        ("SaysNextStep", (AUTOMATIC, "+env.kwargs.tells=false"), "=NextStep: .* the step after an end only resets"),
        (
            "SaysNextStep",
            ("+env.kwargs.says=Disabled",),
            "=Disabled: .* the infos of a step that ends an episode have ",
        ),
        ("NeverResets", (AUTOMATIC,), "=NextStep: .* the step after an end only resets lane "),
    ],
)
def test_a_batch_that_lies_about_how_it_resets_itself_is_refused(kind: str, words: tuple[str, ...], told: str) -> None:
    message = refusal(*CONTROL, odd(kind), BATCH, *words, "env.allow_unrestorable=true")
    assert re.match(rf"env\.id=odd_batches:{kind}-v0: raised: ValueError: autoreset_mode{told}", message)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("SaysNextStep", ("+env.kwargs.says=Disabled", "+env.kwargs.tells=false")),
        ("ReusesFinal", (AUTOMATIC, SAME_STEP)),
        ("ReusesFinal", (SAME_STEP,)),
    ],
)
def test_a_batch_whose_episodes_end_with_the_first_observation_of_the_next_is_refused(
    kind: str, words: tuple[str, ...]
) -> None:
    """The value of the state after the last step would be that of another episode."""
    message = refusal(*CONTROL, odd(kind), BATCH, *words, "env.allow_unrestorable=true")
    assert message.startswith(
        f"env.vector: env.id=odd_batches:{kind}-v0: the observation 'state' in the step that ends an episode is not "
        "the last one of the episode; allowed are "
    )


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("MasksFinal", "infos['_final_obs'] must be true for lane 0, whose episode ended"),
        ("ShortFinal", "its observation 'state' must be float32 (2,) as in its observation_space, is float32 (1,)"),
        ("FloatFlags", "the flags of a step must be true or false, are [0.5"),
        ("WideNumbers", "its observation 'state' has 70000, which the int16 of its observation_space cannot hold"),
    ],
)
def test_a_step_whose_arrays_would_be_changed_silently_is_refused(kind: str, told: str) -> None:
    message = refusal(*CONTROL, odd(kind), BATCH, SAME_STEP, "env.allow_unrestorable=true")
    assert message.startswith(f"env.id=odd_batches:{kind}-v0: raised: ValueError: ")
    assert told in message


def test_a_batch_that_resets_lanes_outside_the_mask_is_refused() -> None:
    """Their episodes would be wrong, so env.allow_unrestorable does not allow it."""
    message = refusal(*CONTROL, odd("ForgetsMasks"), BATCH, "env.allow_unrestorable=true")
    assert message.startswith(
        "env.vector.resets=seeded: env.id=odd_batches:ForgetsMasks-v0: reset(options={'reset_mask': …}) changes other "
        "lanes: in lanes that are not reset the "
    )
    assert message.endswith("allowed is automatic, if the batch resets itself")


def test_a_batch_that_resets_a_lane_once_more_is_refused() -> None:
    message = refusal(*CONTROL, odd("ResetsTwice"), BATCH, NEXT_STEP, "env.allow_unrestorable=true")
    assert message.startswith(
        "env.vector.resets=seeded: env.id=odd_batches:ResetsTwice-v0: reset(options={'reset_mask': …}) does not begin "
        "an episode: after the end of an episode the "
    )


def test_a_batch_with_one_seed_does_not_restore_a_lane() -> None:
    message = refusal(*CONTROL, odd("OneSeed"), BATCH)
    assert message.startswith(
        "env.vector.resets=seeded: reset(seed=0) does not restore goal 0: in a lane that is reset"
    )
    assert "make reset(seed=[…], options={'reset_mask': …}) restore each lane, or set automatic; " in message
    compose_config([*CONTROL, odd("OneSeed"), BATCH, AUTOMATIC, SAME_STEP])


@pytest.mark.parametrize(
    ("kind", "words", "moment"),
    [
        ("Unseeded", (BATCH,), "after the reset"),
        ("Unseeded", (BATCH, AUTOMATIC, SAME_STEP), "after the reset"),
        ("Resets", (BATCH, AUTOMATIC, SAME_STEP), "after step "),
        ("Resets", (BATCH, AUTOMATIC, NEXT_STEP), "after step "),
    ],
)
def test_a_batch_that_its_seed_does_not_restore_is_refused(kind: str, words: tuple[str, ...], moment: str) -> None:
    message = refusal(*CONTROL, odd(kind), *words)
    assert message.startswith(
        f"env.id=odd_batches:{kind}-v0: reset(seed=0) does not restore goal 0: after other episodes"
    )
    assert moment in message
    config = compose_config([*CONTROL, odd(kind), *words, "env.allow_unrestorable=true"])
    assert config.unrestorable().keys() == {f"odd_batches:{kind}-v0"}  # type: ignore[attr-defined]
