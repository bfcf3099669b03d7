"""One iteration of GRPO on a language model: ours compared with TRL's GRPOTrainer.

Run ``python -m benchmarks.language.llm_grpo`` or ``python benchmarks/language/llm_grpo.py`` (about three minutes),
after ``pip install trl==1.16.0`` into the project's environment, which changes nothing else there. The model is a Qwen3
with 0.6 million random weights in float32, on one CPU thread per contender, with 8 responses to each of 8 prompts.
There are three workloads: responses of 32 tokens to prompts of 6; long-tailed responses of at most 96 tokens, which one
token in a vocabulary of two dozen ends; and responses of 32 tokens to prompts of 90, each of which TRL computes 8
times. ``--model <file.gguf or folder>`` takes a published model in place of the small one, with 2 prompts; a line break
ends its long-tailed responses.

Both generate with transformers, compute log-probs under a reference policy for a KL term, and take one step of AdamW on
all 64 rows. Ours is the computation of a run's workers without Ray and Prefect, whose cost
benchmarks/orchestration/orchestration.py measures. It has separate rollout and trainer models: its ratio is to the
log-probs recorded while sampling (``algorithm.old_log_probs=recorded``), of which the trainer recomputes one row in 16
as a parity check. It publishes new weights to the generation engine and checks the probe. TRL has one model for both,
and its ratio is to itself. All other work counts as `rest`: rewards, advantages, padding, TRL's metrics.

Each contender has its own process, and they take turns, so other load on the machine affects both. Ratios are taken per
round, of wall seconds and of the process's CPU seconds; the figures are their medians over the rounds.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.commands import ROOT
from benchmarks.report import write_report

OURS, TRL = "embodyflow", "trl"
PARTS = ("generate", "log_probs", "train", "sync", "rest")
GROUP_SIZE, LEARNING_RATE, KL = 8, 1e-6, 0.04
WORKLOADS = {  # numbers in a prompt, maximum response length, True if responses may end earlier
    "64 responses of 32 tokens": (2, 32, False),
    "64 long-tailed responses": (2, 96, True),
    "64 responses of 32 tokens to long prompts": (30, 32, False),
}
NUM_WARM_UP = 2
RESULTS = ROOT / "benchmarks" / "results" / "llm_grpo.json"

Round = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What both contenders do.

    Attributes:
        folder: Folder of the model.
        words: Words of our configuration that choose the model.
        num_prompts: Prompts of a round.
        num_numbers: Numbers in a prompt.
        longest: Maximum length of a response.
        ends: Whether responses may end earlier.
        num_rounds: Rounds with the warm-up.
    """

    folder: Path
    words: tuple[str, ...]
    num_prompts: int
    num_numbers: int
    longest: int
    ends: bool
    num_rounds: int

    @property
    def num_rows(self) -> int:
        """Responses of a round."""
        return self.num_prompts * GROUP_SIZE

    def prompts(self, round_: int) -> list[str]:
        """Return the prompts of a round."""
        numbers = np.random.default_rng(round_).integers(10, 100, size=(self.num_prompts, self.num_numbers)).tolist()
        return ["+".join(map(str, each)) + "=" for each in numbers]


