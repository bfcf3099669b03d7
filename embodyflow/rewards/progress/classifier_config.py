"""Configuration of the success classifier."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from embodyflow.rewards.progress.progress_config import EmbeddingConfig, StateEmbeddingConfig


class ClassifierConfig(BaseModel):
    """Success classifier, see :mod:`embodyflow.rewards.progress.success_classifier`.

    Attributes:
        labelled_share: Share of an iteration's episodes whose success the environment reveals, rounded up to whole
            episodes. These are rewarded by their success, and the classifier is trained on them.
        threshold: Probability from which on an episode without a label is rewarded as a success, with 1 instead of 0;
            ``null`` rewards it with the probability itself.
        embedding: Embedding of an episode that the classifier reads; the default is the state after the last action.
        hidden_size: Width of the network's hidden layer.
        steps: Steps of AdamW, each on all labelled episodes.
        learning_rate: Learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    labelled_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    embedding: EmbeddingConfig = StateEmbeddingConfig(start=1.0, num_points=1)
    hidden_size: Annotated[int, Field(ge=1, strict=True)] = 64
    steps: Annotated[int, Field(ge=1, strict=True)] = 300
    learning_rate: Annotated[float, Field(gt=0, le=100)] = 0.01
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
