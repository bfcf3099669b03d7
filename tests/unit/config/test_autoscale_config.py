"""What ``rollout.autoscale`` allows, and the line that refuses all else."""

import pytest
from agent_jobs import agent_config
from language_jobs import language_config

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.compatibility import check_compatibility
from embodyflow.workers.gpu_sharing import needed_cpus, needed_gpus

AHEAD = ("rollout.max_staleness=1", "algorithm.old_log_probs=proximal")
TWO = "rollout.autoscale.max_workers=2"


def test_the_run_starts_with_its_number_and_reserves_the_largest() -> None:
    config = language_config(*AHEAD, TWO, "cluster.cpus_per_worker=1")
    assert config.groups["rollout"].num_ranks == 1 and config.largest_groups["rollout"].num_ranks == 2
    assert (config.rollout.fewest_workers, config.rollout.most_workers) == (1, 2)
    assert needed_cpus(config) == 3
    shared = {"device": "cuda", "gpus_per_worker": 0.5}
    assert needed_gpus(config.model_copy(update={"cluster": config.cluster.model_copy(update=shared)})) == 2
    fixed = language_config(*AHEAD)
    assert fixed.rollout.autoscale is None and needed_cpus(fixed) == 2 * fixed.cluster.cpus_per_worker
    assert (fixed.rollout.fewest_workers, fixed.rollout.most_workers) == (1, 1)


def test_streaming_needs_no_staleness() -> None:
    assert language_config("rollout.mode=streaming", TWO).rollout.autoscale is not None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((*AHEAD, TWO, "rollout.autoscale.min_workers=3"), r"autoscale.min_workers=3: must be at most max_workers=2"),
        ((*AHEAD, "rollout.autoscale.min_workers=1"), r"rollout.autoscale.max_workers: must be set"),
        ((*AHEAD, TWO, "rollout.autoscale.min_workers=0"), r"rollout.autoscale.min_workers=0: .* greater"),
        ((*AHEAD, TWO, "rollout.autoscale.trainer_wait=1"), r"rollout.autoscale.trainer_wait=1: .* less than 1"),
        ((*AHEAD, TWO, "rollout.autoscale.patience=0"), r"rollout.autoscale.patience=0"),
        (
            (*AHEAD, TWO, "rollout.autoscale.min_workers=2"),
            r"num_workers=1: allowed with autoscale are 2 to 2, its min_workers and max_workers",
        ),
        ((*AHEAD, "rollout.autoscale.max_workers=3"), r"autoscale.max_workers=3: must be at most num_groups=2"),
        ((TWO,), r"autoscale: allowed with max_staleness of at least 1 or mode=streaming"),
        (
            (*AHEAD, TWO, "rollout.interrupt.every=4"),
            r"rollout.*autoscale: allowed with interrupt.every=null",
        ),
        (
            (*AHEAD, TWO, "rollout.generation.name=vllm", "rollout.generation.tensor_parallel_size=2"),
            r"rollout.autoscale: allowed with rollout.generation.tensor_parallel_size=1, not 2",
        ),
        (
            (*AHEAD, TWO, "rollout.generation={name: remote, base_url: 'http://localhost:8000', "
             "weight_update: reload_weights, weights_folder: /w}"),
            r"rollout.autoscale: allowed with rollout.generation.name=hf and vllm, not remote",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_one_line(words: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as refused:
        language_config(*words)
    assert "\n" not in str(refused.value)


def test_jobs_whose_environments_belong_to_workers_do_not_have_it() -> None:
    with pytest.raises(ConfigError, match=r"rollout.autoscale.*: only embodied, language and agent jobs have it"):
        compose_config(["experiment=reacher", "rollout.autoscale.max_workers=4"])


def test_off_policy_training_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout.autoscale: allowed with off_policy=null"):
        compose_config(
            ["experiment=push", "algorithm=rlpd", "rollout.max_staleness=1", "rollout.autoscale.max_workers=4"]
        )


def test_agents_may_have_it() -> None:
    assert agent_config(*AHEAD, TWO).rollout.most_workers == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("flow=dapo", "algorithm=dapo"), r"node 'dynamic_sampling' fills the share of each worker"),
        (("algorithm.advantage=reinforce_plus_plus",), r"rollout.autoscale.max_workers=2: algorithm.advantage="),
    ],
)
def test_graphs_whose_rows_depend_on_the_number_are_refused(words: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        check_compatibility(language_config(*AHEAD, TWO, *words))


def test_nodes_on_rollout_workers_after_the_trainer_are_refused() -> None:
    config = compose_config(
        [
            "experiment=push",
            "flow=srpo",
            "algorithm=srpo",
            *AHEAD,
            "rollout.num_workers=1",
            "rollout.autoscale.max_workers=2",
        ]
    )
    with pytest.raises(ConfigError, match=r"rollout.autoscale: allowed is null; node 'reward' runs on rollout workers"):
        check_compatibility(config)
