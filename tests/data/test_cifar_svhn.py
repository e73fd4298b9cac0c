"""CIFAR and SVHN from tiny files of the real formats: the right tensors, and what is no such file is refused."""

import tarfile

import numpy as np
import pytest
import torch

from labkit import compute, data
from labkit.data import cifar, svhn
from labkit.data.download import DataError
from labkit.data.images import few_shot, from_pixels, split, subset
from tests.data import served as files
from tests.data.served import Server, served, serving
from tests.stand_in import forgotten_device

FILES = files.everything()
ARCHIVE = "cifar-100-binary.tar.gz"


@pytest.fixture(scope="module")
def server():
    with serving(Server(dict(FILES))) as server:
        yield server


@pytest.fixture(autouse=True)
def reached(server, monkeypatch, tmp_path):
    monkeypatch.setattr(server, "files", dict(FILES))
    served(monkeypatch, tmp_path, server)


@pytest.fixture
def given(server, monkeypatch):
    """A function that hands out other files, with their own checksums."""

    def give(**named):
        server.files.update({name.replace("__", "."): content for name, content in named.items()})
        files.expect(monkeypatch, server.files)

    return give


SETS = {  # name, part -> (images, classes, seed of the file, a name)
    ("cifar10", "train"): (20, 10, 1, "thing3"),
    ("cifar10", "test"): (20, 10, 2, "thing3"),
    ("cifar100", "train"): (200, 100, 3, "kind3"),
    ("cifar100", "test"): (100, 100, 4, "kind3"),
    ("svhn", "train"): (20, 10, 5, "3"),
    ("svhn", "test"): (20, 10, 6, "3"),
}


@pytest.mark.parametrize("name, part", SETS)
def test_the_tensors_are_what_was_written(name, part):
    n, n_classes, seed, third = SETS[name, part]
    images = data.load(name, part, device="cpu")
    pixels, labels = files.drawn(n, n_classes, seed)
    assert images.x.dtype == torch.float32 and images.y.tolist() == labels.tolist()
    np.testing.assert_allclose(images.x.double().numpy(), pixels / 127.5 - 1, atol=2e-7)
    assert images.n_classes == n_classes == len(images.names) and images.names[3] == third


def test_red_is_the_first_channel_and_rows_come_before_columns(given):
    """Written by hand, byte by byte, after the descriptions of the formats."""
    green = bytearray(3072)
    green[1024 + 2 * 32 + 5] = 255  # channel 1, row 2, column 5
    member = {"cifar-100-binary/train.bin": bytes([4, 21]) + bytes(green)}
    given(**{"cifar-100-binary__tar__gz": files.cifar100(extra=member.items())})
    images = cifar.load("cifar100", device="cpu")
    assert images.y.tolist() == [21] and (images.x > 0).nonzero().tolist() == [[0, 1, 2, 5]]
    pixels = np.zeros((32, 32, 3, 1), np.uint8)
    pixels[2, 5, 1] = 255
    given(train_32x32__mat=files.mat(X=pixels, y=np.array([[10]], np.uint8)))
    images = svhn.load(device="cpu")
    assert images.y.tolist() == [0] and (images.x > 0).nonzero().tolist() == [[0, 1, 2, 5]]


def test_dtype_device_and_seeds_mean_the_same_everywhere(device, monkeypatch):
    def made():
        images = subset(data.load("cifar100", dtype=torch.float64), ["kind7", 3, "kind11"])
        return few_shot(images, 1, compute.generator(5)), split(images, 2, compute.generator(5))

    expected = made()
    assert expected[0][0].x.dtype == torch.float64
    monkeypatch.setenv("LABKIT_DEVICE", str(device.place))
    for got, wanted in zip(device.back(made()), expected, strict=True):
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close((a.x, a.y), (b.x, b.y), rtol=0, atol=1e-15)
            assert a.names == b.names == ("kind7", "kind3", "kind11")


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn"])
def test_nothing_is_made_without_a_device(name):
    with forgotten_device():
        images = data.load(name, device="cpu")
    assert images.x.device.type == images.y.device.type == "cpu"


def link():
    info = tarfile.TarInfo("cifar-100-binary/train.bin")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info


def hard():
    info = tarfile.TarInfo("more")
    info.type, info.linkname = tarfile.LNKTYPE, "../../etc/passwd"
    return info


@pytest.mark.parametrize(
    "name, content",
    [
        ("../outside.bin", b"x"),
        ("cifar-100-binary/../../train.bin", b"x"),
        ("/etc/train.bin", b"x"),
        ("..\\outside.bin", b"x"),
        ("C:/outside.bin", b"x"),
        ("cifar-100-binary/train.bin", link()),
        ("more", hard()),
    ],
)
def test_an_archive_that_leads_out_is_refused(given, tmp_path, name, content):
    given(**{"cifar-100-binary__tar__gz": files.cifar100(extra={name: content}.items())})
    with pytest.raises(DataError, match="is refused: it holds '.*', which is no file inside it"):
        cifar.load("cifar100", device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == [ARCHIVE]  # nothing was unpacked, here or elsewhere


def cut(content):
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    "content, sentence",
    [
        (cut(FILES[ARCHIVE]), "cannot be read as an archive"),
        (b"\x1f\x8b" + bytes(100), "cannot be read as an archive"),
        (files.archive({"cifar-100-binary/fine_label_names.txt": b"a\nb\n"}), "has no train.bin"),
        (files.cifar100(extra={"cifar-100-binary/train.bin": b"short"}.items()), "records are not of 3074 bytes"),
        (files.cifar100(extra={"cifar-100-binary/train.bin": b""}.items()), "records are not of 3074 bytes"),
        (files.cifar100(extra={"cifar-100-binary/train.bin": bytes([0, 100] + [0] * 3072)}.items()), "labels must lie"),
    ],
)
def test_an_archive_of_another_format_is_refused(given, content, sentence):
    given(**{"cifar-100-binary__tar__gz": content})
    with pytest.raises(DataError, match=f"{ARCHIVE} .*{sentence}"):
        cifar.load("cifar100", device="cpu")


