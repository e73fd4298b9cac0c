"""The lift against products of numpy's Hermite polynomials and exact Gauss-Hermite quadrature; its identities."""

import itertools
import math

import numpy as np
import pytest
import torch
from numpy.polynomial import hermite_e

from labkit import compute
from labkit.recovery import hermite
from labkit.recovery.hermite import as_matrix, combine, from_matrix, inner, lift, lift_dim, multi_indices, project

F64 = torch.float64
DEGREES = (1, 2, 3, 4)
degrees = pytest.mark.parametrize("degree", DEGREES)


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=compute.generator(seed))


def quadrature(dim, points):
    """Nodes (points^dim, dim) and weights: exact for x ~ N(0, I) up to degree 2·points − 1 in each coordinate."""
    nodes, weights = hermite_e.hermegauss(points)
    grid = np.array(list(itertools.product(nodes, repeat=dim)))
    mass = np.array([math.prod(w) for w in itertools.product(weights / weights.sum(), repeat=dim)])
    return torch.tensor(grid), torch.tensor(mass)


@degrees
def test_lift_dim_counts_the_multi_indices(degree):
    for dim in (1, 2, 3, 7):
        assert lift_dim(dim, degree) == len(multi_indices(dim, degree)) == lift(randn(dim), degree).shape[-1]
    assert lift_dim(200, 2) == 200 * 201 // 2


@degrees
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_lift_is_a_product_of_hermite_polynomials(degree, dim):
    x = randn(4, dim)
    for column, coordinates in zip(lift(x, degree).mT, multi_indices(dim, degree).tolist(), strict=True):
        expected = np.ones(4)
        for j in set(coordinates):
            exponent = coordinates.count(j)
            values = hermite_e.hermeval(x[:, j].numpy(), [0] * exponent + [1])
            expected *= values / math.sqrt(math.factorial(exponent))
        np.testing.assert_allclose(column.numpy(), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dim", [2, 3, 4])
def test_lifts_are_orthonormal_centered_and_uncorrelated_across_degrees(dim):
    x, mass = quadrature(dim, 5)
    together = torch.cat([lift(x, degree) for degree in DEGREES], 1)  # (node, all features)
    gram = together.mT @ (mass[:, None] * together)
    assert (gram - torch.eye(len(gram), dtype=F64)).abs().max() <= 1e-12
    assert (mass @ together).abs().max() <= 1e-12


@degrees
def test_batches_dtype_and_gradient(degree):
    x = randn(2, 3, 4)
    together = lift(x, degree)
    assert together.shape == (2, 3, lift_dim(4, degree))
    torch.testing.assert_close(together[1, 2], lift(x[1, 2], degree))
    assert lift(x.float(), degree).dtype == torch.float32
    assert torch.autograd.gradcheck(lambda v: lift(v, degree), randn(2, 3).requires_grad_())


@degrees
def test_lift_into_writes_the_weighted_lift(degree):
    x, weight = randn(6, 5), randn(6, seed=1)
    out = torch.empty(lift_dim(5, degree), 6, dtype=F64)
    hermite.lift_into(out, x.mT.contiguous(), degree, weight)
    torch.testing.assert_close(out.mT, weight[:, None] * lift(x, degree))


@degrees
def test_inner_products_without_lifting(degree):
    x, other = randn(4, 5), randn(3, 5, seed=1)
    torch.testing.assert_close(inner(x, other, degree), lift(x, degree) @ lift(other, degree).mT)


def test_matrix_of_a_direction():
    x, direction = randn(6, 5), randn(3, 15, seed=1)
    matrix = as_matrix(direction)
    forms = torch.einsum("na,kab,nb->nk", x, matrix, x) - matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    torch.testing.assert_close(forms / math.sqrt(2), lift(x, 2) @ direction.mT)
    torch.testing.assert_close(matrix.norm(dim=(-2, -1)), direction.norm(dim=-1))
    torch.testing.assert_close(from_matrix(matrix), direction)


@degrees
@pytest.mark.parametrize("numbers", [1, 10**6])
def test_project_and_combine_are_products_with_the_lift(degree, numbers, monkeypatch):
    monkeypatch.setitem(hermite.CHUNK, "cpu", numbers)  # in chunks of the least size, and in one
    x, directions = randn(150, 4), randn(lift_dim(4, degree), 3, seed=1)
    weights = randn(150, 2, seed=2)
    torch.testing.assert_close(project(x, directions, degree), lift(x, degree) @ directions)
    torch.testing.assert_close(combine(x, weights, degree), lift(x, degree).mT @ weights)
    assert project(x, directions[:, :0], degree).shape == (150, 0)


REFUSED = {
    "degree must be 1, 2, 3 or 4, got 5": lambda: lift_dim(3, 5),
    "degree must be 1, 2, 3 or 4, got 0": lambda: lift(randn(2, 3), 0),
    "dim must be >= 1, got 0": lambda: lift_dim(0, 2),
    "dim must be a whole number, got 2.5": lambda: lift_dim(2.5, 2),
    r"x must be \(\.\.\., dim\), got a number": lambda: lift(torch.tensor(1.0), 2),
    r"x\[1\] = nan must be finite": lambda: lift(torch.tensor([0.0, math.nan]), 2),
    "x must be a floating tensor": lambda: lift(torch.tensor([1, 2]), 2),
    r"direction must be .* d\(d\+1\)/2\), the size of a lift of degree 2, got 4": lambda: as_matrix(randn(4)),
    r"matrix must be \(\.\.\., dim, dim\), got \(2, 3\)": lambda: from_matrix(randn(2, 3)),
    r"x must be \(n, dim\) and directions \(D, k\).*, q = 2, got x \(5, 3\), directions \(5, 1\)": lambda: project(
        randn(5, 3), randn(5, 1), 2
    ),
    r"x must be \(n, dim\) and weights \(n, k\), q = 2, got x \(5, 3\), weights \(4, 1\)": lambda: combine(
        randn(5, 3), randn(4, 1), 2
    ),
    r"x and other must be .*, got x \(5, 3\), other \(5, 2\)": lambda: inner(randn(5, 3), randn(5, 2), 2),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_bad_input_is_refused_in_a_sentence(sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        REFUSED[sentence]()
