"""Runs that are trained again from their record, with real flows, Ray and models."""

import subprocess
import sys

import pytest
from agent_jobs import WORDS, run_words
from language_jobs import TINY
from small_runs import ROOT, Runs
from support_path import SUPPORT_PATH
from waiting import finish

from embodyflow.record.ledger import Ledger

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]

LANGUAGE = tuple(word for word in TINY if not word.startswith(("run_id=", "iterations=")))
LANGUAGE += ("filter.drop_uniform=false", "warm_start=null", "cluster.start_timeout=300")
AHEAD = ("rollout.max_staleness=1", "algorithm.old_log_probs=proximal")
FIRST_READY = (*AHEAD, "rollout.mode=streaming", "rollout.order=first_ready")
SYNCHRONOUS = (*LANGUAGE, "trainer.keep_checkpoints=4")
AGENT = run_words(*WORDS, "rollout.agent.tools=[{function: agent_jobs:look_up, timeout: 60}]", "rollout.num_workers=1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_api: str, ray_env: dict[str, str]) -> Runs:
    return Runs(tmp_path_factory.mktemp("reproduce")).served_by(prefect_api, PYTHONPATH=SUPPORT_PATH, **ray_env)


def run(runs: Runs, run_id: str, *words: str) -> None:
    process = runs.start(*words, f"run_id={run_id}", "iterations=4", f"run_root={runs.root}")
    output = finish(process, 600)
    assert process.returncode == 0, output[-4000:]


def reproduce(runs: Runs, run_id: str, *words: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "embodyflow.cli.main", "reproduce", run_id, "--run-root", str(runs.root), *words]
    done = subprocess.run(command, cwd=ROOT, env=runs.env, capture_output=True, text=True, timeout=600)
    print(done.stdout, done.stderr)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("synchronous", SYNCHRONOUS),
        ("ahead", (*LANGUAGE, *AHEAD)),
        ("published", (*LANGUAGE, *FIRST_READY, "rollout.interrupt.when=published")),
        ("agent", (*AGENT, *FIRST_READY)),
    ],
)
def test_a_run_is_equal_to_its_record(runs: Runs, name: str, words: tuple[str, ...]) -> None:
    run(runs, name, *words)
    code, lines = reproduce(runs, name)
    assert code == 0 and lines[-1].startswith("equal: ") and lines[-1].endswith("digests of iterations 1 to 4")
    digests = [line["weights_digest"] for line in runs.records(name) if "digests" in line]
    shown = [f"iteration {number}: equal, weights {digest[:12]}" for number, digest in enumerate(digests, 1)]
    assert lines[-5:-1] == shown
    assert [path.name for path in runs.root.glob(".reproduce-*")] == []


def test_the_first_difference_is_named(runs: Runs) -> None:
    """A record whose third iteration says something else, with right digests of its lines."""
    if not (runs.root / "synchronous").exists():
        run(runs, "synchronous", *SYNCHRONOUS)
    path = runs.root / "synchronous" / "ledger.jsonl"
    entries, kept = Ledger(path).entries, path.read_bytes()
    path.unlink()
    changed = Ledger(path)
    for entry in entries:
        facts = entry.facts
        if (entry.kind, entry.iteration) == ("commit", 3):
            facts = facts | {"weights_digest": "0" * 64}
        changed.append(entry.kind, entry.iteration, facts)
    code, lines = reproduce(runs, "synchronous", "--iterations", "3..4")
    path.write_bytes(kept)
    assert code == 1
    assert any(line.startswith("iteration 3: weights differ: recorded 000000000000, now ") for line in lines)
    assert lines[-1].startswith("the reproduction is kept in ")
