"""Movements of scripted experts that reach a place from above."""

import numpy as np
import pytest

from embodyflow.environments.funnel import ALIGNED, SLOPE, through_funnel


def test_a_place_far_away_is_approached_at_the_height_of_the_funnel() -> None:
    assert through_funnel(np.array([0.3, -0.2, -0.1]), 0.06) == pytest.approx([0.3, -0.2, -0.04])


def test_the_movement_leads_up_alone_while_much_height_is_missing() -> None:
    assert through_funnel(np.array([0.3, -0.2, 0.0]), 0.06) == pytest.approx([0, 0, 0.06])


def test_the_height_falls_with_the_distance_and_is_zero_above_the_place() -> None:
    near = through_funnel(np.array([0.02, 0.0, -0.05]), 0.06)
    assert near == pytest.approx([0.02, 0, -0.05 + SLOPE * (0.02 - ALIGNED)])
    assert through_funnel(np.array([ALIGNED, 0.0, -0.05]), 0.06) == pytest.approx([ALIGNED, 0, -0.05])
