"""A GPU that is not there: two nets that catch code which only works on the CPU.

`forgotten_device` catches a tensor made without `device=`. `StandIn` catches that, and also a hard-coded
"cpu", `torch.from_numpy` and a CPU generator used on the device: inside the mode, tensors moved to `STAND_IN`
hold real values, computed on the CPU, but say that they live elsewhere and refuse to meet plain CPU tensors,
as CUDA tensors do.
"""

import contextlib
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

STAND_IN = torch.device("lazy")  # a device type that every build of torch knows, autograd included, and nobody has
COPIES = (
    torch.ops.aten.copy_.default,
    torch.ops.aten._to_copy.default,
)  # the only ops that may cross devices


def forgotten_device():
    """Around a call with CPU inputs: tensors made without `device=` land on "meta", without values."""
    return torch.device("meta")


class Labeled(torch.Tensor):
    """A tensor that says it lives on `STAND_IN`; the values are in `held`, on the CPU."""

    @staticmethod
    def __new__(cls, held):
        place = {"strides": held.stride(), "storage_offset": held.storage_offset(), "device": STAND_IN}
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, **place)

    def __init__(self, held):
        self.held = held

    def __repr__(self):
        return f"stand-in {self.held!r}"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} needs `with StandIn():` around it")


class StandIn(TorchDispatchMode):
    """`with StandIn():` lets `tensor.to(STAND_IN)`, and whatever is computed from it, work."""

    def __enter__(self):
        self._around = contextlib.ExitStack()
        self._around.enter_context(_Makers())
        # A wrapper cannot be made in inference mode: here it does nothing.
        nothing = {"__enter__": lambda self: None, "__exit__": lambda self, *error: None}
        self._around.enter_context(patch.multiple(torch.inference_mode, **nothing))
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._around.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        leaves = tree_leaves((args, kwargs))
        mine = [leaf for leaf in leaves if isinstance(leaf, Labeled)]
        if mine and func not in COPIES:
            _refuse_strays(func, args, leaves)
        target = kwargs.get("device")
        here = bool(mine) if target is None else torch.device(target) == STAND_IN
        if not mine and not here:
            return func(*args, **kwargs)
        if here and any(isinstance(leaf, torch.Generator) for leaf in leaves):
            raise RuntimeError(f"{func}: expected a generator of {STAND_IN}, found one of cpu")
        if here and target is not None:
            kwargs["device"] = torch.device("cpu")
        args, kwargs = tree_map(lambda a: a.held if isinstance(a, Labeled) else a, (args, kwargs))
        written = {id(leaf.held): leaf for leaf in mine}  # by an op in place, or through out=

        def label(value):
            if not isinstance(value, torch.Tensor) or not here:
                return value
            labeled = written[id(value)] if id(value) in written else Labeled(value)
            if labeled.shape != value.shape:
                raise NotImplementedError(f"{func} changes a shape in place: the stand-in cannot follow")
            return labeled

        return tree_map(label, func(*args, **kwargs))


def _refuse_strays(func, args, leaves):
    """CUDA's rule: a CPU tensor may meet device tensors only if it has no axes and is read, not written."""
    read = args[1:] if func._schema.is_mutable else args
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, Labeled):
            continue
        if leaf.ndim or not any(leaf is a for a in read):
            found = f"one of shape {tuple(leaf.shape)} on {leaf.device}"
            raise RuntimeError(f"{func}: expected all tensors on {STAND_IN}, found {found}")


class _Makers(TorchFunctionMode):
    """The few functions that build or read a tensor below the dispatcher."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and kwargs.get("device") is not None:
            device = torch.device(kwargs.pop("device"))
            return func(*args, **kwargs).to(device)
        if func is torch.Tensor.new_tensor and isinstance(args[0], Labeled) and kwargs.get("device") is None:
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}).to(args[0].device)
        if func is torch.Tensor.tolist and isinstance(args[0], Labeled):
            return args[0].cpu().tolist()
        return func(*args, **kwargs)
