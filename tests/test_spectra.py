"""The three readings of a spectrum: known spectra, white noise, rotations, batches, gradients, devices, bad input."""

import math

import pytest
import torch

from labkit import compute
from labkit.spectra import (
    data_effective_rank,
    data_rank,
    effective_rank,
    gram,
    krylov_eigenpairs,
    numerical_rank,
    participation,
    participation_ratio,
    top_eigenpairs,
)
from tests.stand_in import forgotten_device

F64 = torch.float64


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=compute.generator(seed))


def rotation(dim, seed=5):
    return torch.linalg.qr(randn(dim, dim, seed=seed)).Q


SPECTRA = {  # eigenvalues: participation, effective rank, numerical rank
    (1.0, 1.0, 1.0, 1.0): (4, 4, 4),
    (3.0, 0.0, 0.0): (1, 1, 1),
    (2.0, 2.0, 2.0, 0.0): (3, 3, 3),
    (4.0, 2.0, 2.0, 0.0): (64 / 24, 2, 3),
    (1.0, 0.5, 0.25, 0.125): (1.875**2 / 1.328125, 1.875, 4),
    (7.0,): (1, 1, 1),
}


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_known_spectra(spectrum):
    cov = torch.diag(torch.tensor(spectrum, dtype=F64))
    measured = participation(cov).item(), effective_rank(cov).item(), numerical_rank(cov).item()
    assert measured == SPECTRA[spectrum]  # exact: sums of powers of two
    turn = rotation(len(spectrum))
    turned = turn @ cov @ turn.mT
    measured = participation(turned).item(), effective_rank(turned).item(), numerical_rank(turned).item()
    assert measured == pytest.approx(SPECTRA[spectrum], rel=1e-12)


@pytest.mark.parametrize("n, dim", [(6, 4), (4, 6), (5, 5)])
@pytest.mark.parametrize("center", [True, False])
def test_data_and_their_covariance_agree(n, dim, center):
    """From data, of whatever shape, as from the covariance matrix written down the long way."""
    z = randn(n, dim) + 2
    shifted = z - z.mean(0) if center else z
    cov = sum(torch.outer(row, row) for row in shifted) / n
    small = gram(z, center)
    assert len(small) == min(n, dim)
    assert participation_ratio(z, center).item() == pytest.approx(participation(cov).item(), rel=1e-12)
    assert participation(small).item() == pytest.approx(participation(cov).item(), rel=1e-12)
    assert effective_rank(small).item() == pytest.approx(effective_rank(cov).item(), rel=1e-12)
    assert numerical_rank(small) == numerical_rank(cov) == min(n - center, dim)


def test_the_larger_matrix_is_never_formed():
    z = torch.zeros(3, 10**6)  # 4 TB as a covariance
    z[0, 0], z[1, 1], z[2, 2] = 1, 1, 1
    for data in (z, z.mT):
        assert participation_ratio(data, center=False).item() == pytest.approx(3, rel=1e-6)


@pytest.mark.parametrize("n", [50, 100, 200, 1000])
@pytest.mark.parametrize("dim", [20, 64])
def test_white_data(n, dim):
    """White Gaussian data: E tr C = dim and E tr C² = dim + dim²/n to leading order, so PR = n·dim/(n + dim)."""
    ratios = participation_ratio(randn(20, n, dim))
    expected = n * dim / (n + dim)
    assert (ratios.mean() - expected).abs() < 3 * ratios.std() / 20**0.5 + 0.02 * dim


def test_a_mean_fakes_compression():
    """ReLU features of 20 independent units: uncentered the common mean is one strong direction."""
    z = randn(2000, 20).relu()
    squared_mean, variance = 1 / (2 * math.pi), 0.5 - 1 / (2 * math.pi)  # of the ReLU of a standard Gaussian
    top, others = variance + 20 * squared_mean, variance  # eigenvalues of variance·1 + squared_mean·(all ones)
    uncentered = (top + 19 * others) ** 2 / (top**2 + 19 * others**2)
    assert participation_ratio(z, center=False).item() == pytest.approx(uncentered, rel=0.05)
    assert participation_ratio(z).item() > 19


def test_invariances():
    """Turned or shifted features, permuted samples; uncentered also turned samples."""
    z = randn(30, 8) @ torch.diag(torch.arange(1.0, 9.0, dtype=F64))
    centered, raw = participation_ratio(z).item(), participation_ratio(z, center=False).item()
    for same in (z @ rotation(8), z + 100, z[torch.randperm(30, generator=compute.generator(1))]):
        assert participation_ratio(same).item() == pytest.approx(centered, rel=1e-9)
    assert participation_ratio(rotation(30) @ z, center=False).item() == pytest.approx(raw, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-150, 1e-300, 1e150])
def test_size_does_not_matter(scale):
    z = randn(30, 8)
    assert participation_ratio(scale * z).item() == pytest.approx(participation_ratio(z).item(), rel=1e-12)


