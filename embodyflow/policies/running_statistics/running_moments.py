"""Running count, mean and variance of the rows that a model has trained on."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class RunningMoments(nn.Module):
    """Holds the count, mean and variance of vectors as float64 buffers.

    Checkpoints, published weights and exports contain the buffers. Until vectors are counted, the mean is 0 and the
    variance 1.

    Args:
        size: S, features of a vector.
        source: Name of the vectors for errors.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, size: int, source: str) -> None:
        super().__init__()
        self._source = source
        self.register_buffer("count", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))

    @torch.no_grad()
    def load(self, count: int, mean: Tensor, variance: Tensor) -> None:
        """Replace the statistics by those of ``count`` vectors: mean and variance, float64 ``[S]``."""
        for buffer, value in ((self.mean, mean), (self.variance, variance)):
            buffer.copy_(value)
        self.count.fill_(count)

    @torch.no_grad()
    def merge(self, vectors: Tensor, all_reduce: Callable[[Tensor], Tensor]) -> None:
        """Merge the moments of new vectors into the statistics; arguments and errors are those of :meth:`merged`."""
        for buffer, value in zip((self.count, self.mean, self.variance), self.merged(vectors, all_reduce), strict=True):
            buffer.copy_(value)

    @torch.no_grad()
    def merged(self, vectors: Tensor, all_reduce: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return count ``[1]``, mean ``[S]`` and variance ``[S]`` with new vectors merged in; nothing changes.

        The formula is equation 2.1 of Chan, Golub and LeVeque, 1979, "Updating Formulae and a Pairwise Algorithm for
        Computing Sample Variances". The variance is that of a population: it divides by the number of vectors.

        Args:
            vectors: This rank's vectors, ``[n, S]``; n may be 0.
            all_reduce: Function that returns the elementwise sum over the ranks, bit-identical on every rank.

        Raises:
            FloatingPointError: A feature is NaN or inf.
        """
        values = vectors.to(self.mean)
        sums = all_reduce(torch.cat([values.new_full((1,), len(values)), values.sum(0)]))
        added, mean = sums[:1], sums[1:] / sums[:1].clamp(min=1)
        squares = all_reduce((values - mean).square().sum(0))
        if not (mean.isfinite().all() and squares.isfinite().all()):
            raise FloatingPointError(f"{self._source} is NaN or inf, so the running statistics cannot count it")
        if added.item() == 0:
            return self.count, self.mean, self.variance
        total, shift = self.count + added, mean - self.mean
        squares = self.variance * self.count + squares + shift.square() * (self.count * added / total)
        return total, self.mean + shift * (added / total), squares / total
