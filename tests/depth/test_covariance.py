"""The covariance against numpy, its measures at their ends, and the sample sizes against simulated tests."""

import math

import numpy as np
import pytest
import torch

from labkit import compute
from labkit.depth.covariance import (
    correlation,
    generic_correlation,
    gradient_covariance,
    mean_correlation,
    measures,
    off_diagonal_energy,
    samples_by_rank,
    samples_to_see,
)
from labkit.depth.jumpboard import activation_gradient, direction, draw_features, evaluate, scores
from labkit.depth.network import PostNormResNet
from tests.depth.conftest import randn

F64 = torch.float64


def low_rank(rank, dim, seed=0):
    """A projection on a random subspace."""
    q = torch.linalg.qr(randn(dim, rank, seed=seed)).Q
    return q @ q.mT


def test_covariance_is_that_of_numpy():
    g = randn(3, 50, 6) + 2
    found = gradient_covariance(g)
    for net in range(3):
        expected = np.cov(g[net].numpy(), rowvar=False, bias=True)
        np.testing.assert_allclose(found[net].numpy(), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient_covariance(g, center=False), g.mT @ g / 50)


def test_positions_are_samples_or_coordinates():
    g = randn(2, 40, 3, 3, 4)
    channels, every = gradient_covariance(g), gradient_covariance(g, "all")
    assert channels.shape == (2, 4, 4) and every.shape == (2, 36, 36)
    np.testing.assert_allclose(channels[1].numpy(), np.cov(g[1].reshape(-1, 4).T.numpy(), bias=True), atol=1e-12)
    np.testing.assert_allclose(every[1].numpy(), np.cov(g[1].reshape(40, -1).T.numpy(), bias=True), atol=1e-12)


def test_measures_at_their_ends():
    diagonal = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=F64))
    assert off_diagonal_energy(diagonal) == mean_correlation(diagonal) == 0
    ones = torch.ones(5, 5, dtype=F64)
    assert off_diagonal_energy(ones).item() == pytest.approx(0.8) and mean_correlation(ones).item() == pytest.approx(1)
    mixed = 0.25 * ones + 0.75 * torch.eye(5, dtype=F64)
    assert mean_correlation(mixed).item() == pytest.approx(0.25)
    assert off_diagonal_energy(mixed).item() == pytest.approx(20 * 0.25**2 / (20 * 0.25**2 + 5))


def test_scale_of_the_coordinates_changes_energy_but_not_correlation():
    scale = torch.diag(torch.tensor([1.0, 10.0, 0.1, 3.0], dtype=F64))
    cov = gradient_covariance(randn(1, 30, 4))[0]
    torch.testing.assert_close(correlation(scale @ cov @ scale), correlation(cov))
    torch.testing.assert_close(off_diagonal_energy(1e-30 * cov), off_diagonal_energy(cov))
    assert abs(off_diagonal_energy(scale @ cov @ scale) - off_diagonal_energy(cov)) > 1e-2


def test_a_coordinate_that_never_varies_counts_for_nothing():
    cov = torch.zeros(3, 3, dtype=F64)
    cov[:2, :2] = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    assert mean_correlation(cov).item() == 0.5 and correlation(cov)[2].abs().sum() == 0
    assert mean_correlation(torch.diag(torch.tensor([1.0, 0.0], dtype=F64))) == 0


@pytest.mark.parametrize("rank", [3, 9])
def test_low_rank_looks_diagonal_and_is_not(rank):
    """Subspaces of rank ≪ d: mean |corr| about √(2/(πr)), off-diagonal energy 1 − r/d up to the spread of Σ_ii."""
    dim = 300
    found = measures(torch.stack([low_rank(rank, dim, seed) for seed in range(8)]))
    assert found.mean_correlation.mean().item() == pytest.approx(generic_correlation(rank).item(), rel=0.1)
    assert (found.off_diagonal - (1 - rank / dim)).abs().max() < 3 * rank / dim
    assert found.rank.tolist() == [rank] * 8
    torch.testing.assert_close(found.effective_rank, torch.full((8,), float(rank), dtype=F64))
    torch.testing.assert_close(found.participation, found.effective_rank)
    assert found.eigenvalues.shape == (8, dim) and (found.eigenvalues.diff(dim=1) <= 1e-12).all()


def test_the_last_layer_has_rank_below_the_number_of_classes(trained, sample):
    found = measures(gradient_covariance(activation_gradient(trained, 2, *sample)))
    assert found.rank.tolist() == [3, 3, 3]
    assert measures(gradient_covariance(activation_gradient(trained, 1, *sample))).rank.tolist() == [16, 16, 16]


def test_near_diagonality_does_not_reproduce(trained, sample):
    """The bands of the theory notes: off-diagonal energy .53–.93, r_eff 1.4–5.0."""
    for layer in (0, 1, 2):
        found = measures(gradient_covariance(activation_gradient(trained, layer, *sample)))
        assert ((found.off_diagonal > 0.45) & (found.off_diagonal < 0.95)).all()
        assert ((found.effective_rank > 1.3) & (found.effective_rank < 5.5)).all()


