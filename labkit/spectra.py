"""How many dimensions a set of vectors fills: three readings of the spectrum of its covariance.

Each takes a covariance matrix, or, as `participation_ratio`, `data_effective_rank` and `data_rank`, data (rows =
samples), of which no covariance is formed that is larger than the data. Leading axes are batches; device and dtype
are kept.

==========================  =============================  ====================================================
``participation(cov)``      (Σλ)² / Σλ²                    smooth count: k equal eigenvalues give k
``effective_rank(cov)``     Σλ / λmax                      total variance in units of the strongest direction
``numerical_rank(cov)``     number of λ > rtol·λmax        directions that are there at all, to rounding
==========================  =============================  ====================================================

1 ≤ effective rank ≤ participation ≤ numerical rank, all equal when the nonzero λ are. Scaling or rotating the
data changes none of them.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.validate import as_tensors, refuse, require_finite


def gram(z: Tensor, center: bool = True) -> Tensor:
    """The smaller of the covariance ZᵀZ/n (dim, dim) and the Gram matrix ZZᵀ/n (n, n) of z (..., n, dim).

    ``center`` subtracts the mean row first; uncentered is the plain second moment. Both products have the same
    nonzero eigenvalues, hence the same participation, effective and numerical rank. Squaring costs half of the digits:
    eigenvalues below n·eps of the largest are rounding; the rank of data is counted by `data_rank`.

    Raises ValueError for fewer than two axes, an empty z, NaN or infinity, and for numbers whose squares under- or
    overflow; TypeError for integers, complex numbers and half precision.

    >>> gram(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    z = _admit_data(z)
    if center:
        z = _centered(z)
    n, dim = z.shape[-2:]
    size, limits = z.detach().abs().amax((-2, -1)), torch.finfo(z.dtype)
    fits = (size == 0) | ((size**2 > limits.tiny / limits.eps) & (size**2 * max(n, dim) < limits.max))
    refuse("largest entry of z", size, fits, f"has a square that does not fit into {z.dtype}: scale z")
    return (z @ z.mT if n < dim else z.mT @ z) / n


def participation_ratio(z: Tensor, center: bool = True) -> Tensor:
    """PR = (Σ s²)² / Σ s⁴ over the singular values s of the data z (..., n, dim), rows = samples → (...).

    Equal to (tr C)²/tr C² of the covariance C. Columns are centered by default, because the mean of ReLU features
    alone pulls the uncentered PR towards 1. From n samples it is biased down (n·dim/(n + dim) for white data): take
    n ≥ 10·PR, and the same n wherever PRs are compared.

    Raises ValueError, besides as `gram` does, when all rows are equal (centered) or zero: 0/0.

    >>> participation_ratio(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    tensor(2.)
    """
    return participation(gram(spread(z, center), center=False))


def participation(cov: Tensor) -> Tensor:
    """(tr Σ)² / ‖Σ‖_F² of covariances (..., dim, dim) → (...).

    Raises ValueError for matrices that are not square, symmetric and finite, or whose trace is not > 0.

    >>> participation(torch.diag(torch.tensor([2.0, 2.0, 2.0, 0.0])))
    tensor(3.)
    """
    cov = _scaled(_admit_positive(cov))
    return cov.diagonal(dim1=-2, dim2=-1).sum(-1) ** 2 / (cov**2).sum((-2, -1))


def effective_rank(cov: Tensor) -> Tensor:
    """r_eff = tr Σ / λmax of covariances (..., dim, dim) → (...).

    Among all unit q the largest noise qᵀΣq is tr Σ / r_eff: width averages noise away only where r_eff grows with
    it. (Not the exponential of the spectrum's entropy, which goes by the same name.)

    Raises ValueError as `participation` does, and for a negative eigenvalue.

    >>> effective_rank(torch.diag(torch.tensor([4.0, 2.0, 2.0, 0.0])))
    tensor(2.)
    """
    cov = _admit_positive(cov)
    return cov.diagonal(dim1=-2, dim2=-1).sum(-1) / _eigenvalues(cov)[..., -1]


def data_effective_rank(z: Tensor, center: bool = True) -> Tensor:
    """Σ s² / s₁² over the singular values s of the data z (..., n, dim) → (...): `effective_rank` of its covariance.

    Raises ValueError as `participation_ratio` does.

    >>> data_effective_rank(torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    tensor(1.2500)
    """
    s = torch.linalg.svdvals(spread(z, center))  # descending
    return (s / s[..., :1]).square().sum(-1)


def numerical_rank(cov: Tensor, rtol: float | None = None) -> Tensor:
    """Number of eigenvalues of (..., dim, dim) above rtol·λmax → (...), int64; 0 for a zero matrix.

    rtol: by default dim·eps of the dtype; else in [0, 1). Of a `gram` of n samples take at least n·eps. Raises
    ValueError for another rtol, for matrices that are not square, symmetric and finite, and for a negative eigenvalue.

    >>> numerical_rank(torch.ones(3, 3))
    tensor(1)
    """
    cov = _admit(cov)
    eigenvalues = _eigenvalues(_scaled(cov))
    return (eigenvalues > _rtol(rtol, cov) * eigenvalues[..., -1:]).sum(-1)


def data_rank(z: Tensor, center: bool = True, rtol: float | None = None) -> Tensor:
    """Number of singular values of the data z (..., n, dim) above rtol·s₁ → (...), int64; 0 when all rows are equal.

    No square is taken, so that directions down to max(n, dim)·eps of the strongest are seen: the default of rtol,
    plus what centering leaves of a large mean. Raises ValueError as `gram` does, and for rtol outside [0, 1).

    >>> z = torch.tensor([[1.0, 2.0, 1e-5], [2.0, 4.0, -1e-5], [3.0, 6.0, 1e-5]])
    >>> data_rank(z, center=False), numerical_rank(gram(z, center=False))
    (tensor(2), tensor(1))
    """
    z = _scaled(_admit_data(z))
    s = torch.linalg.svdvals(_centered(z) if center else z)
    left = torch.finfo(z.dtype).eps * math.sqrt(z.shape[-2] * z.shape[-1]) if center and rtol is None else 0.0
    return (s > _rtol(rtol, z) * s[..., :1] + left).sum(-1)


def _rtol(rtol: float | None, matrix: Tensor) -> float:
    if rtol is None:
        return max(matrix.shape[-2:]) * torch.finfo(matrix.dtype).eps
    if not 0 <= rtol < 1:
        raise ValueError(f"rtol must lie in [0, 1), got {rtol}")
    return rtol


def _eigenvalues(cov: Tensor) -> Tensor:
    """Ascending, after a check that none is negative beyond rounding."""
    eigenvalues = torch.linalg.eigvalsh(cov)
    least, most = eigenvalues[..., 0].detach(), eigenvalues[..., -1].detach().abs()
    slack = torch.finfo(cov.dtype).eps ** 0.5 * most
    refuse("least eigenvalue of cov", least, least >= -slack, "must be >= 0: a covariance")
    return eigenvalues


def _centered(z: Tensor) -> Tensor:
    return z - z.mean(-2, keepdim=True)


def spread(z: Tensor, center: bool = True, name: str = "z") -> Tensor:
    """Data (..., n, dim) scaled to a largest entry of 1 and centered, so that what is asked of it has an answer.

    Raises ValueError as `gram` does, and when all rows are equal to rounding; ``name`` is what the error calls it.

    >>> spread(torch.tensor([[2.0], [4.0]]))
    tensor([[-0.2500], [ 0.2500]])
    """
    z = _scaled(_admit_data(z, name))
    z = _centered(z) if center else z
    variance, rounding = z.square().sum((-2, -1)).detach() / z.shape[-2], 8 * torch.finfo(z.dtype).eps
    refuse(f"variance of {name}", variance, variance > z.shape[-1] * rounding**2, "must be > 0: all rows are equal")
    return z


class Eigenpairs(NamedTuple):
    """Eigenvalues in falling order (..., k) and their vectors as columns (..., dim, k)."""

    eigenvalues: Tensor
    vectors: Tensor


def top_eigenpairs(matrix: Tensor, k: int) -> Eigenpairs:
    """The k largest eigenvalues of symmetric (..., dim, dim), descending (..., k), and vectors (..., dim, k).

    Raises ValueError for matrices that are not square, symmetric and finite, and for k outside 1 ... dim.

    >>> top_eigenpairs(torch.diag(torch.tensor([1.0, 3.0, 2.0])), 2).eigenvalues
    tensor([3., 2.])
    """
    matrix = _admit(matrix)
    if not 1 <= k <= matrix.shape[-1]:
        raise ValueError(f"k must lie in [1, {matrix.shape[-1]}], got {k}")
    values, vectors = torch.linalg.eigh(matrix)
    return Eigenpairs(values[..., -k:].flip(-1), vectors[..., -k:].flip(-1))


def krylov_eigenpairs(
    apply: Callable[[Tensor], Tensor],
    start: Tensor,
    k: int,
    above: float | Tensor = -torch.inf,
    tolerance: float = 3e-5,
    max_blocks: int = 40,
) -> Eigenpairs:
    """The largest eigenvalues, at most k and only those > ``above``, of a symmetric matrix known by its products.

    Block Krylov: Rayleigh-Ritz in the span of start, A·start, ..., A^{m-1}·start, all kept orthonormal, until each
    residual ‖Av − λv‖ ≤ tolerance · largest |λ|; the error of an eigenvalue is its square over the gap. Ask for
    outliers only: eigenvalues inside a bulk converge slowly, and `max_blocks` ends the search without a word.

    Arguments
        apply: (dim, b) → A times it
        start: (dim, b), random; b ≥ the multiplicity of any eigenvalue sought

    >>> a, start = torch.diag(torch.arange(1.0, 41.0).double() ** 2), torch.eye(40).double()[:, :4] + 0.1
    >>> krylov_eigenpairs(lambda v: a @ v, start, k=2).eigenvalues
    tensor([1600., 1521.], dtype=torch.float64)
    """
    dim, width = start.shape
    k, before = min(k, dim), -1
    basis = torch.linalg.qr(start).Q
    image = block = apply(basis)
    for _ in range(max_blocks):
        projected = basis.mT @ image
        values, small = (part.flip(-1) for part in torch.linalg.eigh((projected + projected.mT) / 2))
        wanted = int((values[:k] > above).sum())
        vectors = basis @ small[:, :wanted]
        residual = (image @ small[:, :wanted] - vectors * values[:wanted]).norm(dim=0)
        converged = (residual <= tolerance * values.abs().amax()).all() and wanted == before
        # without any outlier yet: one may still show up
        if basis.shape[1] == dim or (converged and (wanted or basis.shape[1] >= 8 * width)):
            break
        before = wanted
        for _ in range(2):  # twice is enough for orthonormality to rounding
            block = torch.linalg.qr(block - basis @ (basis.mT @ block)).Q
        block = block[:, : dim - basis.shape[1]]
        basis = torch.cat([basis, block], 1)
        block = apply(block)
        image = torch.cat([image, block], 1)
    return Eigenpairs(values[:wanted], vectors)


def _admit_data(z: Tensor, name: str = "z") -> Tensor:
    (z,) = as_tensors(**{name: z})
    _refuse_half(**{name: z})
    if z.dim() < 2 or 0 in z.shape:
        raise ValueError(f"{name} must be (..., n, dim) with rows as samples, and not empty, got {tuple(z.shape)}")
    require_finite(**{name: z})
    return z


def _admit(cov: Tensor) -> Tensor:
    (cov,) = as_tensors(cov=cov)
    _refuse_half(cov=cov)
    if cov.dim() < 2 or cov.shape[-1] != cov.shape[-2] or 0 in cov.shape:
        raise ValueError(f"cov must be (..., dim, dim) and not empty, got {tuple(cov.shape)}")
    require_finite(cov=cov)
    slack = torch.finfo(cov.dtype).eps ** 0.5 * cov.abs().amax((-2, -1), keepdim=True)
    refuse("cov - covᵀ", (cov - cov.mT).detach(), (cov - cov.mT).abs() <= slack, "must be 0: symmetric")
    return cov


def _admit_positive(cov: Tensor) -> Tensor:
    cov = _admit(cov)
    trace = cov.diagonal(dim1=-2, dim2=-1).sum(-1).detach()
    refuse("trace of cov", trace, trace > 0, "must be > 0")
    return cov


def _refuse_half(**named: Tensor) -> None:
    for name, value in named.items():
        if value.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{name} must be float32 or float64, got {value.dtype}: use {name}.float()")


def _scaled(matrix: Tensor) -> Tensor:
    """The matrix with 1 as its largest entry: squares of tiny or huge numbers would under- or overflow."""
    size = matrix.detach().abs().amax((-2, -1), keepdim=True)
    return matrix / torch.where(size > 0, size, 1)
