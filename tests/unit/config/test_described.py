"""A configuration is shown with the meaning of its keys."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

import pytest
import yaml
from pydantic import BaseModel, Field

from embodyflow.cli import main as cli
from embodyflow.config.composition.compose import compose_config
from embodyflow.config.composition.described import describe, meanings
from embodyflow.config.jobs import JOBS


class Inner(BaseModel):
    """The inner section.

    Attributes:
        size: Number of parts, in a sentence that continues
            on the next line, see :class:`~somewhere.Inner`.
    """

    size: int = 3


class Outer(BaseModel):
    """The outer section.

    Attributes:
        low, high: Bounds; ``null`` means no bound.

    Raises:
        name: An entry that is not a field.
    """

    low: float | None = None
    high: Annotated[float | None, Field(ge=0)] = 1e-8
    kind: Literal["a", "b"] = Field("a", description="Kind of section.")
    inner: Inner = Inner()
    words: tuple[str, ...] = ("1e5", "yes")
    formula: Annotated[str, Field(examples=["sum", "mean"], description="Formula, or module:function.")] = "sum"


def test_each_key_has_its_meaning_above_it() -> None:
    assert describe(Outer()).splitlines() == [
        "# Bounds; null means no bound.",
        "low: null",
        "high: 1.0e-08",
        "# Kind of section; allowed: a, b",
        "kind: a",
        "# The inner section.",
        "inner:",
        "  # Number of parts, in a sentence that continues on the next line, see somewhere.Inner.",
        "  size: 3",
        "words: [1e5, 'yes']",
        "# Formula, or module:function; choices: sum, mean",
        "formula: sum",
    ]


@pytest.mark.parametrize("experiment", ["mt10", "reacher", "math"])  # one of each kind of job
def test_the_shown_yaml_is_the_configuration(experiment: str) -> None:
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
def test_every_key_outside_sections_has_a_meaning(job: str) -> None:
    """Exceptions: keys of a policy, which may be names of its architecture, and the ``name`` that selects a section."""
    undocumented = set()
    for kind in models_in(JOBS[job]):
        if ".policies." in kind.__module__:
            continue
        sections = {name for name, field in kind.model_fields.items() if any(models_in(field.annotation))}
        undocumented |= {
            (kind.__name__, name) for name in kind.model_fields.keys() - meanings(kind) - sections - {"name"}
        }
    assert undocumented == set()


def test_the_command_shows_the_configuration_of_a_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embodyflow.stack.signals.exit_on_signals", lambda: None)
    assert cli.main(["config", "--flow", "ppo", "experiment=embodied", "trainer.epochs=7"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["trainer"]["epochs"], shown["flow"], shown["run_id"]) == (7, "ppo", None)
    assert cli.main(["config", "trainer.epoch=7"]) == 2
    assert "did you mean trainer.epochs" in capsys.readouterr().err


def test_losses_and_advantages_are_listed() -> None:
    text = " ".join(describe(compose_config(["experiment=embodied"])).replace("#", "").split())
    assert 'Registered policy loss, or "module:function"; choices: ppo, gspo, gmpo, cispo' in text
    assert 'Registered estimator, or "module:function"; choices: grpo, dr_grpo, rloo' in text
