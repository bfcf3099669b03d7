"""Each training flow selects a pipeline and an algorithm that fit it, and refuses others."""

from pathlib import Path

import pytest

import tasks
from embodyflow.config import RunConfig
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.compatibility import PIPELINES
from embodyflow.orchestration.request.request import check, parse_arguments
from embodyflow.record.run_folder import RunFolder
from pipelines import NodeRole, NodeType, Pipeline, TaskGraph, load_pipeline


def ask(flow: str, *words: str) -> RunConfig:
    return check(parse_arguments(words, flow))


@pytest.fixture(scope="module")
def embodied() -> RunConfig:
    return ask("grpo")


@pytest.mark.parametrize("flow", PIPELINES)
def test_a_flow_selects_a_pipeline_that_suits_the_algorithm(flow: str, tmp_path: Path) -> None:
    experiment = "pendulum" if flow == "sac" else "embodied"
    config = ask(flow, f"experiment={experiment}", f"run_root={tmp_path}")
    assert config.flow == flow
    assert config.pipeline.name == PIPELINES[flow][0]
    for name in PIPELINES[flow]:
        nodes = load_pipeline(name).nodes.values()
        assert (
            any(node.node_role is NodeRole.CRITIC for node in nodes) == config.algorithm.needs_critic == (flow == "ppo")
        )


@pytest.mark.parametrize(
    ("flow", "pipeline"),
    [("grpo", "language_grpo"), ("ppo", "ppo"), ("dapo", "dapo"), ("gspo", "language_grpo"), ("cpgd", "language_grpo")],
)
def test_a_language_job_selects_the_flow_s_language_pipeline(flow: str, pipeline: str, tmp_path: Path) -> None:
    config = ask(flow, "experiment=math", f"run_root={tmp_path}")
    assert (config.job, config.pipeline.name) == ("language", pipeline)


def test_overrides_win_over_the_flow_s_settings(tmp_path: Path) -> None:
    config = ask("dapo", f"run_root={tmp_path}", "filter.num_groups=4", "algorithm.loss=cispo")
    assert (config.filter.num_groups, config.algorithm.loss) == (4, "cispo")
    assert ask("grpo", f"run_root={tmp_path}", "pipeline.name=grpo").pipeline.name == "grpo"


KL_IN_REWARD = ["algorithm.kl.coef=0.1", "algorithm.kl.placement=reward"]
REWARDED = """
dag_id: mine
nodes:
  - {node_id: rollout, executable_ref: "tasks:generate", node_type: model_inference, node_role: rollout}
  - {node_id: reward, executable_ref: "tasks:compute_reward", node_type: compute, dependencies: [rollout]}
"""
GRAPH = (
    REWARDED
    + """
  - {node_id: value, executable_ref: "tasks:compute_value", node_type: model_train, node_role: critic,
     dependencies: [reward], only_forward_compute: true}
"""
)
LOG_PROBS = (
    REWARDED
    + """
  - {node_id: old, executable_ref: "tasks:compute_old_log_prob", node_type: model_train, node_role: actor,
     dependencies: [reward], only_forward_compute: true}
  - {node_id: ref, executable_ref: "tasks:compute_ref_log_prob", node_type: model_train, node_role: reference,
     dependencies: [old]}
"""
)
BASELINE = """
dag_id: mine
nodes:
  - {node_id: rollout, executable_ref: "tasks:generate", node_type: model_inference, node_role: rollout}
  - {node_id: greedy, executable_ref: "tasks:compute_baseline", dependencies: [rollout]}
  - {node_id: more, executable_ref: "tasks:%s", dependencies: [greedy]}
  - {node_id: reward, executable_ref: "%s", node_type: compute, dependencies: [more], writes: [rewards]}
  - {node_id: advantage, executable_ref: "tasks:compute_advantage", dependencies: [reward]}
"""
KL = """
  - {node_id: kl, executable_ref: "tasks:compute_kl_penalty", node_type: compute, dependencies: [%s]}
  - {node_id: advantage, executable_ref: "tasks:compute_advantage", node_type: compute, dependencies: [%s]}
"""


