"""The digits as tasks: against scikit-learn's arrays, counts, no image on both sides, seeds, devices, bad input."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from labkit import compute
from labkit.data import digits
from labkit.data.digits import (
    Images,
    few_shot,
    finetuning,
    flipped,
    inverted,
    load,
    noisy,
    pretraining,
    rotated,
    split,
    subset,
)
from tests.stand_in import forgotten_device


@pytest.fixture(scope="module")
def images():
    return load("cpu")


def tagged(counts):
    """One image per sample, whose first pixel is the number of the sample: tells which ones were taken."""
    y = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    x = torch.arange(len(y), dtype=torch.float64)[:, None, None, None].expand(-1, 1, 8, 8)
    return Images(x, y, len(counts))


def tags(images):
    return images.x[:, 0, 0, 0].long().tolist()


@pytest.fixture
def silent(monkeypatch):
    """Tasks without pixel noise, so that images can be told apart."""
    monkeypatch.setattr(digits, "noisy", lambda images, generator: images)


def originals(images):
    """For each image, which of the 1797 it is a rotation of (no two digits are rotations of each other)."""
    known = {}
    for number, image in enumerate(load("cpu").x):
        for k in range(4):
            known[torch.rot90(image, k, (-2, -1)).numpy().tobytes()] = number
    return [known[image.contiguous().numpy().tobytes()] for image in images.x]


def test_the_images_are_those_of_scikit_learn(images):
    data = load_digits()
    assert images.x.shape == (1797, 1, 8, 8) and images.y.tolist() == data.target.tolist()
    pixels = images.x[:, 0].numpy()
    assert np.corrcoef(pixels.ravel(), data.images.ravel())[0, 1] == pytest.approx(1, abs=1e-12)
    known = images.x[:1000]
    assert known.mean().item() == pytest.approx(0, abs=1e-12)
    assert (known**2).mean().item() == pytest.approx(1, abs=1e-12)


def test_pretraining_counts(images):
    train, validation = pretraining(0, n_validation=100, device="cpu")
    assert train.n_classes == validation.n_classes == 28
    per_digit = torch.bincount(images.y[:1000], minlength=10)[:7]
    both = torch.bincount(train.y, minlength=28) + torch.bincount(validation.y, minlength=28)
    assert torch.equal(both.reshape(4, 7), per_digit.expand(4, 7))
    assert len(validation) == 400


def test_pretraining_images(silent, images):
    train, validation = pretraining(0, device="cpu")
    sources = [set(originals(part)) for part in (train, validation)]
    assert not sources[0] & sources[1] and max(sources[0] | sources[1]) < 1000
    for part in (train, validation):
        for image, label, number in zip(part.x, part.y.tolist(), originals(part), strict=True):
            assert label % 7 == images.y[number]
            assert torch.equal(image, torch.rot90(images.x[number], label // 7, (-2, -1)))


@pytest.mark.parametrize("task, names, turns", [("subset", range(5), 1), ("new", (7, 8, 9), 2)])
def test_finetuning_images(silent, images, task, names, turns):
    train, test = finetuning(task, 3, seed=0, device="cpu")
    assert train.n_classes == len(names) * turns
    assert torch.bincount(train.y).tolist() == [3] * train.n_classes
    sources = [set(originals(part)) for part in (train, test)]
    expected = {i for i in range(1000, 1797) if int(images.y[i]) in names}
    assert not sources[0] & sources[1] and sources[0] | sources[1] == expected
    assert len(train) + len(test) == turns * len(expected)
    for image, label, number in zip(test.x, test.y.tolist(), originals(test), strict=True):
        assert images.y[number] == names[label % len(names)]
        assert torch.equal(image, torch.rot90(images.x[number], label // len(names), (-2, -1)))


def test_shift_is_the_subset_task_upside_down_and_inverted():
    for shift, known in zip(finetuning("shift", 10, 4, "cpu"), finetuning("subset", 10, 4, "cpu"), strict=True):
        assert torch.equal(shift.y, known.y)
        torch.testing.assert_close(shift.x, -0.7 * known.x.flip(-2), rtol=1e-12, atol=0)


def test_noise_of_the_tasks(monkeypatch):
    """With and without noise the same images are drawn; the difference is N(0, .6²)."""
    loud = [*pretraining(2, device="cpu"), *finetuning("new", 5, 2, "cpu")]
    monkeypatch.setattr(digits, "noisy", lambda images, generator: images)
    quiet = [*pretraining(2, device="cpu"), *finetuning("new", 5, 2, "cpu")]
    for a, b in zip(loud, quiet, strict=True):
        noise = a.x - b.x
        assert noise.std().item() == pytest.approx(0.6, abs=4 * 0.6 / (2 * noise.numel()) ** 0.5)
        assert noise.mean().abs().item() < 4 * 0.6 / noise.numel() ** 0.5
    half = len(loud[2].x) // 2  # an image and its rotation do not share their noise
    pair = torch.rot90((loud[2].x - quiet[2].x)[:half], 1, (-2, -1)), (loud[2].x - quiet[2].x)[half:]
    assert abs(np.corrcoef(*(noise.flatten().numpy() for noise in pair))[0, 1]) < 0.2


@pytest.mark.parametrize("three", [3, np.int64(3), torch.tensor(3)])
def test_integers_of_every_kind(three):
    images = tagged([5, 5, 5, 5])
    for again, expected in zip(
        few_shot(images, three, compute.generator(three)), few_shot(images, 3, compute.generator(3)), strict=True
    ):
        assert tags(again) == tags(expected)
    assert tags(subset(images, [three])) == tags(subset(images, torch.tensor([3]))) == [15, 16, 17, 18, 19]


def correlation(a, b):
    return abs(np.corrcoef(a.flatten().numpy(), b.flatten().numpy())[0, 1])


def test_no_two_images_share_their_noise(monkeypatch):
    """Neither those of training and test, nor the rotations of one image."""
    loud = [*pretraining(2, device="cpu"), *finetuning("subset", 5, 2, "cpu")]
    monkeypatch.setattr(digits, "noisy", lambda images, generator: images)
    quiet = [*pretraining(2, device="cpu"), *finetuning("subset", 5, 2, "cpu")]
    train, validation, few, test = (a.x - b.x for a, b in zip(loud, quiet, strict=True))
    assert correlation(train[: len(validation)], validation) < 0.05 and correlation(few, test[: len(few)]) < 0.1
    upright = train[: len(train) // 4]
    for k in (1, 2, 3):
        turned = train[k * len(upright) : (k + 1) * len(upright)]
        assert correlation(upright, turned) < 0.05
        assert correlation(upright, torch.rot90(turned, -k, (-2, -1))) < 0.05


def test_a_seed_decides_which_images_are_taken(silent):
    for make in (lambda seed: pretraining(seed, device="cpu")[1], lambda seed: finetuning("new", 3, seed, "cpu")[0]):
        assert set(originals(make(1))) == set(originals(make(1))) != set(originals(make(2)))


def test_a_seed_decides():
    for make in (lambda seed: pretraining(seed, device="cpu"), lambda seed: finetuning("subset", 3, seed, "cpu")):
        for again, same, other in zip(make(1), make(1), make(2), strict=True):
            assert torch.equal(again.x, same.x) and torch.equal(again.y, same.y)
            assert not torch.equal(again.x, other.x)


def test_subset_relabels_in_the_given_order():
    few = subset(tagged([2, 2, 2]), (2, 0))
    assert (tags(few), few.y.tolist(), few.n_classes) == ([0, 1, 4, 5], [1, 1, 0, 0], 2)


def test_split_takes_every_image_once():
    part, others = split(tagged([4, 6]), 3, compute.generator(0))
    assert len(part) == 3 and sorted(tags(part) + tags(others)) == list(range(10))


def test_few_shot_takes_equally_many_of_every_class():
    images = tagged([4, 6, 3])
    few, others = few_shot(images, 2, compute.generator(0))
    assert few.y.tolist() == [0, 0, 1, 1, 2, 2]
    assert sorted(tags(few) + tags(others)) == list(range(13))
    for part in (few, others):
        assert images.y[tags(part)].tolist() == part.y.tolist()


def test_few_shot_draws_uniformly():
    """Each of 4 images is in a sample of 2 half of the time."""
    generator, counts = compute.generator(0), torch.zeros(4)
    for _ in range(400):
        counts[tags(few_shot(tagged([4]), 2, generator)[0])] += 1
    assert (counts - 200).abs().max() < 4 * 100**0.5


def test_rotation_flip_and_contrast():
    corner = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    corner[..., 0, 7] = 2  # top right
    image = Images(corner, torch.tensor([1]), 3)
    turned = rotated(image, (0, 1, 2))
    assert [tuple(place[2:]) for place in turned.x.nonzero().tolist()] == [(0, 7), (0, 0), (7, 0)]  # to the left
    assert (turned.y.tolist(), turned.n_classes) == ([1, 4, 7], 9)
    assert flipped(image).x[0, 0, 7, 7] == 2
    assert inverted(image).x[0, 0, 0, 7] == -1.4


REFUSED = {
    r"task must be one of subset, new, shift, got 'old'": lambda: finetuning("old", 3, 0),
    r"n_per_class must be an integer in \[1, 76\] \(77 images of class 2\), got 0": lambda: finetuning("subset", 0, 0),
    r"n_per_class must be an integer in \[1, 75\] \(76 images of class 1\), got 76": lambda: finetuning("new", 76, 0),
    r"n_per_class must be an integer in .* got 2.5": lambda: finetuning("new", 2.5, 0),
    r"n_validation must be an integer in \[1, 703\] \(704 images\), got 704": lambda: pretraining(0, n_validation=704),
    r"seed must be an integer, got 1.5": lambda: pretraining(1.5),
    r"classes must be a list of different numbers from 0 to 9, got \[3, 3\]": lambda: subset(load(), (3, 3)),
    r"classes must be a list of different numbers from 0 to 9, got \[10\]": lambda: subset(load(), (10,)),
    r"classes must be a list of different numbers from 0 to 9, got \[\]": lambda: subset(load(), ()),
    r"std must lie in \[0, inf\), got -1": lambda: noisy(tagged([1]), compute.generator(0), -1),
    r"std must lie in \[0, inf\), got 'a'": lambda: noisy(tagged([1]), compute.generator(0), "a"),
    r"contrast must lie in \(0, inf\), got 'a'": lambda: inverted(tagged([1]), "a"),
    r"all different modulo 4, got 3": lambda: rotated(tagged([1]), 3),
    r"all different modulo 4, got \[0.5\]": lambda: rotated(tagged([1]), [0.5]),
    r"all different modulo 4, got \['a'\]": lambda: rotated(tagged([1]), ["a"]),
    r"such as cpu or cuda, got 'meta'": lambda: load("meta"),
    r"quarter_turns must hold at least one whole number": lambda: rotated(tagged([1]), ()),
    r"all different modulo 4, got \[0, 0\]": lambda: rotated(tagged([1]), (0, 0)),
    r"all different modulo 4, got \[0, 4\]": lambda: rotated(tagged([1]), (0, 4)),
    r"contrast must lie in \(0, inf\), got nan": lambda: inverted(tagged([1]), float("nan")),
    r"dtype must be a floating one such as torch.float32, got torch.int64": lambda: load(dtype=torch.int64),
    r"device must name a device of this computer such as cpu or cuda, got 'nowhere'": lambda: load("nowhere"),
    r"generator must be a torch.Generator, got None": lambda: few_shot(tagged([2]), 1, None),
    r"generator must be a torch.Generator, got 0: labkit.compute": lambda: split(tagged([2]), 1, 0),
    r"must be a torch.Generator, got None: labkit.compute.generator": lambda: noisy(tagged([2]), None),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_bad_input_is_refused_in_a_sentence(sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        REFUSED[sentence]()


MAKERS = {
    "load": load,
    "pretraining": lambda: pretraining(1),
    "subset": lambda: finetuning("subset", 3, 1),
    "new": lambda: finetuning("new", 3, 1),
    "shift": lambda: finetuning("shift", 3, 1),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_means_the_same_on_every_device(device, name, monkeypatch):
    expected = MAKERS[name]()
    monkeypatch.setenv("LABKIT_DEVICE", str(device.place))
    for result, wanted in zip(*(v if isinstance(v, tuple) else (v,) for v in (MAKERS[name](), expected)), strict=True):
        back = device.back(result)
        assert torch.equal(back.x, wanted.x) and torch.equal(back.y, wanted.y)


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_is_made_without_a_device(name):
    with forgotten_device():
        result = MAKERS[name]()
    for got, wanted in zip(*(v if isinstance(v, tuple) else (v,) for v in (result, MAKERS[name]())), strict=True):
        assert torch.equal(got.x, wanted.x) and torch.equal(got.y, wanted.y)


def test_float32_is_asked_for():
    assert finetuning("shift", 3, 0, "cpu", torch.float32)[0].x.dtype == torch.float32
