"""Configuration of SRPO's progress reward."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator

from embodyflow.errors import ConfigError

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Shapes of an observation's arrays, by key."""

Natural = Annotated[int, Field(ge=0, strict=True)]


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StateEmbeddingConfig(_Config):
    """Embed an episode by its states, resampled to a fixed length.

    Attributes:
        entries: Indices into the observation's ``state`` to compare; ``null`` compares all. Relative entries, such as
            goal − hand, make episodes with different goals comparable.
        start: Time within the episode at which the comparison begins, from 0 (its start) to 1 (its last state only).
            Early states say more about the goal than about progress.
        num_points: Number of states to which the rest of the episode is resampled.
    """

    name: Literal["state"] = "state"
    entries: Annotated[tuple[Natural, ...], Field(min_length=1)] | None = None
    start: Annotated[float, Field(ge=0, le=1)] = 0.5
    num_points: Annotated[int, Field(ge=1, strict=True)] = 8

    def check_observation_shapes(self, shapes: Shapes, key: str) -> None:
        """Check that an environment's observations have what this embedding compares.

        Args:
            shapes: Shapes of the observation's arrays.
            key: Key of this embedding in the configuration.

        Raises:
            ConfigError: They do not; the message names the key and what is allowed.
        """
        if "state" not in shapes:
            raise ConfigError(f"{key}.name=state: the environment has no state; allowed is vjepa2")
        if len(shapes["state"]) != 1:
            raise ConfigError(
                f"{key}.name=state: the environment's state has shape {shapes['state']}; allowed is one dimension"
            )
        [size] = shapes["state"]
        if max(self.entries or (0,)) >= size:
            raise ConfigError(
                f"{key}.entries={list(self.entries or ())}: allowed are 0 to {size - 1}, indices "
                "of the environment's state"
            )


class VJEPA2EmbeddingConfig(_Config):
    """Embed an episode by its video with V-JEPA 2 (Assran et al. 2025, arXiv:2506.09985), loaded by transformers.

    Attributes:
        path: Folder of the model, or its name on the hub, such as ``facebook/vjepa2-vitg-fpc64-384``.
        camera: Key of the observation with the frames of the video.
    """

    name: Literal["vjepa2"] = "vjepa2"
    path: str
    camera: str = "image"

    def check_observation_shapes(self, shapes: Shapes, key: str) -> None:
        """Check that an environment's observations have what this embedding compares.

        Args:
            shapes: Shapes of the observation's arrays.
            key: Key of this embedding in the configuration.

        Raises:
            ConfigError: They do not; the message names the key and what is allowed.
        """
        cameras = [name for name, shape in shapes.items() if len(shape) == 3 and shape[2] == 3]
        if self.camera not in cameras:
            shown = f"allowed are {', '.join(cameras)}" if cameras else "it shows no images"
            raise ConfigError(f"{key}.camera={self.camera}: the environment has no such camera; {shown}")

    @field_validator("path")
    @classmethod
    def _check_model_type(cls, path: str) -> str:
        file = Path(path) / "config.json"
        if Path(path).is_absolute() and not file.is_file():
            raise ValueError("has no config.json; allowed are a folder with a V-JEPA 2 model or a name on the hub")
        if file.is_file() and (kind := json.loads(file.read_text()).get("model_type")) != "vjepa2":
            raise ValueError(f"contains a model of type {kind}; allowed is vjepa2")
        return path


EmbeddingConfig = Annotated[StateEmbeddingConfig | VJEPA2EmbeddingConfig, Field(discriminator="name")]


class ProgressConfig(_Config):
    """Progress reward of SRPO, see :mod:`embodyflow.rewards.progress.progress_reward`.

    Attributes:
        embedding: Embedding by which episodes are compared.
        alpha: Upper bound of the reward of a failure; a success has reward 1.
        eps: Maximum distance of neighbouring successes in DBSCAN: root mean square over dimensions, in standard
            deviations.
        min_samples: Number of neighbours, including itself, that make a success the core of a cluster in DBSCAN.
    """

    embedding: EmbeddingConfig = StateEmbeddingConfig()
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.8
    eps: Annotated[float, Field(gt=0)] = 0.5
    min_samples: Annotated[int, Field(ge=1, strict=True)] = 2
