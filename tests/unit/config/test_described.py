"""A configuration is shown with what its keys mean."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

import pytest
import yaml
from pydantic import BaseModel, Field

from embodyflow.cli import main as cli
from embodyflow.config.compose import compose_config
from embodyflow.config.described import describe, meanings
from embodyflow.config.jobs import JOBS


class Inner(BaseModel):
    """What is inside.

    Attributes:
        size: of it, in a sentence that goes on
            in the next line, see :class:`~somewhere.Inner`.
    """

    size: int = 3


class Outer(BaseModel):
    """What is outside.

    Attributes:
        low, high: bounds; ``null`` for none.

    Raises:
        name: which is no field.
    """

    low: float | None = None
    high: Annotated[float | None, Field(ge=0)] = 1e-8
    kind: Literal["a", "b"] = Field("a", description="which")
    inner: Inner = Inner()
    words: tuple[str, ...] = ("1e5", "yes")


def test_each_key_has_its_meaning_above_it() -> None:
    assert describe(Outer()).splitlines() == [
        "# bounds; null for none.",
        "low: null",
        "high: 1.0e-08",
        "# which; allowed: a, b",
        "kind: a",
        "# What is inside.",
        "inner:",
        "  # of it, in a sentence that goes on in the next line, see somewhere.Inner.",
        "  size: 3",
        "words: [1e5, 'yes']",
    ]


@pytest.mark.parametrize("experiment", ["mt10", "reacher", "math"])  # one of each kind of job
def test_what_is_shown_is_the_configuration(experiment: str) -> None:
    config = compose_config([f"experiment={experiment}"])
    assert yaml.safe_load(describe(config)) == config.model_dump(mode="json")


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models_in(field.annotation)
    for part in get_args(annotation):
        yield from models_in(part)


@pytest.mark.parametrize("job", JOBS)
def test_every_key_that_is_no_section_has_a_meaning(job: str) -> None:
    """But for a policy's, which may be the names of its architecture, and the name that a choice is made by."""
    untold = set()
    for kind in models_in(JOBS[job]):
        if ".policies." in kind.__module__:
            continue
        sections = {name for name, field in kind.model_fields.items() if any(models_in(field.annotation))}
        untold |= {(kind.__name__, name) for name in kind.model_fields.keys() - meanings(kind) - sections - {"name"}}
    assert untold == set()


def test_the_command_shows_what_a_run_would_have(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embodyflow.stack.processes.exit_on_signals", lambda: None)
    assert cli.main(["config", "--flow", "ppo", "experiment=embodied", "trainer.epochs=7"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["trainer"]["epochs"], shown["flow"], shown["run_id"]) == (7, "ppo", None)
    assert cli.main(["config", "trainer.epoch=7"]) == 2
    assert "did you mean trainer.epochs" in capsys.readouterr().err
