"""Rollouts with tools compared: ours, and those of TRL's GRPOTrainer.

Run ``python -m benchmarks.agent_against_trl`` or ``python benchmarks/agent_against_trl.py`` (about five minutes); needs
the packages trl and jmespath. A Qwen3 with 0.6 million weights first learns from demonstrations of the experiment
*calculator* to call the tool. Both contenders then play rollouts of 8 prompts with 8 samples each, with the same
weights, prompts, tool, temperature and limits, in float32 on one CPU thread: ours by ``AgentRollout.play``, TRL's by
the method of GRPOTrainer that samples with transformers, calls tools and samples on. Training steps are not part of it.

Tools answer at once, or after 50 ms to 2 s, log-normally with a median of 0.3 s. Each contender has its own process,
and they take turns, so other load on the machine affects both. Figures are medians over the rounds.
"""

import argparse
import asyncio
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.agent_generation import wait_of
from benchmarks.processes import Process
from benchmarks.report import write_report

NUM_GROUPS, GROUP_SIZE, MAX_TOKENS = 8, 8, 64
OURS, TRL = "embodyflow", "trl GRPOTrainer"
WAITS = {"instant": 0.0, "waiting": 1.0}
"""Factor of the tools' waits in each workload."""

RESULTS = Path(__file__).parent / "results" / "agent_against_trl.json"

TEMPLATE = (
    "{{ bos_token }}{% if tools %}{% for tool in tools %}{{ tool['function']['name'] }}{% endfor %}{% endif %}"
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>"
    "{\"name\": \"{{ call['function']['name'] }}\", \"arguments\": {{ call['function']['arguments'] | tojson }}}"
    "</tool_call>{% endfor %}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""The chat template of the experiment, with the tool calls that TRL renders from messages."""

SCHEMA = {
    "x-regex": r"^(?P<content>(?:(?!<tool_call>)[\s\S])*?)"
    r"(?P<tool_calls>(?:<tool_call>[\s\S]+?</tool_call>)+)?(?:<end>|$)",
    "type": "object",
    "properties": {
        "role": {"const": "assistant"},
        "content": {"type": "string"},
        "tool_calls": {
            "type": "array",
            "x-regex-iterator": r"<tool_call>(.+?)</tool_call>",
            "items": {
                "x-parser": "json",
                "x-parser-args": {"transform": "{type: 'function', function: @}"},
                "type": "object",
                "properties": {
                    "type": {"const": "function"},
                    "function": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string"},
                            "arguments": {"type": "object", "additionalProperties": {}},
                        },
                    },
                },
            },
        },
    },
}
"""Response schema by which TRL finds tool calls."""


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
    agent = ("rollout.agent.max_turns=2", "rollout.agent.tools=[benchmarks.agent_against_trl:calculate]")
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
    from embodyflow.rollouts.agent_rollout import AgentRollout

    os.environ["WAIT_FACTOR"] = "0"
    config = config_of(f"warm_start.steps={steps}", "warm_start.until=null")
    rollout, trainer = AgentRollout(config, 0, 1), build_trainer(config)
    trainer.fit(to_batch(rollout.demonstrate()), 0)
    trainer.save_pretrained(str(folder / "model"))
    trainer.save_weights_file(str(folder / "weights"))
    pipe.send("trained")
    os._exit(0)  # gloo's threads may abort a normal end


def build_ours(folder: Path) -> Callable[[int], tuple[int, int]]:
    from embodyflow.rollouts.agent_rollout import AgentRollout

    config = config_of()
    rollout, trainer = AgentRollout(config, 0, 1), build_trainer(config)
    trainer.load_weights_file(str(folder / "weights"))
    rollout.update_weights(trainer.weights() | trainer.probe(), 1)

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
    tokenizer.chat_template, tokenizer.response_schema = TEMPLATE, SCHEMA
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

    def play(number: int) -> tuple[int, int]:
        chosen = shuffled_rows(0, source.num_prompts("train"), number * NUM_GROUPS, NUM_GROUPS)
        prompts = [list(source.prompt("train", int(row)).messages or ()) for row in chosen for _ in range(GROUP_SIZE)]
        masks = trainer._generate(prompts)[2]
        calls = trainer._metrics["train"]["tools/call_frequency"][-1] * len(prompts)
        return round(calls), sum(map(sum, masks))

    return play


def contender(pipe: Any, name: str, folder: Path) -> None:
    """Answer ``(round, factor)`` with the calls, the sampled tokens and the seconds of a rollout; end at ``None``."""
    import torch

    torch.set_num_threads(1)
    play = build_ours(folder) if name == OURS else build_trl(folder)
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        number, factor = message
        os.environ["WAIT_FACTOR"] = str(factor)
        start = time.perf_counter()
        calls, tokens = play(number)
        pipe.send((calls, tokens, time.perf_counter() - start))
    os._exit(0)  # gloo's threads may abort a normal end


def measure(contenders: dict[str, Process], factor: float, num_rounds: int) -> dict[str, Any]:
    """Play rollouts in turns; return figures without those of the first round."""
    rounds: dict[str, list[tuple[int, int, float]]] = {name: [] for name in contenders}
    for number in range(num_rounds + 1):
        for name, process in contenders.items():
            rounds[name].append(process.ask((number, factor)))
    return {
        name: {
            "episodes_per_second": statistics.median(NUM_GROUPS * GROUP_SIZE / seconds for _, _, seconds in each[1:]),
            "tokens_per_second": statistics.median(tokens / seconds for _, tokens, seconds in each[1:]),
            "calls_per_episode": statistics.mean(calls / (NUM_GROUPS * GROUP_SIZE) for calls, _, _ in each[1:]),
            "seconds": [round(seconds, 3) for _, _, seconds in each[1:]],
        }
        for name, each in rounds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps on demonstrations")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        Process(train, arguments.steps, Path(folder)).join()
        contenders = {name: stack.enter_context(Process(contender, name, Path(folder))) for name in (OURS, TRL)}
        comparisons = []
        for workload, factor in WAITS.items():
            rows = measure(contenders, factor, arguments.rounds)
            ratio = rows[OURS]["episodes_per_second"] / rows[TRL]["episodes_per_second"]
            comparisons.append({"workload": workload, "contenders": rows, "episodes_ratio": ratio})
            print(f"\n{workload}\n  {'':18}{'episodes/s':>12}{'tokens/s':>10}{'calls':>8}")
            for name, row in rows.items():
                figures = row["episodes_per_second"], row["tokens_per_second"], row["calls_per_episode"]
                print(f"  {name:18}{figures[0]:12.1f}{figures[1]:10.0f}{figures[2]:8.2f}")
            print(f"  {OURS} against {TRL}: {ratio:.2f}x episodes per second")
    write_report(arguments.output, ("torch", "transformers", "trl"), comparisons, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