@pytest.mark.parametrize(
    ("flow", "words", "answer"),
    [
        (
            "ppo",
            ["pipeline.name=embodied_grpo"],
            "pipeline.name=embodied_grpo: does not work with the flow ppo; allowed are ppo",
        ),
        (
            "grpo",
            ["pipeline.name=ppo"],
            "pipeline.name=ppo: does not work with the flow grpo; allowed are embodied_grpo",
        ),
        (
            "grpo",
            ["experiment=reacher"],
            "algorithm=grpo: needs groups of siblings, and a control job's episodes have none; allowed with "
            "job=control are ppo",
        ),
        ("dapo", ["pipeline.name=gppo"], "pipeline.name=gppo: allowed are grpo, ppo"),
        ("grpo", ["algorithm=ppo"], "algorithm=ppo: runs in the flow ppo, not in grpo; start python -m flows.ppo"),
        ("grpo", ["algorithm.advantage=gae"], "algorithm.advantage=gae: needs a pipeline with a critic; "),
        (
            "grpo",
            ["algorithm.top_entropy_fraction=0.2", "pipeline.yaml={rewarded_only}"],
            "algorithm.top_entropy_fraction=0.2: allowed is 1; no node of the pipeline writes old_entropy (tasks:compu",
        ),
        (
            "ppo",
            ["experiment=reacher", "algorithm.top_entropy_fraction=0.2"],
            "algorithm.top_entropy_fraction=0.2: allowed is 1 with policy.name=mlp_gaussian, whose entropy is the same",
        ),
        (
            "grpo",
            ["algorithm.advantage=remax"],
            "node 'advantage': algorithm.advantage=remax needs a baseline, which no ancestor writes; allowed are",
        ),
        (
            "grpo",
            ["algorithm=remax", "algorithm.advantage=grpo"],
            "algorithm.advantage=grpo: does not read the baseline that the pipeline computes (node baseline)",
        ),
        (
            "grpo",
            ["algorithm=remax", "pipeline.yaml={rewarded}"],
            "node 'reward': writes rewards, but tasks:compute_baseline rewards its greedy rows by tasks:compute_reward",
        ),
        (
            "grpo",
            ["algorithm=remax", "pipeline.yaml={early}"],
            "node 'more': generates rows, which would lack the baselines of 'greedy'; put tasks:compute_baseline after",
        ),
        (
            "grpo",
            ["experiment=kuhn", "algorithm.advantage=rae"],
            "node 'advantage': algorithm.advantage=rae needs the running baselines of the agents, which no ancestor",
        ),
        (
            "grpo",
            ["experiment=kuhn", "algorithm=rae", "algorithm.advantage=grpo"],
            "algorithm.advantage=grpo: does not read the running baselines of the pipeline (node agent_baseline)",
        ),
        ("ppo", ["algorithm.advantage=rloo"], "algorithm.advantage=rloo: needs a pipeline without a critic"),
        ("grpo", ["critic.features=policy"], "critic.features=policy: algorithm.advantage=grpo has no critic; allowed"),
        (
            "ppo",
            ["pipeline.name=ppo_joint"],
            "critic.epochs=5: must be trainer.epochs=4 with a pipeline that trains policy and critic in the same opt",
        ),
        (
            "ppo",
            ["critic.features=policy", "critic.coef=0"],
            "critic.coef=0: allowed is 1; the pipeline trains the critic in steps of its own. Steps of policy and",
        ),
        ("grpo", ["pipeline.yaml={graph}"], "algorithm.advantage=grpo: needs a pipeline without a critic"),
        (
            "ppo",
            ["algorithm=dapo"],
            "algorithm=dapo: runs in the flow dapo, not in ppo; start python -m flows.dapo",
        ),
        (
            "grpo",
            ["algorithm.advantage=reinforce_plus_plus"],
            "rollout.num_workers=2: algorithm.advantage=reinforce_plus_plus sums over all rows",
        ),
        (
            "grpo",
            ["algorithm.advantage=reinforce_plus_plus", "pipeline.yaml={elsewhere}", *KL_IN_REWARD],
            "rollout.num_workers=2: algorithm.advantage=reinforce_plus_plus sums over all rows",
        ),
        (
            "grpo",
            ["pipeline.name=grpo_kl_reward", "algorithm.kl.coef=0.1"],
            "algorithm.kl.placement=loss: allowed is reward; the pipeline subtracts the KL term from the rewards (node",
        ),
        (
            "ppo",
            KL_IN_REWARD,
            "algorithm.kl.placement=reward: the pipeline does not subtract the KL term from the rewards; allowed are "
            "placement=loss, pipeline.name=ppo_kl_reward, a graph of your own with tasks:compute_kl_penalty",
        ),
        (
            "dapo",
            KL_IN_REWARD,
            "algorithm.kl.placement=reward: the pipeline does not subtract the KL term from the rewards; allowed are "
            "placement=loss, a graph of your own",
        ),
        (
            "ppo",
            ["pipeline.yaml={graph}", "algorithm.kl.coef=0.1"],
            "algorithm.kl.coef=0.1: allowed is 0; no node of the pipeline writes ref_log_probs",
        ),
        (
            "grpo",
            ["pipeline.yaml={unread}", *KL_IN_REWARD],
            "node 'kl': no node reads its kl_penalty; allowed are tasks:compute_advantage after it, or a node of your",
        ),
        (
            "grpo",
            ["pipeline.yaml={elsewhere}", *KL_IN_REWARD],
            "node 'kl': tasks:compute_kl_penalty would run on rollout workers, like its first parent",
        ),
        (
            "grpo",
            ["pipeline.yaml={beside}", *KL_IN_REWARD],
            "node 'advantage': must come after tasks:compute_kl_penalty to use its penalties",
        ),
        (
            "grpo",
            ["experiment=math", "pipeline.name=embodied_grpo"],
            "pipeline.name=embodied_grpo: does not work with job=language; allowed are grpo, language_grpo",
        ),
        ("srpo", ["experiment=math"], "algorithm=srpo: is for embodied jobs; it compares the states of episodes"),
        ("ppo", ["resume=old"], "resume=old: runs in the flow grpo, not in ppo; start python -m flows.grpo"),
        ("dapo", ["filter.num_groups=1"], "filter.num_groups=1: must give each of rollout.num_workers=2 a group"),
        ("dapo", ["filter.max_rerolls=-1"], "filter.max_rerolls=-1: input should be greater than or equal to 0"),
        (
            "grpo",
            ["filter.num_groups=24"],
            "filter.num_groups=24: allowed is null; the pipeline has no node that reads it (tasks:dynamic_sampling)",
        ),
        (
            "grpo",
            ["filter.max_staleness=2"],
            "filter.max_staleness=2: allowed is 1; the pipeline has no node that",
        ),
        (
            "ppo",
            ["filter.drop_truncated=true"],
            "filter.drop_truncated=true: allowed is false; the pipeline has no node that reads it "
            "(tasks:filter_groups or tasks:dynamic_sampling)",
        ),
        (
            "grpo",
            ["trainer.schedule.final_fraction=0.1"],
            "trainer.schedule.final_fraction=0.1: must be 0 with name=constant",
        ),
        (
            "ppo",
            ["trainer.micro_batch_rows=2", "trainer.micro_batch_tokens=320"],
            "trainer.micro_batch_rows and micro_batch_tokens must not both be set",
        ),
        (
            "grpo",
            ["trainer.num_ranks=4", "trainer.tensor_parallel_size=3"],
            "trainer.tensor_parallel_size=3 must divide num_ranks=4; allowed are 1, 2, 4",
        ),
        (
            "grpo",
            ["trainer.num_ranks=2", "trainer.tensor_parallel_size=2"],
            "trainer.tensor_parallel_size=2: allowed is 1 with policy.name=tiny_vla; only language models (causal_lm)",
        ),
        (
            "grpo",
            [
                *("experiment=libero_openvla", "policy.path=nowhere"),
                *("trainer.num_ranks=2", "trainer.tensor_parallel_size=2"),
            ],
            "trainer.tensor_parallel_size=2: allowed is 1 with policy.name=openvla; only language models (causal_lm)",
        ),
        (
            "ppo",
            ["experiment=reacher", "trainer.num_ranks=2", "trainer.tensor_parallel_size=2"],
            "trainer.tensor_parallel_size=2: allowed is 1 with policy.name=mlp_gaussian; only language models",
        ),
        (
            "grpo",
            ["experiment=math", "trainer.num_ranks=4", "trainer.tensor_parallel_size=4"],
            "trainer.tensor_parallel_size=4: must divide the model's num_attention_heads=4, num_key_value_heads=2, "
            "intermediate_size=384; allowed are 1, 2",
        ),
        (
            "grpo",
            [
                *("experiment=math", "trainer.num_ranks=2", "trainer.tensor_parallel_size=2"),
                "policy.scratch.model_type=gpt2",
            ],
            "trainer.tensor_parallel_size=2: allowed is 1 with the architecture gpt2; llama, qwen2, qwen3 can be split",
        ),
        (
            "ppo",
            ["trainer.micro_batch_tokens=319"],
            "trainer.micro_batch_tokens=319: must be at least 320, the tokens of an episode of env.max_steps=80",
        ),
    ],
)
def test_a_mismatch_is_refused_in_one_line(
    flow: str, words: list[str], answer: str, embodied: RunConfig, tmp_path: Path
) -> None:
    graphs = {
        "graph": GRAPH,
        "elsewhere": LOG_PROBS + KL % ("reward, ref", "kl"),
        "beside": LOG_PROBS + KL % ("ref", "ref"),
        "rewarded_only": REWARDED,
        "rewarded": BASELINE % ("filter_groups", "tasks:filter_groups"),
        "early": BASELINE % ("dynamic_sampling", "tasks:compute_reward"),
        "unread": LOG_PROBS + KL[: KL.index("  - {node_id: advantage")] % "ref",
    }
    files = {name: tmp_path / f"{name}.yaml" for name in graphs}
    for name, text in graphs.items():
        files[name].write_text(text)
    old = RunFolder.create(embodied.model_copy(update={"run_root": str(tmp_path), "run_id": "old"}))
    old.checkpoints.begin(0)
    old.checkpoints.commit(0, {}, keep=1)
    with pytest.raises(ConfigError) as caught:
        ask(flow, f"run_root={tmp_path}", *(word.format(**files) for word in words))
    assert str(caught.value).startswith(answer)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        ("grpo", ["pipeline.name=grpo_kl_reward"]),
        ("grpo", ["pipeline.name=grpo_kl_reward", "algorithm.advantage=reinforce_plus_plus"]),
        ("gspo", ["experiment=math", "pipeline.name=grpo_kl_reward"]),
        ("ppo", ["experiment=math", "pipeline.name=ppo_kl_reward", "algorithm.kl.target=0.05"]),
        ("grpo", ["pipeline.yaml={graph}"]),
    ],
)
def test_a_pipeline_with_kl_penalties_accepts_the_kl_term_in_the_rewards(
    flow: str, words: list[str], tmp_path: Path
) -> None:
    graph = tmp_path / "graph.yaml"
    graph.write_text(LOG_PROBS + KL % ("ref, reward", "kl"))
    config = ask(flow, f"run_root={tmp_path}", *KL_IN_REWARD, *(word.format(graph=graph) for word in words))
    assert config.algorithm.kl.placement == "reward" and not config.algorithm.has_kl_loss


