"""Rollouts with tools compared: ours, and those of TRL's GRPOTrainer.

Run ``python -m benchmarks.agents.agent_against_trl`` or ``python benchmarks/agents/agent_against_trl.py`` (about five
minutes); needs the packages trl and jmespath. A Qwen3 with 0.6 million weights first learns from demonstrations of the
experiment *calculator* to call the tool. Both contenders then play rollouts of 8 prompts with 8 samples each, with the
same weights, prompts, tool, temperature and limits, in float32 on one CPU thread: ours by ``AgentRollout.play``, TRL's
by the method of GRPOTrainer that samples with transformers, calls tools and samples on. Training steps are not part of
it.

Tools answer at once, or after 50 ms to 2 s, log-normally with a median of 0.3 s. Each contender has its own process,
and they take turns, so other load on the machine affects both. Figures are medians over the rounds, of wall time and
of the process's CPU time. ``passes`` is the share of our CPU time in the model's passes, from further rollouts, since
a clock around each pass takes time too. The bound is the ratio if everything else took no time. ``--quick`` plays only
with tools that answer at once, in about a minute.
"""

import argparse
import asyncio
import functools
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.agents.agent_generation import wait_of
from benchmarks.commands import ROOT
from benchmarks.orchestration.processes import Process
from benchmarks.report import write_report

NUM_GROUPS, GROUP_SIZE, MAX_TOKENS = 8, 8, 64
OURS, TRL = "embodyflow", "trl GRPOTrainer"
WAITS = {"instant": 0.0, "waiting": 1.0}
"""Factor of the tools' waits in each workload."""

REPEATS = {"instant": 15, "waiting": 1}
"""Rollouts per round. One with tools that answer at once takes a tenth of a second, which other load distorts."""

RESULTS = ROOT / "benchmarks" / "results" / "agent_against_trl.json"

TEMPLATE = (
    "{{ bos_token }}{% if tools %}{% for tool in tools %}{{ tool['function']['name'] }}{% endfor %}{% endif %}"
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>"
    "{\"name\": \"{{ call['function']['name'] }}\", \"arguments\": {{ call['function']['arguments'] | tojson }}}"
    "</tool_call>{% endfor %}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""The chat template of the experiment, with the tool calls that TRL renders from messages."""

RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": "<end>", "content": "text"},
    },
}
"""The response template by which transformers finds tool calls."""


async def calculate(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: Numbers with + - * / and parentheses.

    Returns:
        The result.
    """
    from embodyflow.agents.calculator import calculate as compute

    await asyncio.sleep(float(os.environ["WAIT_FACTOR"]) * wait_of(expression))
    return compute(expression)


def config_of(*words: str) -> Any:
    from embodyflow.config.composition.compose import compose_config

    rollout = ("rollout.num_workers=1", f"rollout.num_groups={NUM_GROUPS}", f"rollout.group_size={GROUP_SIZE}")
    agent = ("rollout.agent.max_turns=2", "rollout.agent.tools=[benchmarks.agents.agent_against_trl:calculate]")
    return compose_config(
        ["experiment=calculator", *rollout, *agent, f"rollout.max_response_tokens={MAX_TOKENS}", *words]
    )


def build_trainer(config: Any) -> Any:
    from embodyflow.training.language_trainer import LanguageTrainer

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    trainer = LanguageTrainer(config, 0, 1)
    trainer.connect(address)
    return trainer


def train(pipe: Any, steps: int, folder: Path) -> None:
    """Write a model that learned to call the tool: its folder for TRL, and its weights for us."""
    from embodyflow.data.batches import to_batch
    from embodyflow.rollouts.agents.agent_rollout import AgentRollout

    os.environ["WAIT_FACTOR"] = "0"
    config = config_of(f"warm_start.steps={steps}", "warm_start.until=null")
    rollout, trainer = AgentRollout(config, 0, 1), build_trainer(config)
    trainer.fit(to_batch(rollout.demonstrate()), 0)
    trainer.save_pretrained(str(folder / "model"))
    trainer.save_weights_file(str(folder / "weights"))
    pipe.send("trained")
    os._exit(0)  # gloo's threads may abort a normal end


class PassClock:
    """CPU seconds of this process in our model's passes, while :attr:`runs` is true."""

    def __init__(self) -> None:
        self.seconds, self.runs = 0.0, False

    def watch(self, owner: type, name: str) -> None:
        """Count the calls of a method."""
        method = getattr(owner, name)

        @functools.wraps(method)
        def watched(*arguments: Any) -> Any:
            if not self.runs:
                return method(*arguments)
            start = time.process_time()
            try:
                return method(*arguments)
            finally:
                self.seconds += time.process_time() - start

        setattr(owner, name, watched)


PASSES = PassClock()


def build_ours(folder: Path) -> Callable[[int], tuple[int, int]]:
    from embodyflow.generation.conversations.row_passes import RowPasses
    from embodyflow.process.heap import freeze_objects
    from embodyflow.rollouts.agents.agent_rollout import AgentRollout

    config = config_of()
    rollout, trainer = AgentRollout(config, 0, 1), build_trainer(config)
    trainer.load_weights_file(str(folder / "weights"))
    freeze_objects()  # as a rollout worker does
    rollout.update_weights(trainer.weights() | trainer.probe(), 1)
    PASSES.watch(RowPasses, "hidden")
    PASSES.watch(RowPasses, "logits")

    def play(number: int) -> tuple[int, int]:
        rows = rollout.play(rollout.training_episodes(0, number + 1), "train", (0, number, "rollout"))
        return int(rows["tool_calls"].sum()), int(rows["loss_mask"].sum())

    return play


def build_trl(folder: Path) -> Callable[[int], tuple[int, int]]:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from embodyflow.prompts.epochs import shuffled_rows
    from embodyflow.prompts.prompt_registry import build_prompt_source

    config = config_of()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, RESPONSE
    source = build_prompt_source(config.data, tokenizer, config.rollout.max_prompt_tokens)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            use_cpu=True,
            bf16=False,
            report_to="none",
            per_device_train_batch_size=NUM_GROUPS * GROUP_SIZE,
            num_generations=GROUP_SIZE,
            max_completion_length=MAX_TOKENS,
            max_tool_calling_iterations=1,
            temperature=1.0,
        ),
        train_dataset=Dataset.from_list([{"prompt": list(source.prompt("train", 0).messages or ())}]),
        processing_class=tokenizer,
        tools=[calculate],
    )

    trainer.model.train()

    def play(number: int) -> tuple[int, int]:
        chosen = shuffled_rows(0, source.num_prompts("train"), number * NUM_GROUPS, NUM_GROUPS)
        prompts = [list(source.prompt("train", int(row)).messages or ()) for row in chosen for _ in range(GROUP_SIZE)]
        # The caller of _generate sets the tools, and then also computes log-probs and rewards.
        trainer._sync_tool_dicts = [{}] * len(prompts)
        trainer._async_tool_dicts = [{"calculate": calculate}] * len(prompts)
        masks = trainer._generate(prompts)[2]
        calls = trainer._metrics["train"]["tools/call_frequency"][-1] * len(prompts)
        return round(calls), sum(map(sum, masks))

    return play


