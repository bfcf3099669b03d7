"""The suite of benchmarks: ratios, refusals, skips and errors, and no script is forgotten."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.suite import __main__ as suite
from benchmarks.suite import readers, rows
from benchmarks.suite.entries import ENTRIES, LEFT_OUT, MAX_SECONDS, Entry
from benchmarks.suite.figures import Figures, spread
from benchmarks.suite.terminal import WIDTH, table
from docs.generator.benchmark_tables import results
from docs.generator.benchmark_tables import suite as suite_tables

ROOT = Path(__file__).resolve().parents[2]
FACTS: dict[str, Any] = {
    "script": "one",
    "title": "One, beside another",
    "max_spread": 0.2,
    "measured": "2026-01-01",
    "machine": {"processor": "AuthenticAMD, AMD EPYC"},
    "versions": {},
    "seconds": 1.0,
}
QUIET = Figures("steady", "other", "s", (1.0, 2.0, 1.0), (3.0, 6.3, 3.3), lower_is_better=True)
NOISY = replace(QUIET, case="shaky", theirs=(1.0, 6.0, 9.0))


def committed(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


# ---- no script is forgotten


def test_every_script_is_in_the_suite_or_left_out_with_a_reason() -> None:
    paths = (ROOT / "benchmarks").rglob("*.py")
    scripts = {".".join(path.relative_to(ROOT / "benchmarks").with_suffix("").parts) for path in paths}
    scripts = {name for name in scripts if not name.startswith(("suite.", "stand_ins.")) and "__init__" not in name}
    chosen = [entry.script for entry in ENTRIES]
    assert sorted([*chosen, *LEFT_OUT]) == sorted(scripts)
    assert all(LEFT_OUT.values())


def test_the_limits_of_all_entries_keep_to_that_of_the_suite() -> None:
    assert sum(entry.max_seconds for entry in ENTRIES) <= MAX_SECONDS == 20 * 60


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_scripts_have_the_options_of_their_quick_forms(entry: Entry) -> None:
    source = (ROOT / "benchmarks" / f"{entry.script.replace('.', '/')}.py").read_text()
    options = [word for word in entry.arguments if word.startswith("--")]
    assert all(f'add_argument("{option}"' in source for option in (*options, "--output"))


def test_the_quick_form_of_ppo_has_the_rounds_that_a_spread_needs() -> None:
    [words] = [entry.arguments for entry in ENTRIES if entry.name == "ppo_control"]
    seeds = words[words.index("--seeds") + 1 :]
    replace(QUIET, ours=(1.0,) * len(seeds), theirs=(1.0,) * len(seeds))  # too few are refused


# ---- ratio and spread


def test_ratio_and_spread_of_times() -> None:
    # Ratios by round 3, 3.15, 3.3: median 3.15, quartiles 3.075 and 3.225.
    assert QUIET.ratios() == pytest.approx([3.0, 3.15, 3.3])
    row = rows.row_of(QUIET, FACTS)
    assert (row.status, row.ours, row.theirs, row.rounds) == ("measured", 1.0, 3.3, 3)
    assert row.ratio == pytest.approx(3.15)
    assert row.spread == pytest.approx(0.15 / 3.15)


def test_the_ratio_of_rates_is_ours_by_theirs() -> None:
    rates = replace(QUIET, lower_is_better=False, ours=(4.0, 6.0, 9.0), theirs=(2.0, 3.0, 3.0))
    assert rates.ratios() == [2.0, 2.0, 3.0]


def test_spread_is_the_interquartile_range_by_the_median() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((4 - 2) / 3)


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ((1.0, 1.0, 1.0), (1.0, 1.0), "3 rounds of ours, 2 of the peer"),
        ((1.0, 1.0), (1.0, 1.0), "at least 3 are needed"),
        ((1.0, 0.0, 1.0), (1.0, 1.0, 1.0), "not positive"),
    ],
)
def test_samples_without_a_ratio_are_refused(ours: tuple[float, ...], theirs: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(QUIET, ours=ours, theirs=theirs)


def test_a_noisy_row_has_no_figures() -> None:
    row = rows.row_of(NOISY, FACTS)  # ratios 1, 3, 9: quartiles 2 and 6, spread 4 / 3
    assert (row.status, row.ours, row.theirs, row.ratio) == ("too noisy", None, None, None)
    assert row.spread == pytest.approx(4 / 3)
    assert row.note == "the ratio's spread is 133%, its limit 20%"


# ---- figures of the committed results


def test_figures_of_vector_environments() -> None:
    document = committed("vector_env")
    for each, found in zip(document["comparisons"], readers.vector_env(document), strict=True):
        row = rows.row_of(found, FACTS | {"max_spread": 10.0})
        speeds = (each["contenders"][each[who]]["steps_per_second"] for who in ("ours", "best_peer"))
        assert (row.ours, row.theirs) == pytest.approx(tuple(speeds), rel=1e-3)
        assert row.ratio == pytest.approx(each["wall_ratio"], rel=0.1)  # the script divides medians


def test_figures_of_agents_beside_trl() -> None:
    document = committed("agent_against_trl")
    for each, found in zip(document["comparisons"], readers.agent_against_trl(document), strict=True):
        row = rows.row_of(found, FACTS | {"max_spread": 10.0})
        speeds = (contender["episodes_per_second"] for contender in each["contenders"].values())
        assert (row.ours, row.theirs) == pytest.approx(tuple(64 / speed for speed in speeds), rel=5e-3)


def test_figures_of_stable_baselines3_pair_seeds() -> None:
    cases = {each.case: each for each in readers.off_policy(committed("off_policy"))}
    assert {"half_cheetah", "hopper", "pendulum"} <= cases.keys()
    assert (cases["pendulum"].lower_is_better, len(cases["pendulum"].ours)) == (True, 3)
    assert {each.case for each in readers.ppo_control(committed("ppo_control"))} == {"half_cheetah", "reacher"}
    runs = [run for run in committed("off_policy")["runs"] if run["experiment"] == "pendulum"]
    runs = [run for run in runs if (run["contender"], run["seed"]) != ("embodyflow", 1)]
    with pytest.raises(ValueError, match=r"the seeds of the contenders differ: \[0, 2\] and \[0, 1, 2\]"):
        readers.off_policy({"runs": runs})


@pytest.mark.parametrize(
    ("read", "document", "case", "ratios"),
    [
        (
            readers.libero_steps,
            {"steps_per_cpu_second_per_round": {"libero_object/0": {"ours": [4, 4, 6], "robosuite": [2, 2, 2]}}},
            "libero_object/0",
            [2, 2, 3],
        ),
        (
            readers.libero_images,
            {
                "comparisons": [
                    {
                        "chunk_size": 5,
                        "steps_per_wall_second_per_round": {
                            "embodyflow": [4, 4, 6],
                            "LIBERO SubprocVectorEnv": [2, 2, 2],
                        },
                    }
                ]
            },
            "images, chunks of 5",
            [2, 2, 3],
        ),
        (
            readers.data_plane,
            {
                "results": [
                    {
                        "kind": "flat",
                        "megabytes": 1,
                        "layout": [2, 4],
                        "ours": {"deliver_ms_per_round": [1, 2, 4]},
                        "ray refs": {"deliver_ms_per_round": [4, 4, 4]},
                    }
                ]
            },
            "1 MB flat, 2 → 4",
            [4, 2, 1],
        ),
        (
            readers.planning,
            [
                {"rows": 10_000, "sources": 8, "targets": 8, "nodes": 4, "peer": True}
                | {"ours_ms_per_round": [1, 2, 4], "verl_ms_per_round": [4, 4, 4]},
                {"rows": 1, "sources": 1, "targets": 1, "nodes": 1, "peer": False, "ours_ms_per_round": [1, 1, 1]},
            ],
            "10,000 rows, 8 → 8, nodes: 4",
            [4, 2, 1],
        ),
        (
            readers.generation,
            {
                "comparisons": [
                    {
                        "workload": "long",
                        "contenders": {
                            "embodyflow hf": {"tokens_per_wall_second_per_round": [4, 4, 6]},
                            "transformers generate": {"tokens_per_wall_second_per_round": [2, 2, 2]},
                        },
                    }
                ]
            },
            "long",
            [2, 2, 3],
        ),
        (
            readers.llm_grpo,
            {"comparisons": [{"workload": "w", "seconds_per_round": {"embodyflow": [1, 2, 4], "trl": [4, 4, 4]}}]},
            "w",
            [4, 2, 1],
        ),
    ],
)
def test_figures_of_the_other_scripts(read: Any, document: Any, case: str, ratios: list[float]) -> None:
    [found] = read(document)
    assert found.case == case
    assert found.ratios() == ratios


def test_figures_of_orchestration() -> None:
    blocks = {"SQLite": {"raw": [1, 1, 1], "plain": [4, 4, 4], "ours": [1, 2, 4], "one": [2, 2, 2]}}
    ours, one = readers.orchestration({"milliseconds_per_block": blocks})
    assert (ours.ratios(), one.ratios()) == ([4, 2, 1], [2, 2, 2])


# ---- runs


def entry(script: str, **changes: Any) -> Entry:
    return replace(Entry(script, script, (), (), read_pair, 0.2, 30), **changes)


def read_pair(document: Mapping[str, Any]) -> list[Figures]:
    return [Figures("pair", "other", "s", tuple(document["ours"]), tuple(document["theirs"]), lower_is_better=True)]


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with stand-ins for the package of benchmarks; the suite runs these."""
    (folder := tmp_path / "benchmarks").mkdir()
    writes = "import pathlib, sys\npathlib.Path(sys.argv[-1]).write_text('{}')\n"
    (folder / "__init__.py").touch()
    (folder / "quiet.py").write_text(writes.format('{"ours": [1, 1, 1], "theirs": [2, 2, 2]}'))
    (folder / "noisy.py").write_text(writes.format('{"ours": [1, 1, 1], "theirs": [2, 4, 8]}'))
    (folder / "fails.py").write_text("raise RuntimeError('the simulator is gone')\n")
    (folder / "hangs.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(rows, "ROOT", tmp_path)
    return tmp_path


def run_suite(folder: Path, entries: list[Entry], *words: str) -> tuple[int, list[dict[str, Any]]]:
    output = folder / "suite.json"
    code = suite.main([*words, "--output", str(output), "--folder", str(folder / "logs")], entries)
    return code, json.loads(output.read_text())["rows"]


def test_a_script_that_fails_leaves_the_other_rows(scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run_suite(scripts, [entry("fails"), entry("quiet")])
    assert code == 1
    assert [(row["status"], row["ratio"]) for row in found] == [("failed", None), ("measured", 2.0)]
    assert found[0]["note"] == "exit code 1: RuntimeError: the simulator is gone; see logs/fails.log"
    shown = capsys.readouterr()
    assert "the simulator is gone" in shown.out
    assert shown.err == "fails: failed\n"


def test_a_script_that_takes_too_long_is_stopped(scripts: Path) -> None:
    code, [row] = run_suite(scripts, [entry("hangs", max_seconds=6)])
    assert (code, row["status"]) == (1, "failed")
    assert row["note"] == "took longer than 6 s; see logs/hangs.log"


def test_a_noisy_entry_is_named(scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, [row] = run_suite(scripts, [entry("noisy")])
    assert (code, row["status"], row["ratio"]) == (1, "too noisy", None)
    assert capsys.readouterr().err == "noisy (pair): too noisy\n"


def test_a_missing_package_skips_the_entry(scripts: Path) -> None:
    code, [row] = run_suite(scripts, [entry("fails", packages=("torch", "no-such-package"))])
    assert (code, row["status"], row["note"]) == (0, "skipped", "needs no-such-package")
    assert "torch" in row["versions"]


def test_a_missing_variable_skips_the_entry(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIBERO_ASSETS", raising=False)
    code, [row] = run_suite(scripts, [entry("fails", variables=("LIBERO_ASSETS",))])
    assert (code, row["status"], row["note"]) == (0, "skipped", "needs the variable LIBERO_ASSETS")


def test_a_result_file_without_the_figures_is_an_error(scripts: Path) -> None:
    code, [row] = run_suite(scripts, [entry("quiet", read=lambda document: [document["other"]])])
    assert (code, row["note"]) == (1, "KeyError: 'other'")


def test_rows_of_entries_that_do_not_run_stay(scripts: Path) -> None:
    entries = [entry("quiet"), entry("noisy")]
    run_suite(scripts, entries)
    # A source of the same size that is written within the same second would be run from the old bytecode.
    (scripts / "benchmarks" / "noisy.py").write_text((scripts / "benchmarks" / "quiet.py").read_text() + "# steady\n")
    code, found = run_suite(scripts, entries, "--only", "noisy")
    assert code == 0
    assert [(row["script"], row["status"]) for row in found] == [("quiet", "measured"), ("noisy", "measured")]


# ---- the tables


def test_the_table_fits_a_terminal() -> None:
    failed = rows.Row(**FACTS, status="failed", note="exit code 1: " + 20 * "very long ")
    long = replace(QUIET, case="a case whose name is longer than its column", unit="steps/CPU s")
    text = table([rows.row_of(long, FACTS), rows.row_of(NOISY, FACTS), failed])
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "too noisy, the ratio's spread is 133%, its limit 20%" in text
    assert "3.15" in text


def test_the_page_shows_the_suite_or_how_to_measure_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    assert "`make bench` measures them" in suite_tables.suite()
    found = [rows.row_of(QUIET, FACTS).to_dict(), rows.row_of(NOISY, FACTS | {"measured": "2026-01-03"}).to_dict()]
    (tmp_path / "suite.json").write_text(json.dumps({"rows": found}))
    text = suite_tables.suite()
    assert text.startswith("Measured from 2026-01-01 to 2026-01-03 on two cores of an AMD EPYC.\n")
    assert "| One, beside another | steady | other | 1 | 3.3 | s | **3.15** | 5% | two cores of an AMD EPYC |" in text
    assert "| – | – | s | too noisy: the ratio's spread is 133%, its limit 20% | 133% |" in text
