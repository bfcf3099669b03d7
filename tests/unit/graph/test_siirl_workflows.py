"""Workflow files in the shapes that siiRL's have: anchors, missing functions, nodes that only move rows.

``SIIRL_CHECKOUT=<folder of a git clone>`` runs the last test over every workflow file in siiRL's history.
"""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

import tasks
from benchmarks.control.in_process import InProcessRun
from embodyflow.cli.main import main
from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError
from embodyflow.graph import GraphError, Pipeline, load_pipeline
from embodyflow.graph.built_in_functions import FUNCTIONS, KINDS
from embodyflow.graph.node_groups import runs_on
from embodyflow.graph.siirl.porting import port_workflow
from embodyflow.graph.yaml_loader import load_yaml
from embodyflow.orchestration.request.compatibility import check_compatibility
from embodyflow.types import NodeOutput

HERE = __name__
SMALL = ("rollout.num_groups=2", "rollout.group_size=2", "warm_start=null", "env.max_steps=10")


def workflow(*nodes: str, head: str = "") -> str:
    """Return a linear workflow; a node is ``id type role [key: value …]``."""
    lines = ["dag_id: ported", head, "nodes:"]
    last = ""
    for node in nodes:
        node_id, node_type, role, *rest = node.split(" ", 3)
        settings = "".join(f", {each}" for each in rest)
        role = "" if role == "-" else f", node_role: {role}"
        lines.append(f"  - {{node_id: {node_id}, node_type: {node_type}{role}, dependencies: [{last}]{settings}}}")
        last = node_id
    return "\n".join(lines) + "\n"


START = ("play MODEL_INFERENCE ROLLOUT", "score compute reward")
UPDATE = (
    "old MODEL_TRAIN ACTOR only_forward_compute: true",
    "ref MODEL_TRAIN REFERENCE",
    "learn MODEL_TRAIN ACTOR",
)
ADVANTAGE = "compare COMPUTE ADVANTAGE"
DAPO = "filter COMPUTE - executable_ref: siirl.algorithm.dapo.dynamic_sampling"
FILTER = "filter COMPUTE - executable_ref: siirl.algorithm.embodied.embodied_local_rank_sampling"
REBALANCE, POSTPROCESS = "even COMPUTE DATA_REBALANCE", "fill COMPUTE POSTPROCESS_SAMPLING"
VALUE = "value MODEL_TRAIN CRITIC only_forward_compute: true"
ANCHOR = "actor1_config: &actor1_config {model.path: some/model, rollout.n: 16}"


def save(folder: Path, text: str) -> Path:
    path = folder / "workflow.yaml"
    path.write_text(text)
    return path


def ported(folder: Path, text: str) -> Path:
    path = folder / "ported.yaml"
    path.write_text(port_workflow(save(folder, text)).text)
    return path


def functions(path: Path) -> list[str]:
    graph = load_yaml(path)
    return [graph.nodes[node_id].executable_ref for node_id in graph.get_execution_order()]


def test_missing_functions_follow_from_the_roles(tmp_path):
    text = workflow(*START, *UPDATE[:2], VALUE, ADVANTAGE, "judge MODEL_TRAIN CRITIC", UPDATE[2])
    names = "generate compute_reward compute_old_log_prob compute_ref_log_prob compute_value compute_advantage"
    assert functions(save(tmp_path, text)) == [f"tasks:{n}" for n in (*names.split(), "train_critic", "train_actor")]


def test_a_top_level_key_with_an_anchor_stays_out_of_the_graph(tmp_path):
    sized = "actor1_config: &actor1_config {model_params: 7B}"
    used = workflow(*START, ADVANTAGE, *UPDATE[:2], UPDATE[2] + " config: *actor1_config", head=sized)
    plain = load_yaml(save(tmp_path, workflow(*START, ADVANTAGE, *UPDATE)))
    assert load_yaml(save(tmp_path, workflow(*START, ADVANTAGE, *UPDATE, head=ANCHOR))).digest == plain.digest
    graph = load_yaml(save(tmp_path, used))
    assert graph.nodes["learn"].config == {"model_params": "7B"}
    inside = "shared:\n  deeper: &x {a: 1}"
    assert load_yaml(save(tmp_path, workflow(*START, ADVANTAGE, *UPDATE, head=inside))).digest == plain.digest