@pytest.mark.parametrize("dtype, scales", [(torch.float32, (1e-12, 1e12)), (F64, (1e-90, 1e-140, 1e80, 1e150))])
def test_nor_does_it_for_covariances(dtype, scales):
    z = randn(30, 8).to(dtype)
    for reading in (participation, effective_rank, numerical_rank):
        for scale in scales:
            assert reading(gram(z * scale)).item() == pytest.approx(reading(gram(z)).item(), rel=1e-5)


def test_order_of_the_three():
    cov = gram(randn(50, 12, 9))
    ranks = effective_rank(cov), participation(cov), numerical_rank(cov)
    assert (1 <= ranks[0]).all() and (ranks[0] <= ranks[1]).all() and (ranks[1] <= ranks[2]).all()


def test_rank_to_rounding_and_to_order():
    """Rank 3 of K = 4 classes: softmax gradients sum to zero; rtol counts only what is strong."""
    gradients = (randn(500, 4).softmax(1) - torch.eye(4, dtype=F64)[torch.arange(500) % 4]) @ randn(4, 16, seed=1)
    assert numerical_rank(gram(gradients)) == numerical_rank(gram(gradients.float())) == 3
    cov = torch.diag(torch.tensor([1.0, 0.1, 1e-3]))
    assert [numerical_rank(cov, rtol).item() for rtol in (None, 1e-2, 0.5)] == [3, 2, 1]
    assert [numerical_rank(100 * cov, rtol).item() for rtol in (None, 1e-2, 0.5)] == [3, 2, 1]
    assert numerical_rank(torch.zeros(2, 3, 3)).tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("shape", [(20_000, 8), (8, 20_000), (50, 50)])
@pytest.mark.parametrize("center", [True, False])
def test_rank_of_data(dtype, shape, center):
    for seed in range(5):
        z = (randn(shape[0], 2, seed=seed) @ randn(2, shape[1], seed=seed + 100)).to(dtype)
        assert data_rank(z, center) == data_rank(1e-25 * z, center) == data_rank(z + 5, center) - int(not center) == 2
    assert data_rank(torch.full(shape, 0.1, dtype=dtype)) == 0
    assert data_rank(torch.stack([z, z * 0]), center).tolist() == [2, 0]


def test_rank_of_data_does_not_square_the_condition_number():
    z = rotation(30)[:, :6] @ torch.diag(10.0 ** -torch.arange(0, 12, 2, dtype=F64)) @ rotation(6, 1)
    assert data_rank(z, center=False) == 6 and [data_rank(z, False, rtol).item() for rtol in (1e-3, 1e-9)] == [2, 5]


