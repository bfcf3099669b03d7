"""The probe tells rounding from weights that were not loaded, whatever the size of the model's log-probs."""

import numpy as np
import pytest

from embodyflow.errors import ParityError
from embodyflow.generation.probe import PREFIX, compare


def gap(theirs: list[float], mine: list[float]) -> float:
    """Compare two lists of log-probs, the engine's in two sequences, with a tolerance of 1e-4."""
    probe = {f"{PREFIX}log_probs": np.array(theirs, dtype=np.float32)}
    return compare(probe, np.split(np.array(mine, dtype=np.float32), [1]), 1e-4, version=3, rank=1)


def test_a_difference_counts_by_the_size_of_the_log_prob() -> None:
    assert gap([-20.0, -0.5], [-20.001, -0.5]) == pytest.approx(5e-5, rel=0.01)
    assert gap([-20.0, -0.5], [-20.0, -0.50005]) == pytest.approx(5e-5, rel=0.01)


@pytest.mark.parametrize("mine", [[-20.003, -0.5], [-20.0, -0.5002], [float("nan"), -0.5]])
def test_a_larger_one_stops_the_run(mine: list[float]) -> None:
    with pytest.raises(ParityError, match=r"weights of version 3: .* between rollout worker 1 and trainer; .*=0\.0001"):
        gap([-20.0, -0.5], mine)
