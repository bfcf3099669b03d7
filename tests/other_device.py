"""A device beside the CPU, for machines that have none: tensors on it are refused beside the CPU's, as a GPU's are.

Its memory is the CPU's and its numbers are real. It goes by the name of ``meta``, the one kind of device that torch's
autograd serves without a driver.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.optim.adam as adam
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "meta"
COPIES = {"aten::_to_copy", "aten::copy_"}
"""What takes tensors from one device to another."""
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
"""What takes indices of the CPU's too: the first argument decides."""


class _There(Tensor):
    """A tensor on the device, ``here`` what it holds."""

    here: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, here: Tensor) -> "_There":
        with torch.inference_mode(here.is_inference()):  # a view of a weight is none, wherever it is taken
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
    """Within it tensors can be made on the device and taken there."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # so that tied weights stay tied when they are taken
    with _Made(), _Computed(), warnings.catch_warnings(), patch.object(adam, "_device_dtype_check_for_fused"):
        warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter")  # torch takes it for empty
        try:
            yield
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)


class _Computed(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Made(TorchFunctionMode):
    """Has ``torch.tensor`` make tensors on the CPU first, for it asks nobody."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if func not in (torch.tensor, torch.as_tensor) or device is None or torch.device(device).type != NAME:
            return func(*args, **kwargs)
        return func(*args, **kwargs | {"device": "cpu"}).to(NAME)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func._can_decompose():  # what is made of others arrives whole in inference mode
        with _Computed():
            return func.decompose(*args, **kwargs)
    name = func._schema.name
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    there = any(isinstance(each, _There) for each in tensors)
    if there and name not in COPIES:
        _check(func, name, args, tensors)
    if (device := kwargs.get("device")) is not None:
        there = torch.device(device).type == NAME
        kwargs = kwargs | {"device": torch.device("cpu")}
    elif name == "aten::copy_":
        there = isinstance(args[0], _There)
    out = func(*tree_map(_held, args), **tree_map(_held, kwargs))
    returns, arguments = func._schema.returns, func._schema.arguments
    if len(returns) == 1 and returns[0].alias_info is not None and returns[0].alias_info.is_write:
        places = [place for place, each in enumerate(arguments) if each.alias_info and each.alias_info.is_write]
        return args[places[0]] if places[0] < len(args) else kwargs[arguments[places[0]].name]
    return tree_map(lambda each: _There(each) if isinstance(each, Tensor) else each, out) if there else out


def _check(func: Any, name: str, args: Any, tensors: list[Tensor]) -> None:
    if name in INDEXING:
        tensors = [args[0], *(each for each in tensors if isinstance(each, _There))]
    elif torch.Tag.pointwise in func.tags:  # a number of the CPU's is welcome there
        tensors = [each for each in tensors if isinstance(each, _There) or each.dim()]
    if not all(isinstance(each, _There) for each in tensors):
        raise RuntimeError(f"{name}: expected all tensors to be on the same device")


def _held(value: Any) -> Any:
    return value.here if isinstance(value, _There) else value