@pytest.mark.parametrize("shape", [(30, 8), (8, 30), (2, 5, 7)])
@pytest.mark.parametrize("center", [True, False])
def test_effective_rank_of_data_is_that_of_its_covariance(shape, center):
    z = randn(*shape) + 1
    torch.testing.assert_close(
        data_effective_rank(1e200 * z, center), effective_rank(gram(z, center)), rtol=1e-10, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_and_dtype(dtype):
    z = randn(2, 3, 10, 4).to(dtype)
    for measure in (participation_ratio, lambda v: participation(gram(v)), lambda v: effective_rank(gram(v))):
        together = measure(z)
        assert together.shape == (2, 3) and together.dtype == dtype
        torch.testing.assert_close(together[1, 2], measure(z[1, 2]))
    assert numerical_rank(gram(z)).tolist() == [[4] * 3] * 2


@pytest.mark.parametrize("shape", [(7, 3), (3, 7)])
def test_gradients(shape):
    z = randn(*shape).requires_grad_()
    for measure in (participation_ratio, lambda v: effective_rank(gram(v)), lambda v: participation(gram(v, False))):
        assert torch.autograd.gradcheck(measure, z)


def with_outliers(dim=300, seed=3):
    """Three eigenvalues beyond a bulk in [−1, 1], one of them far below: (matrix, its eigenvectors)."""
    turn = rotation(dim, seed)
    values = torch.cat([torch.tensor([-3.0, 1.5, 2.0, 2.1], dtype=F64), torch.linspace(-1, 1, dim - 4, dtype=F64)])
    return (turn * values) @ turn.mT, turn


def test_top_eigenpairs():
    matrix, turn = with_outliers(30)
    values, vectors = top_eigenpairs(torch.stack([matrix, 2 * matrix]), 3)
    torch.testing.assert_close(values, torch.tensor([[2.1, 2.0, 1.5], [4.2, 4.0, 3.0]], dtype=F64))
    assert ((vectors[0] * turn[:, [3, 2, 1]]).sum(0).abs() > 1 - 1e-12).all() and vectors.shape == (2, 30, 3)


@pytest.mark.parametrize("k, above", [(3, -math.inf), (32, 1.1), (2, 1.1), (32, 2.05)])
def test_krylov_eigenpairs_are_those_of_the_matrix(k, above):
    """The largest, not the largest in size; only those above a level; the other products are never more."""
    matrix, turn = with_outliers()
    found = krylov_eigenpairs(lambda v: matrix @ v, randn(300, 8), k, above)
    expected = torch.tensor([v for v in (2.1, 2.0, 1.5) if v > above][:k], dtype=F64)
    torch.testing.assert_close(found.eigenvalues, expected, rtol=1e-7, atol=0)
    assert ((found.vectors * turn[:, [3, 2, 1]][:, : len(expected)]).sum(0).abs() >= 0.99999).all()


def test_krylov_stops_when_nothing_is_above_or_the_space_is_full():
    matrix, _ = with_outliers()
    assert krylov_eigenpairs(lambda v: matrix @ v, randn(300, 8), 5, above=2.2).vectors.shape == (300, 0)
    small = torch.diag(torch.tensor([3.0, 2.0, 1.0, 1.0], dtype=F64))
    every = krylov_eigenpairs(lambda v: small @ v, randn(4, 3), 9)
    torch.testing.assert_close(every.eigenvalues, small.diagonal())


REFUSED = {
    r"z must be \(\.\.\., n, dim\) with rows as samples, and not empty, got \(3,\)": lambda: participation_ratio(
        randn(3)
    ),
    r"z must be \(\.\.\., n, dim\) .* got \(0, 3\)": lambda: gram(randn(0, 3)),
    r"z\[1, 0\] = nan must be finite": lambda: participation_ratio(torch.tensor([[1.0], [math.nan]])),
    r"variance of z must be > 0: all rows are equal, got 0": lambda: participation_ratio(torch.zeros(4, 3)),
    r"variance of z must be > 0: all rows are equal": lambda: participation_ratio(torch.full((7, 3), 0.1)),
    r"variance of z\[1\] = 0.0 must be > 0": lambda: participation_ratio(torch.stack([randn(4, 3), randn(4, 3) * 0])),
    r"cov must be \(\.\.\., dim, dim\) and not empty, got \(2, 3\)": lambda: participation(randn(2, 3)),
    r"cov\[0, 0\] = inf must be finite": lambda: effective_rank(torch.full((1, 1), math.inf)),
    r"cov - covᵀ\[0, 1\] = -1.0 must be 0: symmetric": lambda: numerical_rank(torch.tensor([[0, 0], [1, 0]]).double()),
    r"trace of cov must be > 0, got 0": lambda: effective_rank(torch.zeros(3, 3)),
    r"trace of cov\[1\] = -2.0 must be > 0": lambda: participation(torch.stack([torch.eye(2), -torch.eye(2)]).double()),
    r"least eigenvalue of cov must be >= 0: a covariance, got -1.0": lambda: effective_rank(
        torch.diag(torch.tensor([-1.0, 4.0])).double()
    ),
    r"k must lie in \[1, 3\], got 4": lambda: top_eigenpairs(torch.eye(3), 4),
    r"least eigenvalue of cov must be >= 0: a covariance, got -0.5": lambda: numerical_rank(
        torch.diag(torch.tensor([-1.0, 2.0])).double()
    ),
    r"variance of z must be > 0": lambda: data_effective_rank(torch.ones(3, 2)),
    r"rtol must lie in \[0, 1\), got -1": lambda: data_rank(torch.eye(2), rtol=-1),
    r"rtol must lie in \[0, 1\), got 1": lambda: numerical_rank(torch.eye(2), 1),
    r"z must be a floating tensor, got dtype torch.int64: use z.double": lambda: gram(torch.ones(3, 2).long()),
    r"z must be a floating tensor, got dtype torch.complex64$": lambda: gram(torch.ones(3, 2).cfloat()),
    r"z must be float32 or float64, got torch.float16: use z.float": lambda: participation_ratio(
        torch.ones(3, 2).half()
    ),
    r"cov must be float32 or float64, got torch.bfloat16": lambda: effective_rank(torch.eye(3).bfloat16()),
    r"largest entry of z has a square that does not fit into torch.float64: scale z, got": lambda: gram(
        randn(30, 8) * 1e-300
    ),
    r"largest entry of z\[1\] = .* has a square that does not fit into torch.float32": lambda: gram(
        torch.stack([torch.eye(3), 1e20 * torch.eye(3)])
    ),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_bad_input_is_refused_in_a_sentence(sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        REFUSED[sentence]()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_constant_is_one_whatever_centering_leaves_of_it(dtype):
    for n in range(2, 60):
        with pytest.raises(ValueError, match="all rows are equal"):
            participation_ratio(torch.full((n, 3), 1 / 7, dtype=dtype) * torch.tensor([1, 0.3, 1e-3], dtype=dtype))


CALLS = [
    gram,
    participation_ratio,
    data_effective_rank,
    data_rank,
    *(lambda z, f=f: f(gram(z)) for f in (participation, effective_rank, numerical_rank)),
    lambda z: top_eigenpairs(gram(z), 2)[0],
    lambda z: krylov_eigenpairs(lambda v: gram(z.flatten(0, -2)) @ v, gram(z.flatten(0, -2))[:, :2], 2)[0],
]


@pytest.mark.parametrize("function", CALLS)
@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_same_values_on_every_device(device, function, shape):
    z = randn(2, *shape)
    torch.testing.assert_close(device.run(function, z), function(z), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("function", CALLS)
def test_nothing_is_made_without_a_device(function):
    z = randn(5, 3)
    with forgotten_device():
        result = function(z)
    torch.testing.assert_close(result, function(z), rtol=0, atol=0)
