"""The ranks of a trainer group as a grid of data × tensor.

The ranks of a row hold one copy of the models together, each a part of its matrices, and are given the same rows of a
batch. The ranks of a column each have other rows; over them go all sums over a batch, and FSDP.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


class Mesh:
    """The grid, as seen by one of its ranks; neighbours are in a row.

    Args:
        device: ``cpu`` or ``cuda``.
        num_ranks: of the default group.
        tensor_size: ranks of a row, a divisor of ``num_ranks``.
    """

    def __init__(self, device: str, num_ranks: int, tensor_size: int) -> None:
        shape = (num_ranks // tensor_size, tensor_size)
        self._grid = init_device_mesh(device, shape, mesh_dim_names=("data", "tensor"))

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
        """Ranks of the grid."""
        return self._grid.size()

    @property
    def num_parts(self) -> int:
        """Parts that a batch is cut into."""
        return self._grid.size(0)

    @property
    def part(self) -> int:
        """Which of them is this rank's."""
        return self._grid.get_local_rank("data")

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elementwise sum over the parts of a batch; every rank calls it."""
        summed = tensor.clone()
        if self.num_parts > 1:
            dist.all_reduce(summed, group=self._grid.get_group("data"))
        return summed

    def largest(self, number: int) -> int:
        """Return the largest of the parts' numbers; every rank calls it."""
        if self.num_parts == 1:
            return number
        most = torch.tensor(number)
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self._grid.get_group("data"))
        return int(most)
