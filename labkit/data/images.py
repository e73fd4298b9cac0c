"""Labeled images as tensors, and what every data set needs of them: classes, splits, few-shot samples, all by seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from labkit import compute
from labkit.validate import require_generator


@dataclass(frozen=True)
class Images:
    """Images x (n, channel, height, width) and their classes y (n,), int64 in 0 … n_classes − 1; names when known."""

    x: Tensor
    y: Tensor
    n_classes: int
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: slice | Tensor) -> "Images":
        return replace(self, x=self.x[index], y=self.y[index])


def from_pixels(
    pixels: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Images:
    """Bytes (n, channel, height, width) as numbers from −1 to 1, the same for every data set: x = pixel/127.5 − 1.

    They travel as bytes. Device: by default that of ``labkit.compute``; dtype: float32, as there may be many. Raises
    TypeError for a dtype that is not floating, pixels that are no bytes and labels that are no integers; ValueError for
    a device that is not there and for labels that are no number of a name.

    >>> from_pixels(np.full((1, 1, 2, 2), 255, np.uint8), np.array([0]), ["white"]).x.flatten()
    tensor([1., 1., 1., 1.])
    """
    device = compute.device() if device is None else compute.valid_device(device)
    dtype = torch.float32 if dtype is None else dtype
    require_floating(dtype)
    if pixels.dtype != np.uint8 or labels.dtype.kind not in "iu":
        raise TypeError(f"pixels must be uint8 and labels integers, got {pixels.dtype} and {labels.dtype}")
    if not len(pixels) == len(labels) > 0:
        raise ValueError(f"pixels and labels must be equally many, and some, got {len(pixels)} and {len(labels)}")
    if not 0 <= labels.min() <= labels.max() < len(names):
        raise ValueError(f"labels must lie in [0, {len(names) - 1}], got {labels.min()} to {labels.max()}")
    x = torch.from_numpy(np.require(pixels, requirements="CW")).to(device).to(dtype).div_(127.5).sub_(1)
    return Images(x, torch.from_numpy(labels.astype(np.int64)).to(device), len(names), tuple(names))


def subset(images: Images, classes: Sequence[int | str]) -> Images:
    """The images of these classes, by number or by name, which become 0, 1, … in the order given.

    Raises ValueError for no classes, for one given twice and for one that does not exist.

    >>> from labkit.data import digits
    >>> subset(digits.load(), (7, 8, 9)).y[:3]
    tensor([0, 1, 2])
    """
    known = {name: number for number, name in enumerate(images.names)}
    listed = hasattr(classes, "__iter__") and not isinstance(classes, str)
    classes = list(classes) if listed else classes
    numbers = [known.get(c) if isinstance(c, str) else whole_number(c) for c in classes] if listed else []
    if not numbers or len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(images.n_classes)):
        allowed = f"a list of different numbers from 0 to {images.n_classes - 1}"
        allowed += f" or names such as {images.names[0]!r}" if known else ""
        raise ValueError(f"classes must be {allowed}, got {classes}")
    same = images.y[:, None] == torch.tensor(numbers, device=images.y.device)  # (n, class)
    kept = same.any(1)
    names = tuple(images.names[number] for number in numbers) if known else ()
    return Images(images.x[kept], same[kept].int().argmax(1), len(numbers), names)


def split(images: Images, n: int, generator: torch.Generator) -> tuple[Images, Images]:
    """n images drawn at random, and the others. Raises ValueError unless 1 ≤ n < number of images.

    >>> from labkit.data import digits
    >>> [len(part) for part in split(digits.load(), 1500, compute.generator(0))]
    [1500, 297]
    """
    require_some("n", n, len(images), "images")
    order = _order(images, generator)
    return images[order[:n]], images[order[n:]]


def few_shot(images: Images, n_per_class: int, generator: torch.Generator) -> tuple[Images, Images]:
    """n_per_class images of every class drawn at random, sorted by class, and the others.

    Raises ValueError unless every class has more than n_per_class ≥ 1 images: one must be left to test on.

    >>> from labkit.data import digits
    >>> few_shot(digits.load(), 2, compute.generator(0))[0].y.tolist()
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9]
    """
    order = _order(images, generator)
    members = [order[images.y[order] == label] for label in range(images.n_classes)]
    least = min(range(images.n_classes), key=lambda label: len(members[label]))
    require_some("n_per_class", n_per_class, len(members[least]), f"images of class {least}")
    few, others = (
        torch.cat(parts) for parts in zip(*((m[:n_per_class], m[n_per_class:]) for m in members), strict=True)
    )
    return images[few], images[others]


def _order(images: Images, generator: torch.Generator) -> Tensor:
    require_generator(generator)
    return torch.randperm(len(images), generator=generator, device="cpu").to(images.y.device)


def require_floating(dtype: torch.dtype) -> None:
    """Refuse what is not a floating torch.dtype: TypeError."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating one such as torch.float32, got {dtype!r}")


def whole_number(value: object) -> int | None:
    """A whole number of any kind, or None."""
    if hasattr(value, "item"):
        value = value.item() if getattr(value, "ndim", 0) == 0 else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def require_some(name: str, n: int, available: int, what: str) -> None:
    """Refuse what is no number of ``what`` that leaves one of those that are available: ValueError."""
    if available < 2:
        raise ValueError(f"there must be two {what} at least, one for each part, got {available}")
    if (number := whole_number(n)) is None or not 1 <= number < available:
        raise ValueError(f"{name} must be an integer in [1, {available - 1}] ({available} {what}), got {n}")