def by_functions() -> TaskGraph:
    """Return a graph whose functions are named by the modules that define them."""
    trained = {"node_type": NodeType.MODEL_TRAIN, "only_forward_compute": True}
    return (
        Pipeline("mine")
        .add_node("rollout", func=tasks.generate, node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node("reward", func=tasks.compute_reward, deps=["rollout"])
        .add_node("old", func=tasks.compute_old_log_prob, deps=["reward"], node_role=NodeRole.ACTOR, **trained)
        .add_node("ref", func=tasks.compute_ref_log_prob, deps=["old"], node_role=NodeRole.REFERENCE, **trained)
        .add_node("kl", func=tasks.compute_kl_penalty, deps=["ref"])
        .add_node("advantage", func=tasks.compute_advantage, deps=["kl"])
        .build()
    )


def test_a_function_is_recognised_by_each_of_its_names(tmp_path: Path) -> None:
    graph = "pipeline.custom_fn=test_compatibility:by_functions"
    assert ask("grpo", f"run_root={tmp_path}", graph, *KL_IN_REWARD).algorithm.kl.placement == "reward"
    with pytest.raises(ConfigError, match=r"placement=loss: allowed is reward; .* \(node kl\)"):
        ask("grpo", f"run_root={tmp_path}", graph, KL_IN_REWARD[0])


def test_a_custom_graph_runs_in_the_flow_whose_algorithm_suits_it(tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(GRAPH)
    assert ask("ppo", f"run_root={tmp_path}", f"pipeline.yaml={tmp_path}/graph.yaml").pipeline.yaml
