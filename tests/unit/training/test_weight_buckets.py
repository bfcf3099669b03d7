"""Full weights in buckets: the same bytes on rank 0, however the weights lie on the ranks."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.multiprocessing import start_processes
from trainers import free_address, work_and_exit

from embodyflow.data.parts import PartsDigest
from embodyflow.data.tables import digest_of
from embodyflow.training.parallel.weight_buckets import ShardedWeights

DTYPES = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool)
State = dict[str, torch.Tensor]


def state_of(seed: int) -> State:
    """Return weights of all numbers of dimensions and dtypes, small and large, some of them empty."""
    draws = np.random.default_rng(seed)
    state: State = {}
    for number in range(20):
        shape = tuple(draws.integers(0 if draws.random() < 0.1 else 1, 9, size=draws.integers(0, 4)).tolist())
        state[f"weight{number}"] = torch.from_numpy(draws.integers(0, 200, size=shape)).to(DTYPES[number % 5])
    return state


def assert_same(weights: ShardedWeights, state: State, bucket_bytes: int) -> None:
    """Check digest, size of the parts and values, on rank 0; other ranks get nothing."""
    arrays = {name: value.numpy() for name, value in state.items()}
    assert {name: (each.shape, each.dtype) for name, each in weights.outlines.items()} == {
        name: (each.shape, each.dtype) for name, each in arrays.items()
    }
    if dist.is_initialized() and dist.get_rank():
        assert list(weights.parts()) == [] and weights.whole("weight3") is None
        return
    digest = PartsDigest(weights.outlines)
    for part in digest.watch(weights.parts()):
        array = arrays[part.name]
        row_bytes = array[:1].nbytes if array.ndim else array.nbytes
        assert part.values.nbytes <= max(bucket_bytes, row_bytes)
    assert digest.hexdigest() == digest_of(arrays)
    whole = weights.whole("weight3")
    assert whole is not None and torch.equal(whole, state["weight3"])


@given(st.integers(0, 10**6), st.integers(1, 3000))
def test_buckets_of_one_rank_have_the_digest_of_the_whole(seed: int, bucket_bytes: int) -> None:
    state = state_of(seed)
    assert_same(ShardedWeights(state, bucket_bytes), state, bucket_bytes)


def test_weights_of_one_rank_are_not_copied() -> None:
    weight = torch.randn(1000, 100)
    parts = list(ShardedWeights({"weight": weight}, bucket_bytes=40_000).parts())
    assert len(parts) == 10
    assert all(part.values.ctypes.data == weight[100 * number].data_ptr() for number, part in enumerate(parts))


def gather(rank: int, address: str, num_ranks: int, folder: Path) -> None:
    """Gather weights in all layouts of the ranks."""
    torch.set_num_threads(1)  # a fork has no other threads
    dist.init_process_group("gloo", f"tcp://{address}", rank=rank, world_size=num_ranks)
    line, grid = init_device_mesh("cpu", (num_ranks,)), init_device_mesh("cpu", (2, num_ranks // 2))
    layouts = [(line, [placement]) for placement in (Shard(0), Replicate())]
    layouts += [(grid, [*both]) for both in ((Shard(0), Shard(1)), (Replicate(), Shard(0)))]
    for seed, bucket_bytes in enumerate((30, 10**6)):
        state = state_of(seed)
        for mesh, placements in layouts:
            most = max((each.dim for each in placements if isinstance(each, Shard)), default=-1)
            spread = {
                name: distribute_tensor(value, mesh, placements) if value.ndim > most else value
                for name, value in state.items()
            }
            assert_same(ShardedWeights(spread, bucket_bytes), state, bucket_bytes)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1))
    model[0].weight.requires_grad_(False)
    state = {f"weight{number}": value.clone() for number, value in enumerate(model.state_dict().values())}
    fully_shard(model[0], mesh=line)
    fully_shard(model, mesh=line)
    sharded = dict(zip(state, model.state_dict().values(), strict=True))
    assert any(isinstance(value, DTensor) for value in sharded.values())
    assert_same(ShardedWeights(sharded, 16), state, 16)
    (folder / str(rank)).touch()
    dist.barrier()


def test_sharded_weights_have_the_digest_of_the_whole(tmp_path: Path) -> None:
    # Forks import nothing again.
    start_processes(work_and_exit, (gather, (free_address(), 4, tmp_path)), nprocs=4, start_method="fork")
    assert len(list(tmp_path.iterdir())) == 4
