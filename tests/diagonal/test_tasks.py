"""Task pairs: counts, amplitudes and overlap are exact; places and signs are random, fixed by the seed."""

import math

import pytest
import torch

from labkit import compute
from labkit.diagonal.flow import initial_weights
from labkit.diagonal.tasks import FULL, NONE, PARTIAL, SUBSET, TaskPair, design


@pytest.mark.parametrize(
    "task, n_pt, n_ft, n_both",
    [(FULL, 40, 40, 40), (NONE, 40, 36, 0), (SUBSET, 160, 16, 16), (PARTIAL, 40, 38, 20)],
)
def test_counts_and_amplitudes(task, n_pt, n_ft, n_both, generator):
    beta_pt, beta_ft = task.sample(400, generator)
    assert beta_pt.shape == beta_ft.shape == (400,)
    on_pt, on_ft = beta_pt != 0, beta_ft != 0
    assert (on_pt.sum(), on_ft.sum(), (on_pt & on_ft).sum()) == (n_pt, n_ft, n_both)
    assert beta_pt[on_pt].abs().unique().tolist() == pytest.approx([1 / math.sqrt(task.rho_pt)])
    assert beta_ft[on_ft].abs().unique().tolist() == pytest.approx([1 / math.sqrt(task.rho_ft)])


def test_rho_ft_is_the_share_of_fine_tuning_features():
    assert [task.rho_ft for task in (FULL, NONE, SUBSET, PARTIAL)] == pytest.approx([0.1, 0.09, 0.04, 0.095])
    assert TaskPair(1, 0.5, 0).rho_ft == 0.5


def test_places_and_signs_are_uniform(generator):
    """A coordinate is active in 10 % of 4000 draws and positive in half of those, to 4.5 standard errors."""
    draws = 4000
    beta_pt, beta_ft = PARTIAL.sample(40, generator, batch=(draws,))
    assert beta_pt.shape == (draws, 40) and ((beta_pt != 0).sum(-1) == 4).all()
    for beta, share in ((beta_pt, 4 / 40), (beta_ft, 4 / 40)):  # 2 of 4 shared, 2 of 36 new
        frequency = (beta != 0).double().mean(0)
        assert ((frequency - share).abs() < 4.5 * math.sqrt(share * (1 - share) / draws)).all()
        signs = beta[beta != 0].sign()
        assert signs.mean().abs() < 4.5 / math.sqrt(len(signs))
    both = (beta_pt != 0) & (beta_ft != 0)
    assert (beta_pt * beta_ft)[both].sign().mean().abs() < 4.5 / math.sqrt(
        both.sum()
    )  # signs do not depend on each other


def test_a_seed_means_the_same_numbers():
    first, again = (SUBSET.sample(50, compute.generator(3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], SUBSET.sample(50, compute.generator(4))[0])


def test_design_has_rows_of_unit_norm_on_average(generator):
    x = design(2000, 50, generator)
    assert x.shape == (2000, 50)
    covariance = x.mT @ x / 2000
    assert (covariance - torch.eye(50, dtype=x.dtype) / 50).abs().max() < 5 * math.sqrt(2 / 2000) / 50
    assert design(3, 4, generator, batch=(5,)).shape == (5, 3, 4)


@pytest.mark.parametrize(
    "shares, sentence",
    [
        ((1.1, 0.5, 0.5), r"rho_pt must lie in \[0, 1\], got 1.1"),
        ((0.1, -0.5, 0.5), r"rho_shared must lie in \[0, 1\], got -0.5"),
        ((0.1, 0.5, math.nan), r"rho_new must lie in \[0, 1\], got nan"),
        ((0.0, 0.5, 0.5), "rho_pt must be > 0"),
        ((0.1, 0.0, 0.0), "fine-tuning without any feature"),
        ((1.0, 0.0, 0.5), "fine-tuning without any feature"),
    ],
)
def test_impossible_shares_are_refused(shares, sentence):
    with pytest.raises(ValueError, match=sentence):
        TaskPair(*shares)


def test_too_small_a_dimension_is_refused(generator):
    with pytest.raises(ValueError, match="dim must be large enough for one feature per task, got 4"):
        FULL.sample(4, generator)
    with pytest.raises(ValueError, match="n must be >= 1, got 0"):
        design(0, 4, generator)


def test_nothing_is_drawn_on_the_default_device(generator):
    torch.set_default_device("meta")
    try:
        tensors = [*FULL.sample(20, generator), design(3, 20, generator)]
    finally:
        torch.set_default_device(None)
    assert all(value.device == compute.device() and value.dtype == compute.dtype() for value in tensors)


def test_new_features_are_all_the_others_when_all_others_are_new(generator):
    beta_pt, beta_ft = TaskPair(0.25, 0.0, 1.0).sample(20, generator)
    assert ((beta_pt != 0) ^ (beta_ft != 0)).all()


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda g: TaskPair("a", 0.1, 0.1), "rho_pt must be a number, got 'a'"),
        (lambda g: TaskPair(True, 0.1, 0.1), "rho_pt must be a number, got True"),
        (lambda g: TaskPair(torch.tensor(0.1), 0.1, 0.1), "rho_pt must be a number"),
        (lambda g: design("3", 4, g), "n must be a whole number, got '3'"),
        (lambda g: design(2, 4.5, g), "dim must be a whole number, got 4.5"),
        (lambda g: design(2, 4, 0), "generator must be a torch.Generator, got 0"),
        (lambda g: design(2, 4, None), "generator must be a torch.Generator, got None"),
        (lambda g: FULL.sample(100.5, g), "dim must be a whole number, got 100.5"),
        (lambda g: FULL.sample(100, 3), "generator must be a torch.Generator, got 3"),
        (lambda g: initial_weights("a", 1.0, 0.0), "dim must be a whole number, got 'a'"),
    ],
)
def test_wrong_kinds_are_refused_by_name(call, says):
    with pytest.raises(TypeError, match=says):
        call(compute.generator(0))
