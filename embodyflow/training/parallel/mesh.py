"""The ranks of a trainer group as a grid of data × tensor.

The ranks in a row of the grid hold one copy of the models, each a part of every split matrix, and get the same rows of
a batch. The ranks in a column get different rows of a batch; FSDP and all sums over a batch run along columns.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


class Mesh:
    """The grid as seen by one rank. Consecutive ranks are in the same row.

    Args:
        device: ``cpu`` or ``cuda``.
        num_ranks: Number of ranks in the default process group.
        tensor_size: Number of ranks in a row, a divisor of ``num_ranks``.
    """

    def __init__(self, device: str, num_ranks: int, tensor_size: int) -> None:
        shape = (num_ranks // tensor_size, tensor_size)
        self._grid = init_device_mesh(device, shape, mesh_dim_names=("data", "tensor"))
        self._num_parts = shape[0]

    @property
    def data(self) -> DeviceMesh:
        """This rank's column."""
        return self._grid["data"]

    @property
    def tensor(self) -> DeviceMesh:
        """This rank's row."""
        return self._grid["tensor"]

    @property
    def num_ranks(self) -> int:
        """Number of ranks in the grid."""
        return self._grid.size()

    @property
    def num_parts(self) -> int:
        """Number of parts that a batch is cut into."""
        return self._num_parts

    @property
    def part(self) -> int:
        """Index of this rank's part of a batch."""
        return self._grid.get_local_rank("data")

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elementwise sum over the parts of a batch; a collective, so every rank must call it.

        With one part it is the tensor itself.
        """
        if self.num_parts == 1:
            return tensor
        summed = tensor.clone()
        dist.all_reduce(summed, group=self._grid.get_group("data"))
        return summed

    def largest(self, number: int) -> int:
        """Return the maximum of ``number`` over the parts of a batch; a collective, so every rank must call it."""
        if self.num_parts == 1:
            return number
        most = torch.tensor(number)
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self._grid.get_group("data"))
        return int(most)
