"""One reward function per dataset."""

from collections.abc import Mapping
from dataclasses import dataclass

from embodyflow.rewards.interface import RewardFunction, Sample, Score


@dataclass(frozen=True)
class BySource:
    """Scores a sample with the function of its data source.

    Attributes:
        functions: Function by data source.
        default: Function of all other data sources; ``None`` refuses them.
    """

    functions: Mapping[str, RewardFunction]
    default: RewardFunction | None

    def __call__(self, sample: Sample) -> Score:
        """Return the score of a sample.

        Raises:
            ValueError: No function scores its data source.
        """
        function = self.functions.get(sample.data_source, self.default)
        if function is None:
            raise ValueError(f"no function for data_source={sample.data_source}; has {', '.join(self.functions)}")
        return function(sample)