def contender(pipe: Any, name: str, folder: Path) -> None:
    """Answer ``(round, factor, watched)`` with a :class:`Round`; end at ``None``."""
    import torch

    torch.set_num_threads(1)
    play = build_ours(folder) if name == OURS else build_trl(folder)
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        number, factor, PASSES.runs = message
        os.environ["WAIT_FACTOR"] = str(factor)
        start, cpu, passes = time.perf_counter(), time.process_time(), PASSES.seconds
        calls, tokens = play(number)
        times = (time.perf_counter() - start, time.process_time() - cpu, PASSES.seconds - passes)
        pipe.send(Round(calls, tokens, *times))
    os._exit(0)  # gloo's threads may abort a normal end


class Round(NamedTuple):
    """One rollout: its calls and sampled tokens, its wall and CPU seconds, and CPU seconds in our passes if watched."""

    calls: int
    tokens: int
    wall: float
    cpu: float
    passes: float


def measure(contenders: dict[str, Process], factor: float, num_rounds: int) -> tuple[dict[str, Any], float]:
    """Play rollouts in turns; return figures without those of the first round, and the share of our passes."""
    rounds: dict[str, list[Round]] = {name: [] for name in contenders}
    for number in range(num_rounds + 1):
        for name, process in contenders.items():
            rounds[name].append(process.ask((number, factor, False)))
    watched: list[Round] = [contenders[OURS].ask((number, factor, True)) for number in range(1, num_rounds + 1)]
    passes = statistics.median(each.passes / each.cpu for each in watched)
    return {name: figures(each[1:]) for name, each in rounds.items()}, passes


def figures(rounds: list[Round]) -> dict[str, Any]:
    episodes = NUM_GROUPS * GROUP_SIZE
    return {
        "episodes_per_second": statistics.median(episodes / each.wall for each in rounds),
        "episodes_per_cpu_second": statistics.median(episodes / each.cpu for each in rounds),
        "tokens_per_second": statistics.median(each.tokens / each.wall for each in rounds),
        "calls_per_episode": statistics.mean(each.calls / episodes for each in rounds),
        "seconds": [round(each.wall, 3) for each in rounds],
        "cpu_seconds": [round(each.cpu, 3) for each in rounds],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps on demonstrations")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="only tools that answer at once")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    waits = ["instant"] if arguments.quick else list(WAITS)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        Process(train, arguments.steps, Path(folder)).join()
        contenders = {name: stack.enter_context(Process(contender, name, Path(folder))) for name in (OURS, TRL)}
        comparisons = [compare(workload, contenders, arguments.rounds * REPEATS[workload]) for workload in waits]
    write_report(arguments.output, ("torch", "transformers", "trl"), comparisons, rounds=arguments.rounds)


def compare(workload: str, contenders: dict[str, Process], num_rounds: int) -> dict[str, Any]:
    """Measure one workload, print it and return it for the results file."""
    rows, passes = measure(contenders, WAITS[workload], num_rounds)
    ours, trl = rows[OURS], rows[TRL]
    ratios = {
        "episodes_ratio": ours["episodes_per_second"] / trl["episodes_per_second"],
        "cpu_ratio": ours["episodes_per_cpu_second"] / trl["episodes_per_cpu_second"],
    }
    ratios["cpu_ratio_bound"] = ratios["cpu_ratio"] / passes
    print(f"\n{workload}\n  {'':18}{'episodes/s':>12}{'per CPU s':>12}{'tokens/s':>10}{'calls':>8}")
    for name, row in rows.items():
        speeds = row["episodes_per_second"], row["episodes_per_cpu_second"], row["tokens_per_second"]
        print("  {:18}{:12.1f}{:12.1f}{:10.0f}{:8.2f}".format(name, *speeds, row["calls_per_episode"]))
    print(
        "  {} against {}: {:.2f}x, {:.2f}x per CPU second, {:.2f}x if only passes took time".format(
            OURS, TRL, *ratios.values()
        )
    )
    return {"workload": workload, "contenders": rows, "passes": passes, **ratios}


if __name__ == "__main__":
    main()
