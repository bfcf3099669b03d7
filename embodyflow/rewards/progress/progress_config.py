"""How the progress of failed episodes is measured."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator

from embodyflow.errors import ConfigError

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Of an observation's arrays, by key."""

Natural = Annotated[int, Field(ge=0, strict=True)]


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StateEmbeddingConfig(_Config):
    """An episode is the course of its states, resampled to one length.

    Attributes:
        entries: indices into the observation's ``state`` that are looked at; ``null`` takes all. Those that are
            relative (goal − hand) let episodes of different goals be compared.
        start: from where on an episode is looked at, 0 its beginning, 1 its last state alone. How it began says little
            of how far it came, and much of its goal.
        num_points: states that it is resampled to from there on.
    """

    name: Literal["state"] = "state"
    entries: Annotated[tuple[Natural, ...], Field(min_length=1)] | None = None
    start: Annotated[float, Field(ge=0, le=1)] = 0.5
    num_points: Annotated[int, Field(ge=1, strict=True)] = 8

    def check_observation_shapes(self, shapes: Shapes) -> None:
        """Check that an environment shows what is to be compared.

        Raises:
            ConfigError: the message names the key and what is allowed.
        """
        if "state" not in shapes:
            raise ConfigError("progress.embedding.name=state: the environment shows no state; allowed is vjepa2")
        if len(shapes["state"]) != 1:
            raise ConfigError(
                f"progress.embedding.name=state: the environment's is {shapes['state']}; allowed is one dimension"
            )
        [size] = shapes["state"]
        if max(self.entries or (0,)) >= size:
            raise ConfigError(
                f"progress.embedding.entries={list(self.entries or ())}: allowed are 0 to {size - 1}, the "
                "environment's state"
            )


class VJEPA2EmbeddingConfig(_Config):
    """An episode is what V-JEPA 2 makes of its video (Assran et al. 2025, arXiv:2506.09985), by transformers.

    Attributes:
        path: folder, or name on the hub, such as ``facebook/vjepa2-vitg-fpc64-384``.
        camera: key of the observation whose frames make the video.
    """

    name: Literal["vjepa2"] = "vjepa2"
    path: str
    camera: str = "image"

    def check_observation_shapes(self, shapes: Shapes) -> None:
        """Check that an environment shows what is to be compared.

        Raises:
            ConfigError: the message names the key and what is allowed.
        """
        cameras = [name for name, shape in shapes.items() if len(shape) == 3 and shape[2] == 3]
        if self.camera not in cameras:
            shown = f"allowed are {', '.join(cameras)}" if cameras else "it shows no images"
            raise ConfigError(f"progress.embedding.camera={self.camera}: the environment has no such camera; {shown}")

    @field_validator("path")
    @classmethod
    def _is_vjepa2(cls, path: str) -> str:
        file = Path(path) / "config.json"
        if Path(path).is_absolute() and not file.is_file():
            raise ValueError("holds no config.json; allowed are a folder with a V-JEPA 2 model or a name on the hub")
        if file.is_file() and (kind := json.loads(file.read_text()).get("model_type")) != "vjepa2":
            raise ValueError(f"holds a model of type {kind}; allowed is vjepa2")
        return path


EmbeddingConfig = Annotated[StateEmbeddingConfig | VJEPA2EmbeddingConfig, Field(discriminator="name")]


class ProgressConfig(_Config):
    """The progress reward of SRPO, see :mod:`embodyflow.rewards.progress.progress_reward`.

    Attributes:
        embedding: what an episode is compared by.
        alpha: bound of a failure's reward; a success has 1.
        eps: root mean square distance, in standard deviations, up to which successes are neighbours (DBSCAN).
        min_samples: neighbours, itself included, that make a success the core of a cluster (DBSCAN).
    """

    embedding: EmbeddingConfig = StateEmbeddingConfig()
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.8
    eps: Annotated[float, Field(gt=0)] = 0.5
    min_samples: Annotated[int, Field(ge=1, strict=True)] = 2
