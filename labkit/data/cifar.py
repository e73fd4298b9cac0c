"""CIFAR-10 and CIFAR-100: 60 000 color photographs of 32 × 32 pixels in 10 or 100 classes, from the binary archives.

Alex Krizhevsky, Learning multiple layers of features from tiny images, 2009. A record is the class (of CIFAR-100:
superclass and class), one byte each, then 1024 bytes of red, of green and of blue, row by row.
"""

import tarfile
import zlib
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from labkit.data import download
from labkit.data.download import DataError
from labkit.data.images import Images, from_pixels

SHAPE = (3, 32, 32)
LAYOUTS = {  # name -> (bytes of labels in a record, file of the names of the classes, files of each part)
    "cifar10": (
        1,
        "batches.meta.txt",
        {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]},
    ),
    "cifar100": (2, "fine_label_names.txt", {"train": ["train.bin"], "test": ["test.bin"]}),
}


def load(
    name: str = "cifar100",
    part: str = "train",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Images:
    """The 50 000 images of ``part="train"`` or the 10 000 of ``"test"``, x (n, 3, 32, 32) from −1 to 1; downloads once.

    Device and dtype as for `labkit.data.images.from_pixels`. Raises ValueError for another name or part, DataError
    as `labkit.data.download.fetch` does and for an archive that is not of CIFAR's format.
    """
    if not isinstance(name, str) or name not in LAYOUTS:
        raise ValueError(f"name must be one of {', '.join(LAYOUTS)}, got {name!r}")
    n_labels, names_file, parts = LAYOUTS[name]
    if not isinstance(part, str) or part not in parts:
        raise ValueError(f"part must be one of {', '.join(parts)}, got {part!r}")
    (archive,) = download.fetch(name)
    found = read_members(archive, [names_file, *parts[part]])
    names = found.pop(names_file).decode().split()
    records = np.frombuffer(b"".join(found.values()), np.uint8)
    if len(records) % (width := n_labels + 3 * 32 * 32) or not len(records):
        raise DataError(f"{archive} is not of CIFAR's format: its records are not of {width} bytes")
    records = records.reshape(-1, width)
    try:
        return from_pixels(records[:, n_labels:].reshape(-1, *SHAPE), records[:, n_labels - 1], names, device, dtype)
    except ValueError as error:
        if "labels" not in str(error):
            raise
        raise DataError(f"{archive} is not of CIFAR's format: {error}") from error


def read_members(archive: Path, wanted: list[str]) -> dict[str, bytes]:
    """The contents of the files of these names in a .tar.gz, which is read, never unpacked onto the disk.

    Raises DataError for an archive that is damaged or lacks one of them, and for one that holds anything but files
    and folders inside it: no archive of ours has a link or a path that leads out.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                path = PurePosixPath(member.name.replace("\\", "/"))
                inside = not path.is_absolute() and ".." not in path.parts and ":" not in member.name
                if not inside or not (member.isfile() or member.isdir()):
                    raise DataError(f"{archive} is refused: it holds {member.name!r}, which is no file inside it")
                if member.isfile() and path.name in wanted:
                    found[path.name] = tar.extractfile(member).read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{archive} cannot be read as an archive ({error}): remove it and fetch it again") from error
    if missing := [name for name in wanted if name not in found]:
        raise DataError(f"{archive} has no {missing[0]}")
    return {name: found[name] for name in wanted}
