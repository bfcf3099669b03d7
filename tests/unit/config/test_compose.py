"""Overrides that set a whole section."""

from typing import Any

import pytest

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError

IMAGES = ("+env.kwargs.image_size=64", "policy.image_size=64")


@pytest.mark.parametrize(
    "experiment", ["embodied", "push"]
)  # both have a recipe for srpo that chooses entries of the state
def test_a_section_with_another_name_replaces_the_old_section(experiment: str) -> None:
    embedding = "progress.embedding={name: vjepa2, path: facebook/vjepa2-vitg-fpc64-384}"
    config = compose_config(["algorithm=srpo", f"experiment={experiment}", embedding, *IMAGES])
    assert config.progress is not None and config.progress.alpha == 0.8
    assert config.progress.embedding.model_dump() == {
        "name": "vjepa2",
        "path": "facebook/vjepa2-vitg-fpc64-384",
        "camera": "image",
    }


def test_a_section_without_a_name_changes_only_its_keys() -> None:
    config = compose_config(["algorithm=srpo", "progress.embedding={num_points: 4}"])
    assert config.progress is not None
    assert config.progress.embedding.model_dump() == {
        "name": "state",
        "entries": (21, 22, 23),
        "start": 0.5,
        "num_points": 4,
    }


def test_a_section_with_another_name_is_checked_like_any_other() -> None:
    with pytest.raises(ConfigError, match=r"^progress\.embedding\.frames: "):
        compose_config(["algorithm=srpo", "progress.embedding={name:vjepa2,path:facebook/x,frames:8}", *IMAGES])


@pytest.mark.parametrize(
    "words",
    [
        ["reward=exact_match", "reward.function={name:regex,pattern:'x(.*)'}"],
        ["reward=exact_match", "++reward.function={pattern: 'x(.*)', name: regex}"],
        ["reward.function.pattern='x(.*)'", "reward.function={name:regex,pattern:'(.*)'}"],
        ["reward=gsm8k", "reward.function={name:regex}", "++reward.function.pattern='x(.*)'"],
    ],
)
def test_a_section_given_with_its_name_replaces_the_other_kind(words: list[str]) -> None:
    config: Any = compose_config(["experiment=math", *words, "reward.manager={name:parallel}"])
    assert config.reward.function.model_dump() == {"name": "regex", "pattern": "x(.*)"}
