"""A simulated second device for machines without a GPU. As on a GPU, operations that mix it with the CPU fail.

Its tensors are CPU tensors with real numbers. Its device type is ``meta``, the only one that torch's autograd supports
without a driver.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.optim.adam as adam
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "meta"
COPIES = {"aten::_to_copy", "aten::copy_"}
"""Operations that copy tensors between devices."""
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
"""Operations that accept indices on the CPU; the first argument decides the device."""


class _There(Tensor):
    """A tensor on the simulated device; ``here`` is the CPU tensor with its content."""

    here: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, here: Tensor) -> "_There":
        with torch.inference_mode(here.is_inference()):  # a view of a weight is not an inference tensor
            there: Any = Tensor._make_wrapper_subclass(
                cls, here.shape, here.stride(), here.storage_offset(), dtype=here.dtype, device=NAME
            )
        there.here = here
        return there

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    @property
    def data(self) -> Any:
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        self.here = value.here

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("can't convert a tensor of another device to numpy; use Tensor.cpu() first")
        return self.detach().cpu().numpy()

    def new_tensor(self, data: Any, **arguments: Any) -> Any:
        return torch.tensor(data, **({"dtype": self.dtype, "device": NAME} | arguments))


@contextmanager
def other_device() -> Iterator[None]:
    """Make the device available within the block."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # keeps tied weights tied when they move
    with _Made(), _Computed(), warnings.catch_warnings(), patch.object(adam, "_device_dtype_check_for_fused"):
        warnings.filterwarnings(
            "ignore", "for .*: copying from a non-meta parameter"
        )  # torch assumes that meta is empty
        try:
            yield
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)


class _Computed(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Made(TorchFunctionMode):
    """Makes ``torch.tensor`` create tensors on the CPU first, because it bypasses the dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if func not in (torch.tensor, torch.as_tensor) or device is None or torch.device(device).type != NAME:
            return func(*args, **kwargs)
        return func(*args, **kwargs | {"device": "cpu"}).to(NAME)


class _Facts(NamedTuple):
    """Facts from an operation's schema, cached because reading it takes longer than the operation.

    Attributes:
        name: Name of the operation without its overload.
        decomposes: True if the operation consists of other operations.
        is_pointwise: True if each output element depends only on inputs at the same index.
        written: Index and name of the argument that it writes to and returns.
    """

    name: str
    decomposes: bool
    is_pointwise: bool
    written: tuple[int, str] | None


@cache
def _facts(func: Any) -> _Facts:
    returns, arguments, written = func._schema.returns, func._schema.arguments, None
    if len(returns) == 1 and returns[0].alias_info is not None and returns[0].alias_info.is_write:
        places = enumerate(arguments)
        written = next((at, each.name) for at, each in places if each.alias_info and each.alias_info.is_write)
    return _Facts(func._schema.name, func._can_decompose(), torch.Tag.pointwise in func.tags, written)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    facts = _facts(func)
    if facts.decomposes:  # in inference mode torch dispatches composite operations without decomposing them
        with _Computed():
            return func.decompose(*args, **kwargs)
    tensors: list[Tensor] = []

    def hold(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor.here if isinstance(tensor, _There) else tensor

    held, held_kwargs = _each(hold, args), {name: _each(hold, value) for name, value in kwargs.items()}
    there = any(isinstance(each, _There) for each in tensors)
    if there and facts.name not in COPIES:
        _check(facts, args, tensors)
    if (device := kwargs.get("device")) is not None:
        there = torch.device(device).type == NAME
        held_kwargs["device"] = torch.device("cpu")
    elif facts.name == "aten::copy_":
        there = isinstance(args[0], _There)
    out = func(*held, **held_kwargs)
    if facts.written is not None:
        place, name = facts.written
        return args[place] if place < len(args) else kwargs[name]
    return _each(_There, out) if there else out


def _each(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Return an argument or a result of an operation with its tensors replaced; a tuple comes back as a list."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return [_each(function, one) for one in value]
    return value


def _check(facts: _Facts, args: Any, tensors: list[Tensor]) -> None:
    if facts.name in INDEXING:
        tensors = [args[0], *(each for each in tensors if isinstance(each, _There))]
    elif facts.is_pointwise:  # scalars on the CPU are allowed
        tensors = [each for each in tensors if isinstance(each, _There) or each.dim()]
    if not all(isinstance(each, _There) for each in tensors):
        raise RuntimeError(f"{facts.name}: expected all tensors to be on the same device")
