"""``embodyflow plan --from RUN``."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from embodyflow.cli.forecast import ForecastOptions, target_of
from embodyflow.cli.main import main
from embodyflow.config.composition.compose import compose_config
from embodyflow.record.run_folder import RunFolder
from embodyflow.stack.services import num_cores

SMALL = ("env.max_steps=20", "evaluation.num_goals=4", "rollout.num_workers=2", "rollout.num_groups=4")
AHEAD = ("rollout.max_staleness=1", "algorithm.old_log_probs=proximal")


@pytest.fixture(autouse=True)
def quiet_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodyflow.stack.signals.exit_on_signals", lambda: None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with the run ``mine``, the run ``ended`` without iterations, and an evaluation."""
    for name, rollout in (("mine", 4.0), ("ended", 0.0), ("streamed", 4.0)):
        words = ("rollout.mode=streaming",) if name == "streamed" else ()
        folder = RunFolder.create(compose_config((f"run_root={tmp_path}", f"run_id={name}", *SMALL, *words)))
        for iteration in range(1, 5) if rollout else ():
            folder.metrics.append(line(iteration, rollout + 0.1 * iteration))
    return tmp_path


def line(iteration: int, rollout: float) -> dict[str, Any]:
    seconds = {"rollout": rollout, "rollout_cpu": 2 * rollout, "train_actor": 2.0, "train_actor_cpu": 2.0}
    seconds |= {"iteration": rollout + 3.0, "wait_for_rollout": rollout + 0.5, "commit": 0.5, "flow_queued": 0.2}
    bytes_moved = {"perf/bytes_read": 8e6, "perf/bytes_written": 4e6}
    return {"iteration": iteration, **{f"perf/{name}_seconds": value for name, value in seconds.items()}} | bytes_moved


def forecast(root: Path, *words: str) -> int:
    return main(["plan", "--from", "mine", "--run-root", str(root), *words])


def times_of(lines: Sequence[str]) -> list[float]:
    """Return the seconds of a table's rows."""
    found = [re.search(r"(?:ahead|synchronous) +([\d.,]+) ", each) for each in lines]
    return [float(match[1].replace(",", "")) for match in found if match]


def test_a_forecast_fits_a_terminal(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = root / "gantt.svg"
    assert forecast(root, "--cpus", "4", "rollout.num_workers=4", *AHEAD, "--picture", str(picture)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"mine: 3 iterations, without the first; {num_cores():g} cores"
    assert lines[1] == "As it ran: 7.8 s measured, 0.2 s of them without a core; 7.8 s simulated."
    asked = lines[lines.index("Forecast of an iteration on 4 cores, with its commit and without evaluations:") + 2]
    assert asked.split()[:6] == ["4", "workers,", "1", "rank", "1", "ahead"]
    assert 2.5 <= float(asked.split()[6]) <= 4.5, "half of the rollout's 4.3 s; the rest takes 3 s and more"
    assert any(each.startswith("Peak GiB of processes") for each in lines)
    assert max(len(each) for each in lines if not each.startswith("picture=")) <= 80
    drawn = picture.read_text()
    assert drawn.startswith("<svg") and "train_actor" in drawn and "4 workers, 1 rank, 1 ahead" in drawn


def test_a_run_is_repeated_on_the_cores_that_it_had(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for cpus in ("1", "64"):
        assert forecast(root, "--cpus", cpus) == 0
        lines = capsys.readouterr().out.splitlines()
        found.append((lines[:2], times_of(lines[2:])[0]))
    (one_core, slow), (many, fast) = found
    assert one_core == many
    assert slow > fast


def test_a_forecast_for_devices_names_the_fastest_placement(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--nodes", "2", "--gpus", "2", "--cpus", "8", "--model", "7B", "rollout.num_groups=16")
    assert forecast(root, *words, "--assume", "link_gb=25") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine on 2 × 2 GPUs, 7,000,000,000 parameters"
    first = lines.index("Fastest of the candidates, by formulas of --assume's figures:") + 2
    times = times_of(lines[first:])
    assert times == sorted(times)
    assert max(map(len, lines)) <= 80
    assert forecast(root, *words, "--assume", "link_gb=25", "--assume", "flops_share=0.04") == 0
    assert times_of(capsys.readouterr().out.splitlines()[first:])[0] > times[0]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--from", "mime"], "mime: {root}/ has no such run; did you mean mine?"),
        (["--from", "ended"], "ended: {root}/ended/metrics.jsonl has no iteration with its time yet"),
        (["--from", "streamed"], "streamed: has rollout.mode=streaming; allowed are runs with rollout.mode=iterations"),
        (["--from", "mine", "env.max_steps=9"], "env.max_steps=9: a forecast does not know what it costs; allowed are"),
        (["--from", "mine", "--model", "7B"], "--model and --assume: only used with --gpus, for whose devices there"),
        (["--from", "mine", "--picture", "a.png"], "--picture=a.png: allowed with --from are files ending in .svg"),
        (["--from", "mine", "--gpus", "8", "--assume", "x=1"], "--assume x=1: allowed are tflops,"),
        (["--from", "mine", "--gpus", "80"], "--gpus=80: 80 devices are more than 4 groups and"),
        (["--from", "mine", "--flow", "ppo"], "--flow, --placement and --device-gib: only used without --from"),
        (["--assume", "tflops=1"], "--assume: only used with --from"),
    ],
)
def test_a_wrong_forecast_is_refused_in_one_line(
    root: Path, words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words, "--run-root", str(root)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(answer.format(root=root))


def test_a_pass_of_a_value_head_is_one_of_the_policy() -> None:
    own, head = (
        target_of(ForecastOptions(["mine"]), compose_config(["algorithm=ppo", f"critic.features={features}"]))
        for features in ("own", "policy")
    )
    assert head.critic.num_params == head.model.num_params == own.model.num_params
    assert 0 < head.critic.trained != own.critic.trained
