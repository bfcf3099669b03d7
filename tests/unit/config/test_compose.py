import pytest

from embodyflow.config.compose import compose_config
from embodyflow.errors import ConfigError

IMAGES = ("+env.kwargs.image_size=64", "policy.image_size=64")


@pytest.mark.parametrize("experiment", ["embodied", "push"])  # a recipe says what is looked at of embodied's states
def test_a_section_of_another_kind_replaces_the_one_that_was_there(experiment: str) -> None:
    embedding = "progress.embedding={name: vjepa2, path: facebook/vjepa2-vitg-fpc64-384}"
    config = compose_config(["algorithm=srpo", f"experiment={experiment}", embedding, *IMAGES])
    assert config.progress is not None and config.progress.alpha == 0.8
    assert config.progress.embedding.model_dump() == {
        "name": "vjepa2",
        "path": "facebook/vjepa2-vitg-fpc64-384",
        "camera": "image",
    }


def test_a_section_without_a_kind_changes_what_it_names() -> None:
    config = compose_config(["algorithm=srpo", "progress.embedding={num_points: 4}"])
    assert config.progress is not None
    assert config.progress.embedding.model_dump() == {
        "name": "state",
        "entries": (21, 22, 23),
        "start": 0.5,
        "num_points": 4,
    }


def test_a_section_of_another_kind_is_checked_like_any_other() -> None:
    with pytest.raises(ConfigError, match=r"^progress\.embedding\.frames: "):
        compose_config(["algorithm=srpo", "progress.embedding={name:vjepa2,path:facebook/x,frames:8}", *IMAGES])