def test_a_model_s_settings_in_a_node_are_refused_unless_the_file_is_ported(tmp_path):
    text = workflow(*START, ADVANTAGE, *UPDATE[:2], UPDATE[2] + " config: *actor1_config", head=ANCHOR)
    with pytest.raises(GraphError, match=r"node 'learn': config\.rollout\.n: unknown key; allowed are model_params"):
        load_yaml(save(tmp_path, text))
    assert load_yaml(ported(tmp_path, text)).nodes["learn"].config == {}


def test_a_top_level_key_without_an_anchor_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="shared: Extra inputs are not permitted"):
        load_yaml(save(tmp_path, workflow(*START, head="shared: {a: 1}\nused: &x {b: 2}")))


@pytest.mark.parametrize("moves", [[REBALANCE], [POSTPROCESS], [REBALANCE, POSTPROCESS], ["wait BARRIER_SYNC -"]])
def test_nodes_that_only_move_rows_are_left_out(tmp_path, moves):
    filtered = FILTER.replace("siirl.algorithm.embodied.embodied_local_rank_sampling", "tasks:filter_groups")
    with_them = load_yaml(save(tmp_path, workflow(START[0], filtered, *moves, START[1], ADVANTAGE, *UPDATE)))
    without = load_yaml(save(tmp_path, workflow(START[0], filtered, START[1], ADVANTAGE, *UPDATE)))
    assert with_them.digest == without.digest


def test_the_port_of_every_single_agent_shape_loads(tmp_path):
    for middle in (
        [ADVANTAGE, DAPO, POSTPROCESS],
        [ADVANTAGE, DAPO, REBALANCE],
        [DAPO, ADVANTAGE],
        [FILTER, ADVANTAGE],
    ):
        graph = load_yaml(ported(tmp_path, workflow(*START, *middle, *UPDATE, head=ANCHOR)))
        assert runs_on(graph, "filter") == "rollout" and runs_on(graph, "learn") == "trainer"
        resamples = middle == [DAPO, ADVANTAGE]
        assert graph.nodes["filter"].executable_ref == f"tasks:{'dynamic_sampling' if resamples else 'filter_groups'}"


def test_a_critic_beside_its_values_is_reconnected(tmp_path):
    specs = yaml.safe_load(workflow(*START, *UPDATE[:2], VALUE, ADVANTAGE, "judge MODEL_TRAIN CRITIC", UPDATE[2]))
    assert specs["nodes"][6]["node_id"] == "judge"
    specs["nodes"][6]["dependencies"] = ["score"]
    result = port_workflow(save(tmp_path, yaml.safe_dump(specs)))
    assert "judge: dependencies: score → compare, after which there are returns, values" in result.changes
    path = save(tmp_path, result.text)
    assert load_yaml(path).nodes["judge"].dependencies == ("compare",)
    check_compatibility(compose_config(["flow=ppo", "algorithm=ppo", f"pipeline.yaml={path}"]))


def test_a_critic_whose_values_come_after_the_advantages_is_left_out(tmp_path):
    """The shape of workflow_dapo.yaml in siiRL's 53183c0."""
    specs = yaml.safe_load(workflow(*START, ADVANTAGE, DAPO, POSTPROCESS, *UPDATE[:2], VALUE))
    specs["nodes"] += [
        {"node_id": "judge", "node_type": "MODEL_TRAIN", "node_role": "CRITIC", "dependencies": ["compare"]},
        {"node_id": "learn", "node_type": "MODEL_TRAIN", "node_role": "ACTOR", "dependencies": ["judge"]},
    ]
    result = port_workflow(save(tmp_path, yaml.safe_dump(specs)))
    for node in ("value", "judge"):
        expected = f"{node}: node left out; the advantages come before the critic's values and ignore them"
        assert expected in result.changes
    assert "learn: dependencies: compare → ref, after which there are old_log_probs, ref_log_probs" in result.changes
    without = load_yaml(ported(tmp_path, workflow(*START, ADVANTAGE, DAPO, POSTPROCESS, *UPDATE)))
    path = save(tmp_path, result.text)
    assert load_yaml(path).digest == without.digest
    check_compatibility(compose_config([f"pipeline.yaml={path}"]))


