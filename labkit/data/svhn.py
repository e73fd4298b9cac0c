"""SVHN: house numbers from street views, 32 × 32 color pixels around one digit; 73 257 to train on, 26 032 to test.

Netzer et al., Reading digits in natural images with unsupervised feature learning, 2011. Each part is a MATLAB file
with the pixels X (row, column, channel, image) and the labels y, in which 10 stands for the digit 0.
"""

import zlib

import numpy as np
import scipy.io
import torch

from labkit.data import download
from labkit.data.download import DataError
from labkit.data.images import Images, from_pixels

PARTS = ("train", "test")
BROKEN = (ValueError, TypeError, KeyError, IndexError, NotImplementedError, OSError, EOFError, zlib.error)


def load(part: str = "train", device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Images:
    """The images of a part, x (n, 3, 32, 32) from −1 to 1, class = digit; downloads once, and only this part.

    Device and dtype as for `labkit.data.images.from_pixels`. Raises ValueError for another part, DataError as
    `labkit.data.download.fetch` does and for a file that is not of SVHN's format.
    """
    if not isinstance(part, str) or part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}, got {part!r}")
    (path,) = download.fetch("svhn", PARTS.index(part))
    try:
        file = scipy.io.loadmat(path, variable_names=("X", "y"))
        pixels, labels = file["X"], file["y"].ravel()
    except BROKEN as error:
        raise DataError(f"{path} is not of SVHN's format ({error}): remove it and fetch it again") from error
    if (
        pixels.shape != (32, 32, 3, len(labels))
        or pixels.dtype != np.uint8
        or not set(labels.tolist()) <= set(range(1, 11))
    ):
        found = f"X {pixels.dtype} {pixels.shape}, y {labels.shape}"
        raise DataError(f"{path} is not of SVHN's format: {found}, labels from 1 to 10 expected")
    return from_pixels(
        pixels.transpose(3, 2, 0, 1), labels.astype(np.int64) % 10, [str(d) for d in range(10)], device, dtype
    )