PIXELS = np.zeros((32, 32, 3, 4), np.uint8)


@pytest.mark.parametrize(
    "content",
    [
        cut(FILES["train_32x32.mat"]),
        b"MATLAB 5.0 MAT-file" + bytes(200),
        files.mat(X=PIXELS),
        files.mat(X=PIXELS, y=np.ones(3, np.uint8)),
        files.mat(X=PIXELS.astype(float), y=np.ones(4, np.uint8)),
        files.mat(X=PIXELS, y=np.array([0, 1, 2, 3], np.uint8)),
        files.mat(X=PIXELS, y=np.array([11, 1, 2, 3], np.uint8)),
        files.mat(X=PIXELS.transpose(3, 0, 1, 2), y=np.ones(4, np.uint8)),
    ],
)
def test_a_mat_file_of_another_format_is_refused(given, content):
    given(train_32x32__mat=content)
    with pytest.raises(DataError, match="train_32x32.mat is not of SVHN's format"):
        svhn.load(device="cpu")


REFUSED = {
    r"the data set must be one of cifar10, cifar100, svhn, got 'mnist'": lambda: data.load("mnist"),
    r"name must be one of cifar10, cifar100, got 'svhn'": lambda: cifar.load("svhn"),
    r"part must be one of train, test, got 'validation'": lambda: data.load("cifar10", "validation"),
    r"part must be one of train, test, got 'extra'": lambda: data.load("svhn", "extra"),
    r"dtype must be a floating one such as torch.float32, got torch.uint8": lambda: data.load(
        "svhn", dtype=torch.uint8
    ),
    r"device must name a device of this computer such as cpu": lambda: data.load("cifar10", device="nowhere"),
    r"0 to 99 or names such as 'kind0', got \['ape'\]": lambda: subset(data.load("cifar100"), ["ape"]),
    r"classes must be .*, got \['kind1', 1\]": lambda: subset(data.load("cifar100"), ["kind1", 1]),
    r"classes must be .*, got \[100\]": lambda: subset(data.load("cifar100"), [100]),
    r"classes must be a list of different numbers from 0 to 99 or names such as 'kind0', got kind1": lambda: subset(
        data.load("cifar100"), "kind1"
    ),
    r"classes must be .*, got \[\[1\]\]": lambda: subset(data.load("cifar100"), [[1]]),
    r"classes must be .*, got \[True, False\]": lambda: subset(data.load("cifar100"), [True, False]),
    r"classes must be .*, got \[1.0\]": lambda: subset(data.load("cifar100"), [1.0]),
    r"classes must be .*, got \[None\]": lambda: subset(data.load("cifar100"), [None]),
    r"classes must be .*, got 3": lambda: subset(data.load("cifar100"), 3),
    r"the data set must be one of .*, got \['svhn'\]": lambda: data.load(["svhn"]),
    r"dtype must be a floating one such as torch.float32, got 'float'": lambda: data.load("svhn", dtype="float"),
    r"n_per_class must be an integer in .*, got True": lambda: few_shot(
        data.load("cifar100"), True, compute.generator(0)
    ),
    r"there must be two images of class 0 at least, one for each part, got 1": lambda: few_shot(
        data.load("cifar100", "test"), 1, compute.generator(0)
    ),
    r"there must be two images at least, one for each part, got 0": lambda: split(
        data.load("svhn")[:0], 1, compute.generator(0)
    ),
    r"labels must lie in \[0, 1\], got 0 to 2": lambda: from_pixels(PIXELS[:3], np.arange(3), "ab"),
    r"equally many, and some, got 32 and 3": lambda: from_pixels(PIXELS, np.arange(3), "abc"),
    r"name must be one of cifar10, cifar100, got \['x'\]": lambda: cifar.load(["x"]),
    r"part must be one of train, test, got \['train'\]": lambda: data.load("cifar10", ["train"]),
    r"part must be one of train, test, got \[0\]": lambda: svhn.load([0]),
    r"labels integers, got uint8 and float64": lambda: from_pixels(PIXELS[:3], np.zeros(3), "abc"),
    r"pixels must be uint8 and labels integers, got uint16": lambda: from_pixels(
        PIXELS[:3].astype(np.uint16), np.arange(3), "abc"
    ),
    r"pixels must be uint8 .*, got float64": lambda: from_pixels(np.full((1, 1, 2, 2), np.nan), np.arange(1), "a"),
    r"such as cpu or cuda, got 'meta'": lambda: data.load("cifar10", device="meta"),
    r"such as cpu or cuda, got '\[\]'": lambda: data.load("cifar10", device=[]),
    r"such as cpu or cuda, got '1.5'": lambda: data.load("cifar10", device=1.5),
    r"classes must be a list of different numbers .*, got .tensor": lambda: subset(
        data.load("cifar100"), torch.zeros(2, 2)
    ),
    r"n must be an integer in \[1, 19\] \(20 images\), got tensor\(\[3, 4\]\)": lambda: split(
        data.load("svhn"), torch.tensor([3, 4]), compute.generator(0)
    ),
    r"n must be an integer in \[1, 19\] \(20 images\), got 2.0": lambda: split(
        data.load("svhn"), 2.0, compute.generator(0)
    ),
    r"equally many, and some, got 0 and 0": lambda: from_pixels(PIXELS[:0], np.arange(0), "abc"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_bad_input_is_refused_in_a_sentence(sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        REFUSED[sentence]()