def test_a_late_critic_beside_a_function_of_ones_own_is_named_and_refused_with_an_algorithm_that_needs_it(tmp_path):
    own = f"own COMPUTE - executable_ref: '{HERE}:score_by_hand'"
    text = workflow(*START, ADVANTAGE, *UPDATE[:2], VALUE, own, UPDATE[2])
    result = port_workflow(save(tmp_path, text))
    assert any(line.startswith("compare: comes before the values of value") for line in result.left)
    with pytest.raises(ConfigError, match=r"node 'compare': algorithm\.advantage=gae needs values, which no ancestor"):
        check_compatibility(compose_config(["flow=ppo", "algorithm=ppo", f"pipeline.yaml={save(tmp_path, text)}"]))


def test_the_command_reports_every_change_and_writes_the_file(tmp_path, capsys):
    learn = UPDATE[2] + " agent_group: 0, config: *actor1_config"
    path = save(tmp_path, workflow(*START, ADVANTAGE, DAPO, POSTPROCESS, *UPDATE[:2], learn, head=ANCHOR))
    out = tmp_path / "new.yaml"
    assert main(["port", str(path), "--out", str(out)]) == 0
    said = capsys.readouterr().err
    for line in (
        "changed: actor1_config: left out",
        "changed: play: executable_ref: inferred tasks:generate",
        "changed: fill: node left out; sampling nodes fill the batch",
        "changed: learn: agent_group: left out; it says nothing",
        "to do: filter: tasks:filter_groups drops groups and replaces none",
    ):
        assert line in said
    assert "tasks:train_actor" in functions(out)
    assert main(["port", str(path), "--out", str(out)]) == 2
    assert "exists; allowed is a new file" in capsys.readouterr().err


def test_references_survive_the_port(tmp_path):
    head = "global_config: {count: 2}"
    text = workflow(START[0] + " retries: !Ref global_config.count", head=head)
    assert load_yaml(ported(tmp_path, text)).nodes["play"].retries == 2


def test_settings_of_a_model_are_named_with_their_key_of_the_run(tmp_path):
    text = workflow(START[0] + " config: *actor1_config", head=ANCHOR)
    left = port_workflow(save(tmp_path, text)).left
    assert any(line.startswith("play: config.rollout.n=16: left out") and "rollout.group_size" in line for line in left)


def test_an_agent_without_an_actor_of_its_own_is_refused_by_name(tmp_path, capsys):
    path = save(tmp_path, workflow(*START, UPDATE[2] + " agent_group: 1"))
    assert main(["port", str(path)]) == 2
    said = capsys.readouterr().err
    assert "node 'play': agent_group=0 has no actor that trains weights of its own" in said
    with pytest.raises(GraphError, match="node 'learn': agent_group: belongs to siiRL's multi-agent graphs"):
        load_yaml(path)


def test_every_setting_of_an_agent_without_a_counterpart_is_named(tmp_path):
    nodes = [
        {"node_id": "reasoner", "node_role": "ROLLOUT", "agent_options": {"obs_with_env": True, "spread": 2}},
        {"node_id": "actor", "node_role": "ROLLOUT", "agent_group": 1, "agent_options": {"share_instance": 0}},
        {"node_id": "judge", "node_type": "MODEL_TRAIN", "node_role": "CRITIC", "agent_group": 1},
        {"node_id": "value", "node_type": "MODEL_TRAIN", "node_role": "CRITIC", "agent_options": {"train_cycle": 15}},
        {"node_id": "train", "node_type": "MODEL_TRAIN", "node_role": "ACTOR", "agent_group": 1},
        {"node_id": "own", "node_type": "COMPUTE", "user_options": {"a": 1}},
    ]
    path = save(tmp_path, yaml.safe_dump({"dag_id": "marft", "nodes": nodes}))
    with pytest.raises(ConfigError) as refusal:
        port_workflow(path)
    lines = [line.removeprefix(f"{path}: ") for line in str(refusal.value).splitlines()]
    assert [line.partition(": ")[0] for line in lines[1:]] == [
        "agent_options.spread of 'reasoner'",
        "agent_options.share_instance of 'actor'",
        "agent_group of 'judge'",
        "agent_options.train_cycle of 'value'",
        "user_options of 'own'",
    ]
    assert lines[1].endswith("has no counterpart") and "one critic judges all agents" in lines[3]
    assert lines[4].endswith("that needs weights of their own")


EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "ring" / "workflow.yaml"


def agents_of_their_own(folder: Path, **cycles: object) -> Path:
    """Return the example with actors that siiRL gives weights of their own, which take turns in training."""
    content = yaml.safe_load(EXAMPLE.read_text())
    for node in content["nodes"]:
        if node["node_id"].startswith("actor_2"):
            del node["agent_options"]
        if node["node_id"].endswith("_train") and node["node_role"] == "ACTOR":
            node["agent_options"] = {"train_cycle": cycles.get(node["node_id"], 15)}
    return save(folder, yaml.safe_dump(content, sort_keys=False))


def test_a_ring_of_agents_becomes_one_policy_and_a_workflow(tmp_path):
    result = port_workflow(EXAMPLE)
    graph = load_yaml(save(tmp_path, result.text))
    assert [graph.nodes[each].executable_ref.removeprefix("tasks:") for each in graph.get_execution_order()] == [
        *("generate", "compute_reward", "compute_old_log_prob", "compute_ref_log_prob", "compute_value"),
        *("compute_advantage", "train_critic", "train_actor"),
    ]
    assert graph.get_execution_order()[0] == "rollout" and graph.nodes["function_reward"].dependencies == ("rollout",)
    assert "actor_2_train: merged into actor_1_train; all agents share one policy" in result.changes
    assert result.agents is not None and result.agents.environment == "examples.ring.sum_check:SumCheck"
    assert result.agents.members["reasoner"] == {
        "pre_process": "examples.ring.process:pre_process",
        "pre_process_kwargs": {"pre_chat_template": "${prompt}${obs}"},
        "post_process": "examples.ring.process:post_process",
        "post_process_kwargs": {"post_chat_template": ","},
        "observes": True,
    }


def test_actors_of_their_own_become_own_weights_that_train_in_turn(tmp_path):
    result = port_workflow(agents_of_their_own(tmp_path))
    load_yaml(save(tmp_path, result.text))
    assert result.text == port_workflow(EXAMPLE).text, "the same nodes, whose engines hold a policy for each agent"
    assert result.agents is not None and (result.agents.weights, result.agents.train_cycle) == ("own", 15)
    agent = yaml.safe_load(result.agents.experiment("ring", "ring.yaml", "marft.yaml"))["rollout"]["agent"]
    assert (agent["weights"], agent["train_cycle"]) == ("own", 15)
    assert "actor_2_train: merged into actor_1_train; one node serves all agents' policies" in result.changes
    assert "actor_1_train: train_cycle: 15 set as rollout.agent.train_cycle" in result.changes
    for cycle in (3, 0, "often"):
        with pytest.raises(ConfigError, match=f"node 'actor_2_train': train_cycle={cycle!r}: must be a number of"):
            port_workflow(agents_of_their_own(tmp_path, actor_2_train=cycle))


def test_agents_with_weights_of_their_own_share_them_if_asked(tmp_path):
    path = agents_of_their_own(tmp_path)
    shared = port_workflow(path, share_weights=True)
    assert shared.text == port_workflow(EXAMPLE).text
    assert "actor_1_train: train_cycle: 15 left out; one policy has no turns to take" in shared.changes


