"""The batch of Brax's environments where Brax is missing."""

import sys

import pytest

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError


def test_a_missing_package_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "brax", None)
    with pytest.raises(ConfigError) as caught:
        compose_config(["experiment=half_cheetah", "env=brax"])
    assert "brax is not installed, run `pip install embodyflow[brax]`" in str(caught.value)
    assert "\n" not in str(caught.value)
