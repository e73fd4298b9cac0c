"""The 1797 handwritten digits that scikit-learn ships, 8 × 8 pixels, as pretraining and fine-tuning tasks.

Pretraining sees images 0–999, fine-tuning the other 797. Whatever is random is drawn on the CPU, so a seed means the
same on every device. The protocol, with its pixel noise, is ours: a toy of the image experiments of arXiv 2602.20062.
"""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Real

import torch

from labkit import compute
from labkit.data.images import Images, few_shot, require_floating, require_some, split, subset, whole_number
from labkit.validate import require_generator

N_PRETRAINING = 1000  # images 0–999
NOISE_STD = 0.6  # in units of the pixels' standard deviation; without noise few-shot accuracy saturates
CONTRAST = 0.7  # what inverted images keep
TASKS = ("subset", "new", "shift")


def load(device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Images:
    """All 1797 digits, standardised: the pixels of images 0–999 have mean 0 and variance 1.

    Device and dtype are by default those of ``labkit.compute``. Raises ValueError for a device that is not there,
    TypeError for a dtype that is not floating.

    >>> load().x.shape
    torch.Size([1797, 1, 8, 8])
    """
    from sklearn.datasets import load_digits  # costs a second to import: only who asks pays

    device = compute.device() if device is None else compute.valid_device(device)
    dtype = compute.dtype(device) if dtype is None else dtype
    require_floating(dtype)
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float64, device="cpu")[:, None]
    y = torch.tensor(data.target, dtype=torch.int64, device="cpu")
    known = x[:N_PRETRAINING]
    x = (x - known.mean()) / known.std(correction=0)
    return Images(x.to(device, dtype), y.to(device), 10)


def pretraining(
    seed: int,
    n_validation: int = 100,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Images, Images]:
    """(training, validation) images of 28 classes, digit + 7·(quarter turns): digits 0–6, four ways up, noisy.

    Of the 704 images of these digits among images 0–999 the seed draws ``n_validation``; all four rotations of those
    are the validation images. Raises ValueError unless 1 ≤ n_validation ≤ 703.

    >>> train, validation = pretraining(seed=0)
    >>> len(train), len(validation), train.n_classes
    (2416, 400, 28)
    """
    generator = compute.generator(seed)
    known = subset(load(device, dtype)[:N_PRETRAINING], range(7))
    require_some("n_validation", n_validation, len(known), "images")
    validation, train = split(known, n_validation, generator)
    return tuple(noisy(rotated(images, range(4)), generator) for images in (train, validation))


def finetuning(
    task: str,
    n_per_class: int,
    seed: int,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Images, Images]:
    """(training, test) images of a task, from images 1000–1796: the seed draws the training images and the noise.

    ``"subset"``: digits 0–4, known from pretraining. ``"new"``: digits 7–9, upright and a quarter turn, 6 classes.
    ``"shift"``: digits 0–4 upside down and with inverted contrast, the noise included: only what the images look like
    changes, not how hard they are. The ``n_per_class`` images of a digit serve both its rotations; the test images
    are all rotations of the others.

    Raises ValueError for another task, or unless each digit has more than n_per_class ≥ 1 images.

    >>> train, test = finetuning("new", n_per_class=3, seed=0)
    >>> len(train), len(test), train.n_classes
    (18, 456, 6)
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    generator = compute.generator(seed)
    unseen = subset(load(device, dtype)[N_PRETRAINING:], (7, 8, 9) if task == "new" else range(5))
    both = few_shot(unseen, n_per_class, generator)
    if task == "new":
        both = (rotated(images, (0, 1)) for images in both)
    both = tuple(noisy(images, generator) for images in both)
    return tuple(inverted(flipped(images)) for images in both) if task == "shift" else both


def noisy(images: Images, generator: torch.Generator, std: float = NOISE_STD) -> Images:
    """The images plus pixel noise N(0, std²), drawn on the CPU. Raises ValueError for std < 0.

    >>> images = load()
    >>> (noisy(images, compute.generator(0)).x - images.x).std()
    tensor(0.6, dtype=torch.float64)
    """
    require_generator(generator)
    if not isinstance(std, Real) or not 0 <= std < torch.inf:
        raise ValueError(f"std must lie in [0, inf), got {std!r}")
    noise = std * torch.randn(images.x.shape, generator=generator, dtype=torch.float64, device="cpu")
    return replace(images, x=images.x + noise.to(images.x.device, images.x.dtype))


def rotated(images: Images, quarter_turns: Sequence[int]) -> Images:
    """The images once per number of counterclockwise quarter turns; each number has classes of its own.

    The class of an image turned by ``quarter_turns[i]`` is y + i·n_classes. Raises ValueError for no turns, and for
    two that are the same: 0 and 4.

    >>> rotated(load(), (0, 1)).n_classes
    20
    """
    listed = hasattr(quarter_turns, "__iter__") and not isinstance(quarter_turns, str)
    turns = [whole_number(turn) for turn in quarter_turns] if listed else []
    if not turns or None in turns or len({turn % 4 for turn in turns}) < len(turns):
        allowed = "at least one whole number, all different modulo 4"
        raise ValueError(f"quarter_turns must hold {allowed}, got {list(quarter_turns) if listed else quarter_turns!r}")
    x = torch.cat([torch.rot90(images.x, k, (-2, -1)) for k in turns])
    y = torch.cat([images.y + i * images.n_classes for i in range(len(turns))])
    return Images(x, y, len(turns) * images.n_classes)


def flipped(images: Images) -> Images:
    """The images upside down: the top row becomes the bottom row.

    >>> torch.equal(flipped(load()).x[..., 0, :], load().x[..., 7, :])
    True
    """
    return replace(images, x=images.x.flip(-2))


def inverted(images: Images, contrast: float = CONTRAST) -> Images:
    """Bright for dark, with a share of the contrast: x → −contrast·x around the mean pixel. ValueError unless > 0.

    >>> inverted(load()).x.std() / load().x.std()
    tensor(0.7, dtype=torch.float64)
    """
    if not isinstance(contrast, Real) or not 0 < contrast < torch.inf:
        raise ValueError(f"contrast must lie in (0, inf), got {contrast!r}")
    return replace(images, x=-contrast * images.x)