def test_the_command_writes_graph_and_experiment_of_a_ring(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["port", str(EXAMPLE), "--out", "ring.yaml", "--experiment", "mine"]
    assert main(words[:4]) == 2
    assert "has the agents reasoner, actor; --out=<file> and --experiment=<name> name" in capsys.readouterr().err
    assert main(words) == 2 and "is no project" in capsys.readouterr().err
    for name in ("../mine", "/tmp/mine", "a/b", "", ".mine", "a\nb"):
        assert main([*words[:5], name]) == 2
        said = capsys.readouterr().err
        assert said.startswith("--experiment=") and "allowed are letters, digits" in said and said.count("\n") == 1
    (tmp_path / "deployments").mkdir()
    (tmp_path / "deployments" / "prefect.yaml").touch()
    assert main(words) == 0
    assert "to do: policy and data: choose them on the command line" in capsys.readouterr().err
    small = (
        "policy=tiny_qwen",
        "policy.tokenizer=embodyflow.prompts.self_correct:build_tokenizer",
        "data=self_correct",
    )
    limits = ("rollout.max_prompt_tokens=16", "rollout.max_response_tokens=110")
    config = compose_config(["experiment=mine", "flow=ppo", *small, *limits])
    check_compatibility(config)
    ring = config.rollout.agent.ring
    assert ring.members["actor"].pre_process_kwargs == {"pre_chat_template": "${prompt}"}
    assert (ring.trained_turns, config.algorithm.advantage, config.agents) == ("last", "marft", ("reasoner", "actor"))
    assert main(words) == 2 and "exists; allowed is a new file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda nodes: nodes[1].update(dependencies=[]),
            r"node 'rollout_actor': dependencies=\[\]: agents must form a c",
        ),
        (
            lambda nodes: nodes[0]["agent_options"].update(env_path=["a.py:A"]),
            r"node 'rollout_reasoner': env_path=\['a.py:A'\]: allowed is one environment, of the last agent",
        ),
        (
            lambda nodes: nodes[1]["agent_options"].update(env_path=["a.py:A", "b.py:B"]),
            "node 'rollout_actor': env_path=.*: allowed is one environment, of the last agent",
        ),
        (lambda nodes: nodes.__delitem__(slice(0, 2)), "agent_options: no node has the role ROLLOUT"),
    ],
)
def test_a_ring_that_cannot_be_played_is_refused(tmp_path, change, message):
    content = yaml.safe_load(EXAMPLE.read_text())
    change(content["nodes"])
    with pytest.raises(ConfigError, match=message):
        port_workflow(save(tmp_path, yaml.safe_dump(content)))


def test_what_cannot_be_ported_is_refused_with_its_node(tmp_path, capsys):
    path = save(tmp_path, workflow(*START, "odd COMPUTE - executable_ref: siirl.utils.thing.judge"))
    assert main(["port", str(path), "--out", str(tmp_path / "new.yaml")]) == 2
    said = capsys.readouterr().err
    assert "to do: odd: executable_ref=siirl.utils.thing.judge: has no counterpart" in said
    assert "workflow.yaml: node 'odd'" in said and not (tmp_path / "new.yaml").exists()
    with pytest.raises(GraphError, match="node 'odd': executable_ref: is missing; it follows only from the roles"):
        load_yaml(save(tmp_path, workflow(*START, "odd COMPUTE -")))


def score_by_hand(batch, **kwargs) -> NodeOutput:
    """Return rewards as siiRL's custom pipeline does; the parameters are those of its example."""
    return tasks.compute_reward(batch, worker=None)


def without_types() -> Pipeline:
    pipeline = Pipeline("typeless").add_node("play", func="tasks:generate", deps=[])
    pipeline.add_node("score", func=f"{HERE}:score_by_hand", deps=["play"])
    pipeline.add_node("compare", func=tasks.compute_advantage, deps=["score"])
    pipeline.add_node("old", func="tasks:compute_old_log_prob", deps=["compare"], only_forward_compute=True)
    pipeline.add_node("ref", func="tasks.compute_ref_log_prob", deps=["old"])
    return pipeline.add_node("learn", func="tasks:train_actor", deps=["ref"])


def typeless():
    return without_types().build()


