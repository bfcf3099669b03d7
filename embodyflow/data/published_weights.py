"""The weights of one version of the policy, as rollout workers get them."""

from collections.abc import Iterator, Mapping

from embodyflow.data.ragged import Array


class PublishedWeights(Mapping[str, Array]):
    """Weights by name: those of the version, and those that it has in common with others.

    Args:
        own: Weights that training changes, and the trainer's probe.
        shared: Weights that training leaves alone.
        views: The arrays of ``shared``, which stay valid and keep their values as long as anything refers to them. A
            model may compute with them in place of copies, and must not write to them.
    """

    def __init__(self, own: Mapping[str, Array], shared: Mapping[str, Array], views: Mapping[str, Array]) -> None:
        self._own, self._shared, self.views = own, shared, views

    def __getitem__(self, name: str) -> Array:
        return self._shared[name] if name in self._shared else self._own[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from self._shared

    def __len__(self) -> int:
        return len(self._own) + len(self._shared)


def views_of(weights: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return the arrays that a model may compute with in place of copies."""
    return weights.views if isinstance(weights, PublishedWeights) else {}
