"""The refusal of keys that an algorithm does not read."""

import json
from collections.abc import Set
from typing import Literal

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.config.trainer import TrainerConfig


def refuse_unread(
    section: Literal["algorithm", "trainer"],
    given: AlgorithmConfig | TrainerConfig,
    defaults: AlgorithmConfig | TrainerConfig,
    read: Set[str],
    by: str,
) -> None:
    """Refuse keys that differ from their default although nothing reads them.

    Args:
        section: Name of the section.
        given: Section of the run.
        defaults: Section in which every key has its default.
        read: Keys that the algorithm reads.
        by: Section with the settings of the algorithm.

    Raises:
        ValueError: One line with the key and what is allowed.
    """
    values = given.model_dump(mode="json")
    for key, default in defaults.model_dump(mode="json").items():
        if key not in read and values[key] != default:
            raise ValueError(
                f"{section}.{key}={_written(values[key])}: has no meaning with {by}; allowed is {_written(default)}"
            )


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
