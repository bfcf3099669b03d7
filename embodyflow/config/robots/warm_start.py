"""The warm start of embodied jobs: what a robot policy is cloned from."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from embodyflow.config.base import Config, Place, PositiveFloat
from embodyflow.config.run import WarmStartConfig
from embodyflow.datasets.feature_names import ACTION, IMAGES, STATE


class DatasetConfig(Config):
    """A data set of demonstrations in a local folder.

    Attributes:
        path: Folder of a LeRobot data set, v2.1 or v3.0, or of a Minari data set.
        columns: Features of the data set by what they are for the policy: ``actions``, ``state`` or the name of a
            camera. The features of a list are joined in its order. Without an entry they are ``action``,
            ``observation.state`` and ``observation.images.<camera>``.
        tasks: Texts of the data set's tasks by task of ``env.tasks``; a task without one is known by its instruction.
        fps: Frames per second that the data set must have; ``null`` means those of the environment, ``render_fps`` of
            its metadata.
        statistics: Source of the statistics that normalise states and actions: those that the ``dataset`` holds over
            all of its episodes, or those of the chosen ``demonstrations``.
    """

    path: Place
    columns: dict[str, str | Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    tasks: dict[str, str] = Field(default_factory=dict)
    fps: PositiveFloat | None = None
    statistics: Literal["dataset", "demonstrations"] = "dataset"

    def features(self, name: str) -> tuple[str, ...]:
        """Return the features of the data set that make up ``actions``, ``state`` or a camera's images."""
        chosen = self.columns.get(name, {"actions": ACTION, "state": STATE}.get(name, IMAGES + name))
        return (chosen,) if isinstance(chosen, str) else chosen


class ExpertWarmStartConfig(WarmStartConfig):
    """Supervised fine-tuning on successful episodes of the environment's scripted expert, or on a data set.

    Attributes:
        dataset: Data set whose first ``num_demos`` episodes of each task are the demonstrations; a folder alone stands
            for a section with that ``path``. ``null`` means the scripted expert.
        smoothing_bins: Standard deviation, in bins, of the Gaussian that smooths the target token.
        action_noise: Standard deviation of the noise added to the expert's executed actions but not to the recorded
            ones, so that demonstrations include recoveries (DART, Laskey et al., 2017, arXiv:1703.09327).
    """

    samples: ClassVar[str] = "embodyflow.training.imitation.imitation:ActionSamples"

    dataset: DatasetConfig | None = None
    smoothing_bins: Annotated[float, Field(ge=0)]
    action_noise: Annotated[float, Field(ge=0)] = 0.0

    @field_validator("dataset", mode="before")
    @classmethod
    def _folder_alone(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_noise(self) -> "ExpertWarmStartConfig":
        if self.dataset is not None and self.action_noise:
            raise ValueError(f"action_noise={self.action_noise:g}: disturbs the expert; allowed is 0 with dataset")
        return self
