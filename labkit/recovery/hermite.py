"""The Hermite lift: every product of Hermite polynomials of total degree q, orthonormal under x ~ N(0, I).

H_α(x) = Π_j He_{α_j}(x_j)/√α_j!, |α| = q: D = C(d+q−1, q) features, so D ≈ d^q/q!. Multi-indices come in
lexicographic order (`multi_indices`). In that order the features of the coordinates after a are the *last* ones of
each lift, so a lift is made of multiples of ends of lower lifts: no index is looked up, each feature costs one product.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from labkit.validate import as_tensors, require_finite, require_whole

DEGREES = (1, 2, 3, 4)
CHUNK = {"cpu": 600_000, "cuda": 100_000_000}  # lifted numbers at a time: what stays in cache, what bounds memory


def lift_dim(dim: int, degree: int) -> int:
    """D = C(d+q−1, q), the number of features of total degree q in d coordinates.

    Raises ValueError for dim < 1 or a degree other than 1, 2, 3, 4, TypeError for a dim that is not whole.

    >>> lift_dim(34, 2)
    595
    """
    if degree not in DEGREES:
        raise ValueError(f"degree must be 1, 2, 3 or 4, got {degree}")
    require_whole(1, dim=dim)
    return math.comb(dim + degree - 1, degree)


def multi_indices(dim: int, degree: int) -> Tensor:
    """The coordinates of each feature, (D, q), sorted, repeated as often as the exponent says; on the CPU.

    >>> multi_indices(2, 3).tolist()
    [[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1]]
    """
    lift_dim(dim, degree)
    return torch.combinations(torch.arange(dim, device="cpu"), degree, with_replacement=True)


def lift(x: Tensor, degree: int) -> Tensor:
    """H_q of x (..., dim) → (..., D): E H_α H_β = δ_αβ and E H_α = 0 under x ~ N(0, I). Differentiable.

    q = 2: (x_i² − 1)/√2 and x_i x_j (i < j). Raises ValueError for a degree other than 1, 2, 3, 4 and for NaN.

    >>> lift(torch.tensor([2.0, 3.0]), degree=2)  # (4 − 1)/√2, 2·3, (9 − 1)/√2
    tensor([2.1213, 6.0000, 5.6569])
    """
    (x,) = as_tensors(x=x)
    if x.dim() < 1:
        raise ValueError("x must be (..., dim), got a number")
    lift_dim(x.shape[-1], degree)
    require_finite(x=x)
    rows = x.movedim(-1, 0)  # (dim, ...): features first
    return torch.cat([left * right for left, right in _blocks(rows, degree)]).movedim(0, -1)


def lift_into(out: Tensor, x: Tensor, degree: int, weight: Tensor | None = None) -> None:
    """Write weight · H_q into ``out`` (D, n) for x given feature-major (dim, n): `lift` without its temporaries."""
    start = 0
    for left, right in _blocks(x, degree, weight):
        torch.mul(left, right, out=out[start : start + len(right)])
        start += len(right)


def _blocks(x: Tensor, degree: int, weight: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """The lift of x (dim, ...) in order, as products left (...) · right (features, ...).

    The features that begin with j times coordinate a are He_j(x_a)/√j! times the features of degree q − j of the
    coordinates after a. The loop over coordinates makes long contiguous products: 2–4 times faster than looking up.
    """
    dim, one = len(x), torch.ones_like(x[:1])
    hermite = [one.expand_as(x), x]  # He_j/√j! of every coordinate
    for j in range(2, degree + 1):
        hermite.append((x * hermite[-1] - math.sqrt(j - 1) * hermite[-2]) / math.sqrt(j))
    lower = [one, x]  # the lifts of degree 0, 1, ..., q − 1
    for r in range(2, degree):
        lower.append(torch.cat([left * right for left, right in _blocks(x, r)]))
    first = hermite if weight is None else [h * weight for h in hermite]
    for a in range(dim):
        for j in range(degree, 0, -1):
            rest = math.comb(dim - a - 1 + degree - j - 1, degree - j) if j < degree else 1
            if rest:
                yield first[j][a], lower[degree - j][-rest:]


def inner(x: Tensor, other: Tensor, degree: int) -> Tensor:
    """⟨H_q(x), H_q(x′)⟩ without lifting: x (..., n, dim), x′ (..., m, dim) → (..., n, m).

    The Mehler kernel generates them: Σ_q ρ^q K_q = (1−ρ²)^{−d/2} exp((ρc − ρ²s)/(1−ρ²)), c = x·x′,
    s = (‖x‖² + ‖x′‖²)/2. Its logarithm has the coefficients g_m = c (m odd), d/m − s (m even), so
    q K_q = Σ_m m g_m K_{q−m}. q = 2: ((x·x′)² − ‖x‖² − ‖x′‖² + d)/2.

    >>> x = torch.tensor([[2.0, 3.0]])
    >>> inner(x, x, degree=2), (lift(x, 2) ** 2).sum()
    (tensor([[72.5000]]), tensor(72.5000))
    """
    x, other = as_tensors(x=x, other=other)
    if x.dim() < 2 or other.dim() < 2 or x.shape[-1] != other.shape[-1]:
        shapes = f"x {tuple(x.shape)}, other {tuple(other.shape)}"
        raise ValueError(f"x and other must be (..., n, dim) and (..., m, dim), got {shapes}")
    dim = x.shape[-1]
    lift_dim(dim, degree)
    cross = x @ other.mT
    size = ((x**2).sum(-1)[..., :, None] + (other**2).sum(-1)[..., None, :]) / 2
    kernels = [torch.ones_like(cross)]
    for q in range(1, degree + 1):
        terms = (m * (cross if m % 2 else dim / m - size) * kernels[q - m] for m in range(1, q + 1))
        kernels.append(sum(terms) / q)
    return kernels[degree]


def as_matrix(direction: Tensor) -> Tensor:
    """The symmetric M behind directions (..., D) of degree 2: ⟨v, H_2(x)⟩ = (xᵀMx − tr M)/√2, ‖M‖_F = ‖v‖.

    >>> as_matrix(torch.tensor([1.0, 2.0, 3.0]))
    tensor([[1.0000, 1.4142],
            [1.4142, 3.0000]])
    """
    (direction,) = as_tensors(direction=direction)
    size = direction.shape[-1] if direction.dim() else 0
    dim = (math.isqrt(8 * size + 1) - 1) // 2
    if size == 0 or dim * (dim + 1) // 2 != size:
        raise ValueError(f"direction must be (..., d(d+1)/2), the size of a lift of degree 2, got {size}")
    i, j = torch.triu_indices(dim, dim, device=direction.device)
    matrix = direction.new_zeros(*direction.shape[:-1], dim, dim)
    scaled = torch.where(i == j, direction, direction / math.sqrt(2))
    matrix[..., i, j] = scaled
    matrix[..., j, i] = scaled
    return matrix


def from_matrix(matrix: Tensor) -> Tensor:
    """The inverse of `as_matrix`: symmetric (..., dim, dim) → (..., D).

    >>> from_matrix(as_matrix(torch.tensor([1.0, 2.0, 3.0])))
    tensor([1., 2., 3.])
    """
    (matrix,) = as_tensors(matrix=matrix)
    if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(f"matrix must be (..., dim, dim), got {tuple(matrix.shape)}")
    i, j = torch.triu_indices(*matrix.shape[-2:], device=matrix.device)
    return torch.where(i == j, matrix[..., i, j], (matrix[..., i, j] + matrix[..., j, i]) / math.sqrt(2))


def project(x: Tensor, directions: Tensor, degree: int) -> Tensor:
    """H V: ⟨v_k, H_q(x)⟩ for x (n, dim) and directions V (D, k) → (n, k). The lift of all x is never held.

    Degree 2 goes through the matrices, O(n d² k) operations and O(d k) numbers a row; others lift chunk by chunk.

    >>> project(torch.tensor([[2.0, 3.0]]), torch.eye(3), degree=2)
    tensor([[2.1213, 6.0000, 5.6569]])
    """
    x, directions = as_tensors(x=x, directions=directions)
    _admit_rows(x, degree, directions=directions)
    k = directions.shape[1]
    if degree == 1:
        return x @ directions
    out = x.new_empty(len(x), k)
    if degree == 2:
        matrices = as_matrix(directions.mT)
        wide = matrices.movedim(0, 1).flatten(1)  # (dim, k·dim)
        trace = matrices.diagonal(dim1=-2, dim2=-1).sum(-1)
    for rows in chunks(x, k * x.shape[1] if degree == 2 else len(directions)):
        part = x[rows]
        if degree == 2:
            forms = ((part @ wide).view(len(part), k, x.shape[1]) * part[:, None, :]).sum(-1)
            out[rows] = (forms - trace) / math.sqrt(2)
        else:
            out[rows] = lift(part, degree) @ directions
    return out


def combine(x: Tensor, weights: Tensor, degree: int) -> Tensor:
    """HᵀC, the transpose of `project`: Σ_μ c_μk H_q(x_μ) for x (n, dim) and weights C (n, k) → (D, k).

    >>> combine(torch.tensor([[2.0, 3.0]]), torch.tensor([[1.0, 0.5]]), degree=2).mT
    tensor([[2.1213, 6.0000, 5.6569],
            [1.0607, 3.0000, 2.8284]])
    """
    x, weights = as_tensors(x=x, weights=weights)
    _admit_rows(x, degree, weights=weights)
    k, dim = weights.shape[1], x.shape[1]
    if degree == 1:
        return x.mT @ weights
    out = x.new_zeros((k * dim, dim) if degree == 2 else (lift_dim(dim, degree), k))
    for rows in chunks(x, k * dim if degree == 2 else len(out)):
        part, some = x[rows], weights[rows]
        if degree == 2:
            out.addmm_((some[:, :, None] * part[:, None, :]).flatten(1).mT, part)  # Σ c x xᵀ
        else:
            out.addmm_(lift(part, degree).mT, some)
    if degree != 2:
        return out
    matrices = out.view(k, dim, dim)
    matrices.diagonal(dim1=-2, dim2=-1).sub_(weights.sum(0)[:, None])
    return from_matrix(matrices).mT / math.sqrt(2)


def _admit_rows(x: Tensor, degree: int, **other: Tensor) -> None:
    """x (n, dim) with directions (D, k) or weights (n, k)."""
    ((name, value),) = other.items()
    want = "(D, k), D = C(dim+q-1, q)" if name == "directions" else "(n, k)"
    shapes = f"x {tuple(x.shape)}, {name} {tuple(value.shape)}"
    good = x.dim() == value.dim() == 2
    if not good or len(value) != (lift_dim(x.shape[1], degree) if name == "directions" else len(x)):
        raise ValueError(f"x must be (n, dim) and {name} {want}, q = {degree}, got {shapes}")
    require_finite(x=x)


def chunks(x: Tensor, width: int) -> Iterator[slice]:
    """Slices of the rows of x such that rows × width is `CHUNK` numbers of its device, and at least 64 rows."""
    size = max(64, CHUNK.get(x.device.type, CHUNK["cuda"]) // max(width, 1))
    return (slice(start, start + size) for start in range(0, len(x), size))