def test_types_and_roles_of_built_in_functions_are_inferred():
    graph = typeless()
    assert [runs_on(graph, name) for name in ("play", "score", "compare")] == ["rollout"] * 3
    assert [runs_on(graph, name) for name in ("old", "ref", "learn")] == ["trainer"] * 3
    assert graph.nodes["learn"].changes_weights and graph.nodes["ref"].only_forward_compute


@pytest.mark.parametrize("name", ["grpo", "ppo", "dapo", "embodied_srpo", "ppo_control", "ppo_kl_reward"])
def test_a_built_in_graph_without_types_is_the_same_graph(name):
    graph = load_pipeline(name)
    pipeline = Pipeline(name)
    for node in graph.nodes.values():
        pipeline.add_node(node.node_id, node.executable_ref, node.dependencies, node.config)
    assert pipeline.build().digest == graph.digest


def test_every_inferred_function_has_settings_and_exists():
    assert set(FUNCTIONS.values()) <= KINDS.keys()
    assert all(callable(getattr(tasks, name)) for name in KINDS)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"node_type": "COMPUTE"}, "tasks:train_actor would run on the rollout workers"),
        ({"node_role": "ROLLOUT"}, "tasks:train_actor would run on the rollout workers"),
        ({"node_role": "REFERENCE"}, "tasks:train_actor changes weights"),
        ({"only_forward_compute": True}, "tasks:train_actor changes weights"),
    ],
)
def test_a_built_in_function_on_the_wrong_workers_is_refused(settings, expected):
    reads = {"reads": ()}
    pipeline = Pipeline("p").add_node("play", "tasks:generate")
    pipeline.add_node("learn", "tasks:train_actor", ["play"], **settings, **reads)
    with pytest.raises(GraphError) as caught:
        pipeline.build()
    assert "node 'learn'" in str(caught.value) and expected in str(caught.value)


def test_new_episodes_after_the_advantages_are_refused():
    pipeline = Pipeline("p").add_node("play", "tasks:generate").add_node("score", "tasks:compute_reward", ["play"])
    pipeline.add_node("compare", "tasks:compute_advantage", ["score"])
    with pytest.raises(GraphError, match="node 'more': tasks:dynamic_sampling generates episodes"):
        pipeline.add_node("more", "tasks:dynamic_sampling", ["compare"]).build()


def test_a_typeless_graph_runs_in_process():
    run = InProcessRun([*SMALL, "algorithm=grpo", f"pipeline.custom_fn={HERE}:typeless"])
    run.warm_start()
    assert run.iterate(1)["rollout/num_episodes"] == 4


@pytest.mark.skipif("SIIRL_CHECKOUT" not in os.environ, reason="SIIRL_CHECKOUT names no clone of siiRL")
def test_the_files_of_siirls_history(tmp_path):
    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", os.environ["SIIRL_CHECKOUT"], *words], capture_output=True, text=True, check=True
        ).stdout

    changes = [line.split() for line in git("log", "--all", "--raw", "--no-abbrev", "--pretty=format:").splitlines()]
    files = {
        words[3]: words[-1]
        for words in changes
        if len(words) > 5 and Path(words[-1]).match("*work*flow_*.yaml") and set(words[3]) != {"0"}
    }
    assert len(files) >= 14
    for blob, name in files.items():
        path = save(tmp_path, git("cat-file", "blob", blob))
        if "marft" in name:
            if "env_path" in path.read_text() and "REFERENCE" in path.read_text():  # not the older ones
                for shares in (False, True):
                    result = port_workflow(path, share_weights=shares)
                    assert result.agents is not None and result.agents.weights == ("shared" if shares else "own")
                    (tmp_path / "ring.yaml").write_text(result.text)
                    load_yaml(tmp_path / "ring.yaml")
            else:
                with pytest.raises(ConfigError, match="settings of agents have no counterpart"):
                    port_workflow(path)
        else:
            graph = load_yaml(ported(tmp_path, path.read_text()))
            assert {runs_on(graph, node_id) for node_id in graph.nodes} == {"rollout", "trainer"}, name
