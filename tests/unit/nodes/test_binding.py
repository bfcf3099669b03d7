"""Node functions get rows and configuration however they take them."""

from collections.abc import Callable
from typing import Any

import pytest

from embodyflow.nodes.calling import bind
from pipelines import Pipeline

ROWS, SETTINGS = object(), {"a": 1}


def as_here(batch, config=None, **kwargs):
    return batch, config, kwargs


def without_kwargs(rows, settings, worker, call):
    return rows, settings, {"worker": worker, "call": call}


def other_names(rows, settings=None, **kwargs):
    return rows, settings, kwargs


def one_other_name(rows, config=None, **kwargs):
    return rows, config, kwargs


def config_by_kwargs(batch, **kwargs):
    return batch, kwargs.pop("config"), kwargs


def config_by_keyword(batch, *, config=None, **kwargs):
    return batch, config, kwargs


def config_first(config, batch, **kwargs):
    return batch, config, kwargs


def config_later(batch, scale=1.0, config=None, **kwargs):
    assert scale == 1.0
    return batch, config, kwargs


def all_by_kwargs(*args, **kwargs):
    assert args == ()
    return kwargs.pop("batch"), kwargs.pop("config"), kwargs


def kwargs_by_that_name(batch, **config):
    return batch, config.pop("config"), config


FUNCTIONS = [
    as_here,
    without_kwargs,
    other_names,
    one_other_name,
    config_by_kwargs,
    config_by_keyword,
    config_first,
    config_later,
    all_by_kwargs,
    kwargs_by_that_name,
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("rows", [ROWS, None], ids=["rows", "root"])
def test_rows_and_configuration_are_never_swapped(function: Callable[..., Any], rows: Any) -> None:
    arguments = bind(function, rows, SETTINGS, worker="w", call="c")
    batch, config, kwargs = function(*arguments.args, **arguments.kwargs)
    assert batch is rows and config is SETTINGS and kwargs == {"worker": "w", "call": "c"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_graphs_take_such_functions(function: Callable[..., Any]) -> None:
    assert "a" in Pipeline("p").add_node("a", func=function, deps=None).build().nodes


def too_few(batch):
    return batch


def one_too_many(batch, config, more, **kwargs):
    return batch, config, more, kwargs


@pytest.mark.parametrize(
    ("function", "reason"), [(too_few, "too many positional arguments"), (one_too_many, "required argument: 'more'")]
)
def test_what_cannot_be_called_is_refused(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        bind(function, ROWS, SETTINGS, worker=None, call=None)