# ---- samples


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_half_of_the_tests_see_the_direction(confidence):
    """Means of n = result draws of N(−.2, 1) fall below −z/√n in half of 20 000 simulations."""
    needed = samples_to_see(-0.2 + randn(2_000_000, seed=3), confidence).item()
    z = {0.8: 0.8416, 0.95: 1.6449, 0.99: 2.3263}[confidence]
    assert needed == pytest.approx((z / 0.2) ** 2, rel=0.02)
    n = round(needed)
    means = (-0.2 + randn(20_000, n, seed=4)).mean(1)
    share = (means < -z / math.sqrt(n)).double().mean().item()
    assert share == pytest.approx(0.5, abs=0.03)


def test_an_ascent_direction_is_never_seen():
    found = samples_to_see(torch.stack([randn(100) + 1, randn(100) - 1]))
    assert found[0] == math.inf and 0 < found[1] < 10


def test_the_size_by_rank_is_that_of_a_simulation():
    """g = mean·sign + noise of an equicorrelated Σ: worst direction q = −sign, along λmax; equality there."""
    dim, mean, std, rho = 12, 0.1, 1.0, 0.4
    cov = std**2 * (rho * torch.ones(dim, dim, dtype=F64) + (1 - rho) * torch.eye(dim, dtype=F64))
    rank = measures(cov).effective_rank
    g = mean + randn(200_000, dim, seed=5) @ torch.linalg.cholesky(cov).mT
    needed = samples_to_see(g @ -torch.ones(dim, dtype=F64))
    assert needed.item() == pytest.approx(samples_by_rank(mean, std, rank).item(), rel=0.05)
    alone = mean + randn(200_000, dim, seed=6)  # white noise: r_eff = d, equality again
    assert samples_to_see(-alone.sum(1)).item() == pytest.approx(samples_by_rank(mean, std, dim).item(), rel=0.05)


def test_scores_and_the_direction_agree(trained, sample, task):
    """n_95 = z²·Var/G² from `evaluate` of the same sample; wider blocks need fewer samples."""
    x, y = task.sample(20_000, compute.generator(8))
    needed = []
    for width in (8, 64):
        found = direction(trained, 1, x, y, draw_features(trained, width))
        there = evaluate(trained, found, *sample)
        n = len(sample[1])
        expected = 1.6448536**2 * (there.square / there.gain**2 - 1) * n / (n - 1)
        needed.append(samples_to_see(scores(trained, found, *sample)))
        torch.testing.assert_close(needed[-1], expected, rtol=1e-6, atol=0)
    assert (needed[1] < needed[0]).all()


@pytest.mark.parametrize("dtype, powers", [(torch.float32, (-25, 25)), (F64, (-200, 200))])
def test_sample_sizes_do_not_depend_on_the_unit(dtype, powers):
    """They are ratios: scores in any unit, whose squares may leave the floats."""
    scores = (randn(3, 200) - 0.3).to(dtype)
    for power in powers:
        torch.testing.assert_close(samples_to_see(scores * 10.0**power), samples_to_see(scores))
        mean, std = (torch.tensor(v * 10.0**power, dtype=dtype) for v in (0.1, 1.0))
        torch.testing.assert_close(
            samples_by_rank(mean, std, 2.0).double(), samples_by_rank(0.1, 1.0, 2.0), rtol=1e-6, atol=0
        )


REFUSED = {
    "over must be one of channels, all, got 'pixels'": lambda: gradient_covariance(randn(1, 5, 3), "pixels"),
    r"g must be \(net, n, ..., d\) and not empty, got \(5, 3\)": lambda: gradient_covariance(randn(5, 3)),
    "g must hold at least 2 samples, got 1": lambda: gradient_covariance(randn(2, 1, 3)),
    r"g\[0, 0, 0\] = nan must be finite": lambda: gradient_covariance(torch.full((1, 2, 1), math.nan)),
    r"cov must be \(\.\.\., dim, dim\)": lambda: off_diagonal_energy(randn(3, 4)),
    "must be 0: symmetric": lambda: measures(randn(3, 3)),
    "trace of cov must be > 0": lambda: mean_correlation(torch.zeros(2, 2)),
    r"diagonal of cov\[1\] = -1 must be >= 0": lambda: correlation(torch.diag(torch.tensor([3.0, -1.0]))),
    r"confidence must lie in \(0.5, 1\), got 1": lambda: samples_to_see(randn(5), 1),
    r"scores must be \(\.\.\., n\) with n >= 2, got \(1,\)": lambda: samples_to_see(randn(1)),
    "std must be positive and finite, got 0": lambda: samples_by_rank(1.0, 0.0, 2.0),
    r"do not broadcast: mean \(2,\), std \(3,\)": lambda: samples_by_rank(torch.ones(2), torch.ones(3), 2.0),
    r"do not broadcast: .*effective_rank \(3,\)": lambda: samples_by_rank(torch.ones(2), 1.0, torch.ones(3)),
    r"scores\[1\] = nan must be finite": lambda: samples_to_see(torch.tensor([1.0, math.nan])),
    r"scores must be \(\.\.\., n\) with n >= 2, got \(0, 5\)": lambda: samples_to_see(torch.ones(0, 5)),
    "confidence must be a number, got str": lambda: samples_by_rank(1.0, 1.0, 2.0, "high"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_is_refused(sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        REFUSED[sentence]()


def test_one_net_of_many_classes_too():
    """K = 10: rank 9 at the last layer."""
    net = PostNormResNet(5, 32, 1, 8, 10)
    g = activation_gradient(net, 1, randn(300, 5), torch.arange(300) % 10)
    assert measures(gradient_covariance(g)).rank.item() == 9