class Clock:
    """Adds up wall and CPU seconds by part."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, (0.0, 0.0))
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = self._now()
        yield
        self.seconds[name] = _add(self.seconds[name], start, self._now())

    def stop(self, tokens: int) -> Round:
        """Return the round: seconds in total and by part, with ``rest`` for all others, and the number of tokens."""
        total = _add((0.0, 0.0), self._start, self._now())
        named = [sum(column) for column in zip(*self.seconds.values(), strict=True)]
        self.seconds["rest"] = (total[0] - named[0], total[1] - named[1])
        parts = {name: {"wall": wall, "cpu": cpu} for name, (wall, cpu) in self.seconds.items()}
        return {"total": {"wall": total[0], "cpu": total[1]}, **parts, "tokens": tokens}


def _add(total: tuple[float, float], start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    return total[0] + end[0] - start[0], total[1] + end[1] - start[1]


def reward(response: str) -> float:
    return response.count("1") / (len(response) + 1)


def run_config(words: Sequence[str], num_prompts: int) -> Any:
    from embodyflow.config.composition.compose import compose_config

    return compose_config(
        [
            *("experiment=math", "run_id=benchmark", "rollout.num_workers=1", f"rollout.num_groups={num_prompts}"),
            *(f"rollout.group_size={GROUP_SIZE}", "rollout.max_response_tokens=96", "trainer.num_minibatches=1"),
            *("trainer.schedule.warmup_iterations=0", "trainer.schedule.name=constant", "evaluation.num_prompts=8"),
            *(f"trainer.learning_rate={LEARNING_RATE}", f"+algorithm.kl.coef={KL}"),
            *words,
        ]
    )


def save_model(folder: Path, words: Sequence[str], end: str | None = None) -> None:
    """Write the model that our configuration chooses as a folder that transformers reads.

    Args:
        folder: The folder.
        words: Words of our configuration that choose the model.
        end: Token that ends a response; ``None`` means that of the tokenizer.
    """
    from embodyflow.policies.language.causal_lm.modeling_causal_lm import build_model, save_folder
    from embodyflow.policies.language.causal_lm.tokenizer_causal_lm import build_tokenizer

    policy = run_config(words, num_prompts=8).policy
    tokenizer = build_tokenizer(policy)
    if end is not None:
        tokenizer.eos_token = end
    save_folder(build_model(policy, tokenizer), tokenizer, folder)


def ours(job: Job, pipe: Connection) -> None:
    import torch

    import tasks
    from embodyflow.algorithms.credit.shaping import place_on_last_token
    from embodyflow.config.generation import HFConfig
    from embodyflow.data.batches import to_batch
    from embodyflow.generation.engines import build_generation_engine
    from embodyflow.generation.interface import Request, Sampling
    from embodyflow.generation.probe import compare, probe_sequences
    from embodyflow.rollouts.language.language_rollout import columns_of
    from embodyflow.training.language_trainer import LanguageTrainer

    config = run_config(job.words, job.num_prompts)
    trainer: Any = LanguageTrainer(config, 0, 1)
    trainer.connect(f"127.0.0.1:{_free_port()}")
    engine = build_generation_engine(HFConfig(max_num_seqs=job.num_rows), job.folder, "cpu")
    tokenizer = trainer.policy.tokenizer
    sampling = Sampling(max_tokens=job.longest, stop_token_ids=(tokenizer.eos_token_id,) if job.ends else ())
    sequences = probe_sequences(config.seed, len(tokenizer))
    weights: dict[str, Any] = trainer.weights()
    engine.update_weights(weights, 0)
    rows = torch.arange(job.num_rows)
    for round_ in range(job.num_rounds):
        pipe.recv()
        clock, call = Clock(), SimpleNamespace(policy_version=round_)
        with clock.part("generate"):
            different = [tuple(tokenizer(text)["input_ids"]) for text in job.prompts(round_)]
            prompts = [prompt for prompt in different for _ in range(GROUP_SIZE)]
            requests = [Request(prompt, job.num_rows * round_ + row) for row, prompt in enumerate(prompts)]
            completions = engine.generate(requests, sampling)
            batch = to_batch(columns_of(prompts, completions))
        batch["uid"], batch["group_id"], batch["seed"] = rows + job.num_rows * round_, rows // GROUP_SIZE, rows
        texts = tokenizer.batch_decode([one.token_ids for one in completions], skip_special_tokens=True)
        mask, scores = batch["loss_mask"], torch.tensor([reward(text) for text in texts])
        batch["rewards"] = place_on_last_token(scores, mask.flatten(1)).view(mask.shape)
        batch = tasks.compute_advantage(batch, worker=trainer).batch
        with clock.part("log_probs"):
            batch = tasks.compute_old_log_prob(batch, worker=trainer, call=call).batch
            batch = tasks.compute_ref_log_prob(batch, worker=trainer).batch
        with clock.part("train"):
            trainer.step(batch, positions=np.arange(job.num_rows), total_rows=job.num_rows, seed=round_)
        with clock.part("sync"):
            engine.update_weights(published(trainer, weights), round_ + 1)
            compare(trainer.probe(), engine.score(sequences), 1e-4, round_ + 1, rank=0)
        pipe.send(clock.stop(int(mask.sum())))
    trainer.close()


def published(trainer: Any, weights: dict[str, Any]) -> dict[str, Any]:
    """Write a trainer's weights over those of the round before, as a run does in a segment of shared memory."""
    for part in trainer.weights_in_parts().parts:
        weights[part.name].reshape(-1)[part.start : part.start + part.values.size] = part.values
    return weights


def trl(job: Job, pipe: Connection) -> None:
    _trl_trainer(job, pipe).train()


def _trl_trainer(job: Job, pipe: Connection) -> Any:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    class Timed(GRPOTrainer):
        """Times the trainer's parts; everything after the inputs are prepared is training."""

        def _prepare_inputs(self, generation_batch: Any) -> Any:
            inputs = super()._prepare_inputs(generation_batch)
            self.tokens = int(inputs["completion_mask"].sum())
            self.training = self.clock.part("train")
            self.training.__enter__()
            return inputs

        def _generate_single_turn(self, *arguments: Any, **options: Any) -> Any:
            with self.clock.part("generate"):
                return super()._generate_single_turn(*arguments, **options)

        def _get_per_token_logps_and_entropies(self, *arguments: Any, **options: Any) -> Any:
            if torch.is_grad_enabled():
                return super()._get_per_token_logps_and_entropies(*arguments, **options)
            with self.clock.part("log_probs"):
                return super()._get_per_token_logps_and_entropies(*arguments, **options)

    class Turns(TrainerCallback):
        def on_step_begin(self, *arguments: Any, **options: Any) -> None:
            pipe.recv()
            trainer.clock = Clock()

        def on_step_end(self, *arguments: Any, **options: Any) -> None:
            trainer.training.__exit__(None, None, None)
            pipe.send(trainer.clock.stop(trainer.tokens))

    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(job.folder, dtype=torch.float32),
        reward_funcs=lambda completions, **columns: [reward(text) for text in completions],
        args=_trl_settings(job),
        train_dataset=Dataset.from_list(
            [{"prompt": text} for index in range(job.num_rounds) for text in job.prompts(index)]
        ),
        processing_class=AutoTokenizer.from_pretrained(job.folder),
        callbacks=[Turns()],
    )
    return trainer


