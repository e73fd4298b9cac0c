"""Images to learn from, as tensors on any device.

``digits`` is shipped with scikit-learn and needs no download; CIFAR-10, CIFAR-100 and SVHN are downloaded on request,
verified and kept. What all share, classes, splits and few-shot samples by seed, is in ``images``.
"""


def load(name: str, part: str = "train", device=None, dtype=None):
    """The `labkit.data.images.Images` of a part, "train" or "test", of ``cifar10``, ``cifar100`` or ``svhn``.

    See `labkit.data.cifar.load` and `labkit.data.svhn.load`. Raises ValueError for another name or part, and
    `labkit.data.download.DataError` when the data are neither there nor to be had.
    """
    from labkit.data import cifar, download, svhn

    download.require_name(name)
    return svhn.load(part, device, dtype) if name == "svhn" else cifar.load(name, part, device, dtype)
