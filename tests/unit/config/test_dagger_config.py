"""Settings of DAgger, and what is refused before a run starts."""

from pathlib import Path
from typing import Any

import pytest

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.compatibility import check_compatibility

DAGGER = ("experiment=push", "algorithm=dagger")
MISTAKES = {
    "dagger.rounds=3": "dagger.rounds=3: no such key",
    "dagger.steps=0": "dagger.steps=0: input should be greater than or equal to 1",
    "dagger.beta=1": "dagger.beta=1: input should be less than 1",
    "dagger.beta=-0.1": "dagger.beta=-0.1: input should be greater than or equal to 0",
    "dagger.gate=gate": "dagger.gate: names no module; write 'module:function'",
    "dagger.gate=builtins:nothing": "dagger.gate: 'builtins' has no attribute 'nothing'",
    "dagger.gate=no_such_module:gate": "dagger.gate: cannot import module 'no_such_module'",
    "dagger.gate=sys:maxsize": "dagger.gate: is a int; allowed is a function",
    "dagger.gate=operator:eq dagger.beta=0.5": "dagger.beta=0.5: must be 0 with dagger.gate, which decides who acts",
    "warm_start=null": "warm_start=null: must be set with dagger, whose data begin with its demonstrations",
    "rollout.keep_episodes=2": "rollout.keep_episodes=2: must be 0 with dagger",
    "rollout.mode=streaming": "rollout.mode=streaming: allowed with dagger=null",
    "rollout.max_staleness=1": "rollout.max_staleness=1: must be 0 with dagger",
    "trainer.num_ranks=2": "trainer.num_ranks=2: has no meaning with dagger; allowed is 1",
    "trainer.epochs=4": "trainer.epochs=4: has no meaning with dagger; allowed is 1",
    "trainer.num_minibatches=2": "trainer.num_minibatches=2: has no meaning with dagger; allowed is 1",
    "trainer.lora.rank=4": "trainer.lora=",
    "algorithm.gamma=0.9": "algorithm.gamma=0.9: has no meaning with dagger; allowed is 1.0",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_one_line(words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        compose_config([*DAGGER, *words.split()])
    assert str(refusal.value).startswith(MISTAKES[words]) and "\n" not in str(refusal.value)


def test_one_word_chooses_pipeline_and_settings() -> None:
    config: Any = compose_config([*DAGGER, "dagger.steps=7", "dagger.gate=operator:eq"])
    check_compatibility(config)
    assert (config.flow, config.pipeline.name, config.dagger.steps, config.rollout.group_size) == (
        "grpo",
        "dagger",
        7,
        1,
    )


def test_imitation_does_not_go_with_off_policy_training() -> None:
    rlpd = ["experiment=push", "algorithm=rlpd", "policy.state_dim=30", "policy.action_dim=4"]
    with pytest.raises(ConfigError, match=r"^off_policy: must be null with dagger, which imitates$"):
        compose_config([*rlpd, "+dagger.steps=3"])


def test_a_pipeline_and_the_section_belong_together() -> None:
    with pytest.raises(
        ConfigError, match=r"^dagger: must be set \(algorithm=dagger\) with a pipeline that has tasks:l"
    ):
        check_compatibility(compose_config(["experiment=push", "pipeline.name=dagger"]))
    with pytest.raises(ConfigError, match=r"^dagger: must be null with a pipeline without tasks:label_episodes"):
        check_compatibility(compose_config([*DAGGER, "pipeline.name=embodied_grpo"]))


def test_a_graph_of_one_s_own_needs_all_three_nodes(tmp_path: Path) -> None:
    graph = tmp_path / "graph.yaml"
    graph.write_text(
        "dag_id: own\nnodes:\n"
        "  - {node_id: rollout, executable_ref: 'tasks:label_episodes'}\n"
        "  - {node_id: train, executable_ref: 'tasks:train_on_labels', dependencies: [rollout]}\n"
    )
    words = [*DAGGER, "pipeline.name=null", f"pipeline.yaml={graph}"]
    with pytest.raises(ConfigError, match=r"^dagger: must be null with a pipeline without tasks:store_labels"):
        check_compatibility(compose_config(words))