def _trl_settings(job: Job) -> Any:
    """Return the settings with which TRL's trainer does the same as ours, one round per step."""
    from trl import GRPOConfig

    options = {} if job.ends else {"generation_kwargs": {"min_new_tokens": job.longest}}
    with tempfile.TemporaryDirectory() as output:
        return GRPOConfig(
            **options,
            output_dir=output,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=job.num_rows,
            num_generations=GROUP_SIZE,
            max_completion_length=job.longest,
            max_steps=job.num_rounds,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            beta=KL,
            epsilon_high=0.28,
            temperature=1.0,
            shuffle_dataset=False,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


CONTENDERS: dict[str, Callable[..., None]] = {OURS: ours, TRL: trl}
"""Functions that answer each message with one round."""


def contender(pipe: Connection, name: str, job: Job) -> None:
    import torch

    torch.set_num_threads(1)
    CONTENDERS[name](job, pipe)


class Process:
    """A contender in its own process."""

    def __init__(self, name: str, job: Job) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=contender, args=(theirs, name, job))
        self._process.start()
        theirs.close()

    def round(self) -> Round:
        self._pipe.send("go on")
        return self._pipe.recv()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *details: object) -> None:
        self._pipe.close()
        self._process.join()


def measure(job: Job) -> dict[str, list[Round]]:
    """Run the contenders in turns; return their rounds without the warm-up."""
    with ExitStack() as stack:
        processes = {name: stack.enter_context(Process(name, job)) for name in CONTENDERS}
        rounds: dict[str, list[Round]] = {name: [] for name in processes}
        for _ in range(job.num_rounds):
            for name, process in processes.items():
                rounds[name].append(process.round())
    return {name: each[NUM_WARM_UP:] for name, each in rounds.items()}


def report(workload: str, rounds: dict[str, list[Round]]) -> dict[str, Any]:
    """Print one comparison and return it for the results file."""
    parts = ("total", *PARTS)
    medians = {
        name: {
            part: {kind: statistics.median(r[part][kind] for r in each) for kind in ("wall", "cpu")} for part in parts
        }
        for name, each in rounds.items()
    }
    ratios = {
        part: {
            kind: statistics.median(
                theirs[part][kind] / mine[part][kind] for mine, theirs in zip(rounds[OURS], rounds[TRL], strict=True)
            )
            for kind in ("wall", "cpu")
        }
        for part in ("total", "generate", "train")
    }
    tokens = {name: statistics.mean(r["tokens"] for r in each) for name, each in rounds.items()}
    print(f"\n{workload}: tokens per round {tokens[OURS]:.0f} and {tokens[TRL]:.0f}; wall / CPU milliseconds")
    for part in parts:
        cells = [f"{1e3 * medians[name][part][kind]:8.1f}" for name in rounds for kind in ("wall", "cpu")]
        ratio = "".join(f"  {ratios[part][kind]:.2f}x" for kind in ("wall", "cpu")) if part in ratios else ""
        print(f"  {part:10}{''.join(cells)}{ratio}")
    by_round = {name: [round(r["total"]["wall"], 5) for r in each] for name, each in rounds.items()}
    return {
        "workload": workload,
        "tokens": tokens,
        "seconds": medians,
        "seconds_per_round": by_round,
        f"{TRL} / {OURS}": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--model", help="published model, a GGUF file or a folder, in place of the small one")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.model and arguments.output == RESULTS:
        parser.error("--model needs --output, since the results are those of the small model")
    os.environ["OMP_NUM_THREADS"] = "1"
    num_prompts, total = 2 if arguments.model else 8, arguments.rounds + NUM_WARM_UP
    with tempfile.TemporaryDirectory() as folder:
        words: tuple[str, ...] = ()
        if arguments.model:
            save_model(Path(folder), ("policy=causal_lm", f"policy.path={arguments.model}"), end="\n")
            words = ("policy=causal_lm", f"policy.path={folder}")
        else:
            save_model(Path(folder), words)
        jobs = {name: Job(Path(folder), words, num_prompts, *WORKLOADS[name], total) for name in arguments.workloads}
        comparisons = [report(name.replace("64", str(job.num_rows)), measure(job)) for name, job in jobs.items()]
    write_report(arguments.output, ("torch", "transformers", "trl"), comparisons, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
