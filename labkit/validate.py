"""Checks at the door: every public function turns its arguments into tensors here and refuses bad ones.

A refusal is a sentence with the argument, the value and the allowed range: ``lam must lie in [-1, 1], got
1.3``; for a batch it names the first bad element: ``lam[3, 0] = 1.3 must lie in [-1, 1]``.
"""

from functools import reduce
from numbers import Real
from operator import index

import torch
from torch import Tensor

from labkit import compute


def as_tensors(**named: float | Tensor) -> tuple[Tensor, ...]:
    """The arguments, in order, as floating tensors of one dtype on one device.

    Device and dtype come from the tensors among the arguments (the widest dtype wins) and plain numbers
    follow them; without any tensor they are those of ``labkit.compute``.

    Raises
        TypeError: an argument is neither a number nor a tensor, or a tensor that is not floating.
        ValueError: two tensors live on different devices.

    >>> as_tensors(beta=torch.tensor([1.0, 2.0]), c=1)
    (tensor([1., 2.]), tensor(1.))
    """
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    for name, value in named.items():
        if name not in tensors and not isinstance(value, Real):
            raise TypeError(f"{name} must be a number or a torch tensor, got {type(value).__name__}")
    for name, value in tensors.items():
        if not value.is_floating_point():
            remedy = "" if value.is_complex() else f": use {name}.double()"
            raise TypeError(f"{name} must be a floating tensor, got dtype {value.dtype}{remedy}")
    if tensors:
        (first, leader), *others = tensors.items()
        for name, value in others:
            if value.device != leader.device:
                raise ValueError(f"{first} is on {leader.device} but {name} is on {value.device}: use one device")
        for name, value in tensors.items():
            if value.layout != torch.strided or value.is_meta:
                kind = "meta" if value.is_meta else str(value.layout).removeprefix("torch.").removesuffix("_coo")
                raise TypeError(f"{name} must be a dense tensor with values, got a {kind} tensor")
        dtypes = (value.dtype for value in tensors.values())
        device, dtype = leader.device, reduce(torch.promote_types, dtypes)
    else:
        device, dtype = compute.device(), compute.dtype()
    return tuple(torch.as_tensor(value, dtype=dtype, device=device) for value in named.values())


def require_whole(low: int, **named: int) -> None:
    """Refuse what is not a whole number ≥ low: TypeError for the kind, ValueError for the size.

    >>> require_whole(1, dim=0)
    Traceback (most recent call last):
    ValueError: dim must be >= 1, got 0
    """
    for name, value in named.items():
        try:
            if isinstance(value, bool):
                raise TypeError
            index(value)  # a tensor of several numbers has the method, and no index
        except TypeError:
            raise TypeError(f"{name} must be a whole number, got {value!r}") from None
        if value < low:
            raise ValueError(f"{name} must be >= {low}, got {value}")


def require_generator(generator: torch.Generator) -> None:
    """Refuse what is not a torch.Generator of the CPU: a seed means the same on every device."""
    if not isinstance(generator, torch.Generator):
        hint = "labkit.compute.generator(seed) makes one"
        raise TypeError(f"generator must be a torch.Generator, got {generator!r}: {hint}")
    if generator.device.type != "cpu":
        raise ValueError(f"generator must be one of the CPU, got one of {generator.device}")


def require_range(low: float, high: float, **named: Tensor) -> None:
    """Refuse values outside [low, high] (an infinite end is never reached) and NaN."""
    left, right = "(" if low == -torch.inf else "[", ")" if high == torch.inf else "]"
    for name, value in named.items():
        inside = (value >= low) & (value <= high) & value.isfinite()
        refuse(name, value, inside, f"must lie in {left}{low}, {high}{right}")


def require_positive(**named: Tensor) -> None:
    """Refuse values that are not finite and > 0."""
    for name, value in named.items():
        refuse(name, value, (value > 0) & value.isfinite(), "must be positive and finite")


def require_finite(**named: Tensor) -> None:
    """Refuse NaN and infinity."""
    for name, value in named.items():
        # the extremes carry NaN along, and unlike a mask need no memory of the size of the value
        if value.numel() and torch.stack(torch.aminmax(value.detach())).isfinite().all():
            continue
        refuse(name, value, value.isfinite(), "must be finite")


def require_some(**named: Tensor) -> None:
    """Refuse tensors without an element.

    >>> require_some(scores=torch.ones(3, 0))
    Traceback (most recent call last):
    ValueError: scores must not be empty, got shape (3, 0)
    """
    for name, value in named.items():
        if not value.numel():
            raise ValueError(f"{name} must not be empty, got shape {tuple(value.shape)}")


def require_broadcast(**named: Tensor) -> torch.Size:
    """The common shape of the arguments; shapes that do not broadcast are refused by name."""
    try:
        return torch.broadcast_shapes(*(value.shape for value in named.values()))
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in named.items())
        raise ValueError(f"these shapes do not broadcast: {shapes}") from None


def refuse(name: str, value: Tensor, allowed: Tensor, rule: str) -> None:
    """Raise ValueError with the first element of ``value`` where the mask ``allowed`` is False.

    >>> refuse("lam", torch.tensor([0.0, 1.3]), torch.tensor([True, False]), "must lie in [-1, 1]")
    Traceback (most recent call last):
    ValueError: lam[1] = 1.3 must lie in [-1, 1]
    """
    if bool(allowed.all()):
        return
    place = (~allowed).nonzero()[0].tolist()
    bad = value[tuple(place)]
    shown = repr(bad.item()) if bad.dtype == torch.float64 else f"{bad.item():.8g}"  # float32: 1.3, not 1.29999995
    if place:
        raise ValueError(f"{name}{place} = {shown} {rule}")
    raise ValueError(f"{name} {rule}, got {shown}")
