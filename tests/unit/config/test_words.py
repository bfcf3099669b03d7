"""Words that give a configuration a recorded value again."""

import pytest

from embodyflow.config.composition.words import changed_by, word_of


@pytest.mark.parametrize("place", ["runs", "runs/of-mine", "../runs", "/data/my_runs", "~/runs.old", "."])
def test_a_plain_path_stays_as_it_is(place: str) -> None:
    assert word_of("run_root", place) in (f"run_root={place}", f"run_root='{place}'")
    assert changed_by({"run_root": ""}, [word_of("run_root", place)]) == {"run_root": place}


@pytest.mark.parametrize(
    "place",
    [
        *("/home/josé/runs", "漢字/runs", "my runs", "a,b", "runs (old)", "runs[1]", "{x}", "a=b", "it's", 'the "one"'),
        *("2024", "1e5", "null", "true", "a\\b", "a\\", "a\\\\'b\\'", "$HOME", "#1", "a:b", " a ", "'", "/runs/2024 "),
    ],
)
def test_any_text_is_read_back(place: str) -> None:
    assert changed_by({"run_root": ""}, [word_of("run_root", place)]) == {"run_root": place}
