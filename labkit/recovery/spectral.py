"""Layer by layer: find the hidden directions by an eigenvalue problem, regress on them, read out.

    layer 1   Ĉ = (1/n) Σ t (HHᵀ − I), t the cleaned labels: the eigenvectors beyond the edge are the features
    layer 2   ĥ_k = ⟨v_k, H(x)⟩ on fresh samples; û = least squares of y on 1 and (ĥ_k² − 1)/√2
    readout   a polynomial of û of degree ≤ 5, held constant outside the range it has seen

The algorithm is that of arXiv 2605.14567 (layer-wise spectral estimation). The cleaning before it, which matters at
the d of a laptop and not for d → ∞, is ours: `radial_normalize`, `low_degree_residual`, `clip_labels`, `drop_trace`.
Ĉ is summed chunk by chunk, so the memory does not grow with n.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit import compute
from labkit.recovery.hermite import chunks, combine, from_matrix, lift_dim, lift_into, project
from labkit.recovery.theory import bulk_edge
from labkit.spectra import krylov_eigenpairs, top_eigenpairs
from labkit.validate import as_tensors, refuse, require_finite, require_whole

METHODS = ("auto", "dense", "matrix_free")
MOST_FEATURES = 32  # that `fit` keeps by itself
BLOCK = 8  # vectors that the matrix-free method multiplies at a time
PRODUCTS = 160  # of a vector, that it is assumed to need: 20 blocks
DENSE_LIMIT = {"cpu": 12_000, "cuda": 40_000}  # largest D of a dense Ĉ: 3·D²·8 bytes are 3.5 and 38 GB
FLUSH = 8  # chunks summed in the dtype of x before they go to the float64 total
RESIDUAL_STEPS, RESIDUAL_TOLERANCE = 60, 1e-6  # of conjugate gradients


# ---- cleaning


def radial_normalize(x: Tensor) -> Tensor:
    """x √d/‖x‖ for x (n, dim): the radius is common to all features of even degree and drowns them at small d.

    >>> radial_normalize(torch.tensor([[3.0, 4.0]]))
    tensor([[0.8485, 1.1314]])
    """
    (x,) = _admit_inputs(x)
    norm = x.norm(dim=1, keepdim=True)
    refuse("norm of x", norm[:, 0], norm[:, 0] > 0, "must be > 0: a zero row has no direction")
    return x * (math.sqrt(x.shape[1]) / norm)


def clip_labels(t: Tensor, at: float = 3.0) -> Tensor:
    """t limited to ± ``at`` · √(mean t²): a single large label makes an outlier of its own.

    >>> clip_labels(torch.tensor([1.0, -1.0, 1.0, 9.0]), at=1.0)
    tensor([ 1.0000, -1.0000,  1.0000,  4.5826])
    """
    (t,) = as_tensors(t=t)
    if not 0 < at < math.inf:
        raise ValueError(f"at must be positive and finite, got {at}")
    require_finite(t=t)
    limit = at * t.square().mean().sqrt()
    return t.clamp(-limit, limit)


def low_degree_residual(x: Tensor, y: Tensor, ridge: float | None = None) -> Tensor:
    """y (n,) minus its ridge regression on 1, z, z², z³, z = (‖x‖²/d − 1)√(d/2), and on H_2(x √d/‖x‖).

    The part of degree 2 of the label makes a bulk of its own in Ĉ (`theory.population_moment`) and holds no feature
    of degree q ≥ 2. ``ridge``, by default D/n, acts on H_2 only. By conjugate gradients with d × d products: 10 to
    20 of them, much less than forming H_2.
    """
    x, y = _admit_inputs(x, y)
    n, dim = x.shape
    if n <= 4:
        raise ValueError(f"n must be > 4, the terms fitted without ridge, got {n}")
    size = lift_dim(dim, 2)
    ridge = size / n if ridge is None else ridge
    if not 0 < ridge < math.inf:
        raise ValueError(f"ridge must be positive and finite, got {ridge}")
    z = ((x**2).sum(1) / dim - 1) * math.sqrt(dim / 2)
    wide = compute.dtype(x.device)
    radial = _orthonormal(torch.stack([z**j for j in range(4)], 1).to(wide))
    unit = radial_normalize(x)

    def without_radial(v):
        return v - radial @ (radial.mT @ v)

    def normal(beta):  # (HᵀPH/n + ridge) β
        seen = without_radial(project(unit, beta[:, None].to(x.dtype), 2)[:, 0].to(wide))
        return combine(unit, seen[:, None].to(x.dtype), 2)[:, 0].to(wide) / n + ridge * beta

    rest = without_radial(y.to(wide))
    target = combine(unit, rest[:, None].to(x.dtype), 2)[:, 0].to(wide) / n
    beta = _conjugate_gradients(normal, target)
    explained = project(unit, beta[:, None].to(x.dtype), 2)[:, 0].to(wide)
    return without_radial(y.to(wide) - explained).to(y.dtype)


def drop_trace(moment: Tensor) -> Tensor:
    """PĈP for Ĉ (D, D) of degree 2, P the projection off the direction that sees ‖x‖² only.

    >>> drop_trace(torch.eye(3)).diagonal()  # that direction is (1, 0, 1)/√2
    tensor([0.5000, 1.0000, 0.5000])
    """
    (moment,) = as_tensors(moment=moment)
    trace = _trace_direction(moment)
    half = moment - trace * (trace.mT @ moment)
    return half - (half @ trace) * trace.mT


def _trace_direction(like: Tensor) -> Tensor:
    """(D, 1), unit norm, for ``like`` (D, ...)."""
    dim = (math.isqrt(8 * len(like) + 1) - 1) // 2
    one = torch.eye(dim, dtype=like.dtype, device=like.device)
    return from_matrix(one)[:, None] / math.sqrt(dim)


def _conjugate_gradients(apply: Callable[[Tensor], Tensor], target: Tensor) -> Tensor:
    """The solution of a symmetric positive definite system to `RESIDUAL_TOLERANCE`."""
    solution, rest = torch.zeros_like(target), target
    direction, square = rest, rest @ rest
    limit = RESIDUAL_TOLERANCE**2 * square
    for _ in range(RESIDUAL_STEPS):
        if square <= limit:
            break
        image = apply(direction)
        step = square / (direction @ image)
        solution, rest = solution + step * direction, rest - step * image
        square, before = rest @ rest, square
        direction = rest + square / before * direction
    return solution


# ---- layer 1


def moment_matrix(x: Tensor, t: Tensor, degree: int) -> Tensor:
    """Ĉ = (1/n) Σ_μ t_μ (H_μ H_μᵀ − I), (D, D), of x (n, dim), t (n,), streamed: at most 3·D² numbers and a chunk.

    Products in the dtype of x, sums in float64 where the device has it. On the CPU by ``syrk`` of BLAS on
    √|t|·H, t > 0 and t < 0 apart, which takes half the operations of a product (degree ≥ 2).

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> moment_matrix(x, torch.tensor([1.0, -1.0]), degree=1)
    tensor([[ 0.5000,  0.0000],
            [ 0.0000, -2.0000]], dtype=torch.float64)
    """
    x, t = _admit_inputs(x, t=t)
    size = lift_dim(x.shape[1], degree)
    by_syrk = x.device.type == "cpu" and degree > 1  # without a lift, turning x costs more than it saves
    total = (_sum_by_syrk if by_syrk else _sum_by_products)(x, t, degree, size)
    total /= len(x)
    total.diagonal().sub_(t.to(total.dtype).mean())
    return total


def _sum_by_products(x: Tensor, t: Tensor, degree: int, size: int) -> Tensor:
    total = torch.zeros(size, size, dtype=compute.dtype(x.device), device=x.device)
    part = total if total.dtype == x.dtype else torch.zeros_like(total, dtype=x.dtype)
    buffers = None
    for number, rows in enumerate(chunks(x, size), 1):
        if degree == 1:
            part.addmm_(x[rows].mT, t[rows, None] * x[rows])
        else:
            some = x[rows].mT.contiguous()
            if buffers is None or some.shape[1] < buffers.shape[2]:
                buffers = x.new_empty(2, size, some.shape[1])
            lift_into(buffers[0], some, degree)
            torch.mul(buffers[0], t[rows], out=buffers[1])
            part.addmm_(buffers[0], buffers[1].mT)
        if part is not total and (number % FLUSH == 0 or rows.stop >= len(x)):
            total += part
            part.zero_()
    return total.add_(total.mT.clone()).div_(2)  # a product is symmetric to rounding only


def _sum_by_syrk(x: Tensor, t: Tensor, degree: int, size: int) -> Tensor:
    from scipy.linalg import blas

    syrk = blas.dsyrk if x.dtype == torch.float64 else blas.ssyrk
    total = torch.zeros(size, size, dtype=torch.float64, device="cpu")
    part = total if x.dtype == torch.float64 else torch.zeros_like(total, dtype=x.dtype)
    buffer = None
    for number, rows in enumerate(chunks(x, size // 4), 1):  # longer ones: syrk wants them, and each sign fills half
        some, label = x[rows], t[rows]
        if buffer is None:
            buffer = x.new_empty(size * len(some))
        for sign in (1.0, -1.0):
            mine = (sign * label) > 0
            count = int(mine.sum())
            if not count:
                continue
            lifted = buffer[: size * count].view(size, count)
            lift_into(lifted, some[mine].mT.contiguous(), degree, label[mine].abs().sqrt())
            # Fortran sees the transposes of our row-major arrays: its upper triangle is our lower one
            syrk(sign, lifted.numpy().T, beta=1.0, c=part.numpy().T, trans=1, overwrite_c=1)
        if part is not total and (number % FLUSH == 0 or rows.stop >= len(x)):
            total += part
            part.zero_()
    del part, buffer
    total.tril_()
    total += total.tril(-1).mT
    return total


def moment_operator(x: Tensor, t: Tensor, degree: int) -> Callable[[Tensor], Tensor]:
    """V (D, b) → Ĉ V without Ĉ. For degree 2 by d × d matrices, O(chunk · d · b) numbers at a time.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> moment_operator(x, torch.tensor([1.0, -1.0]), degree=1)(torch.eye(2))
    tensor([[ 0.5000,  0.0000],
            [ 0.0000, -2.0000]])
    """
    x, t = _admit_inputs(x, t=t)
    size, mean = lift_dim(x.shape[1], degree), t.mean()

    def apply(v):
        narrow, total = v.to(x.dtype), torch.zeros_like(v)
        for rows in chunks(x, v.shape[1] * x.shape[1] if degree <= 2 else size):
            total += combine(x[rows], t[rows, None] * project(x[rows], narrow, degree), degree)
        return total / len(x) - mean * v

    return apply


def prefers_dense(n: int, dim: int, degree: int, device: str = "cpu") -> bool:
    """Whether forming Ĉ is the faster way, by counting operations; never when 3·D² numbers do not fit.

    Dense: n D² (CPU, syrk) or 2 n D², and 10 D³ for the eigenvalues. Matrix-free: `PRODUCTS` of them, 4 n d² each
    for degree 2, else 4 n D.

    >>> prefers_dense(100_000, 24, 2), prefers_dense(100_000, 100, 2)
    (True, False)
    """
    size = lift_dim(dim, degree)
    dense = (1 if device == "cpu" else 2) * n * size**2 + 10 * size**3
    free = 4 * n * PRODUCTS * (dim**2 if degree == 2 else size)
    return size <= DENSE_LIMIT.get(device, DENSE_LIMIT["cuda"]) and dense <= free


def eigenpairs(x: Tensor, t: Tensor, degree: int, k: int, method: str = "auto") -> tuple[Tensor, Tensor]:
    """The k largest eigenvalues of Ĉ, falling (k,), and their vectors (D, k).

    ``method``: "dense", "matrix_free" (block Krylov), or "auto", the faster by `prefers_dense`. Ask for outliers
    only: an eigenvalue at the edge of the bulk converges slowly.
    """
    x, t = _admit_inputs(x, t=t)
    size = lift_dim(x.shape[1], degree)
    if not 1 <= k <= size:
        raise ValueError(f"k must lie in [1, {size}], got {k}")
    if _dense(method, x, degree):
        return top_eigenpairs(moment_matrix(x, t, degree), k)
    return krylov_eigenpairs(moment_operator(x, t, degree), _start(x, size, k), k)


def _dense(method: str, x: Tensor, degree: int) -> bool:
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    return method == "dense" or (method == "auto" and prefers_dense(*x.shape, degree, x.device.type))


def _start(x: Tensor, size: int, k: int = BLOCK) -> Tensor:
    """The block to begin with, always the same: a fit is a function of its data."""
    drawn = torch.randn(
        size, min(max(k, BLOCK), size), dtype=torch.float64, generator=compute.generator(0), device="cpu"
    )
    return drawn.to(x.device, compute.dtype(x.device))


# ---- all three layers


@dataclass(frozen=True)
class Recovery:
    """What `fit` found."""

    degree: int
    directions: Tensor  # (D, K), orthonormal, by falling eigenvalue
    eigenvalues: Tensor  # (K,)
    edge: Tensor  # (), the end of the bulk, from the labels alone
    spectrum: Tensor | None  # (D,), all eigenvalues, rising; None when they were not computed
    coefficients: Tensor  # (K + 1,), of the latent regression, the constant first
    span: Tensor  # (2,), the û that the readout has seen
    readout: Tensor  # (r + 1,), polynomial in û mapped to [−1, 1]

    def features(self, x: Tensor) -> Tensor:
        """ĥ of x (n, dim) → (n, K)."""
        return project(x, self.directions.to(x.dtype), self.degree)

    def latent(self, x: Tensor) -> Tensor:
        """û of x (n, dim) → (n,)."""
        return _squares(self.features(x)) @ self.coefficients.to(x.dtype)

    def read(self, latent: Tensor) -> Tensor:
        """The readout alone: the label at û (n,) → (n,)."""
        return _powers(latent, self.span.to(latent.dtype), len(self.readout)) @ self.readout.to(latent.dtype)

    def predict(self, x: Tensor) -> Tensor:
        """The label of x (n, dim) → (n,)."""
        return self.read(self.latent(x))


def fit(
    x: Tensor,
    y: Tensor,
    degree: int,
    n_features: int | None = None,
    clip: float | None = 3.0,
    hygiene: bool = True,
    holdout: float = 0.2,
    readout_degree: int = 5,
    method: str = "auto",
) -> Recovery:
    """Learn y = g(u(x)) from independent rows x (n, dim), y (n,): the first 80 % give directions, the rest fit them.

    Arguments
        degree: q of the lift, 1 … 4
        n_features: K; None keeps what lies beyond the edge (`theory.bulk_edge` of the cleaned labels), at most 32.
            With hygiene below n/D = 10 say how many: there the residual overfits, and eigenvalues sink below the edge
        clip: where `clip_labels` cuts; None warns when labels are heavy-tailed
        hygiene: for degree ≥ 2, layer 1 sees `radial_normalize` x, `low_degree_residual` y, and (degree 2) a
            `drop_trace` Ĉ. Degree 1 needs none of it
        holdout: share of fresh samples for layer 2; on its own samples an eigenvector that is noise looks useful
        readout_degree: the highest tried, ≥ 1; the degree of least leave-one-out error is taken
        method: of `eigenpairs`

    Raises ValueError for arguments out of range, NaN, constant labels, fewer samples than features.

    >>> from labkit.recovery.teacher import HierarchicalTeacher
    >>> teacher = HierarchicalTeacher(60, 1, 2, 1.0, "id", 0.0, compute.generator(0))
    >>> found = fit(*teacher.sample(20_000, compute.generator(1)), degree=1)
    >>> overlaps(found.directions, teacher.directions)[0]
    tensor([0.99, 0.98], dtype=torch.float64)
    """
    x, y = _admit_inputs(x, y=y)
    n, size = len(x), lift_dim(x.shape[1], degree)
    if not 0 < holdout < 1:
        raise ValueError(f"holdout must lie in (0, 1), got {holdout}")
    if n_features is not None and not 1 <= n_features <= size:
        raise ValueError(f"n_features must lie in [1, {size}], the dimension of the lift, got {n_features}")
    require_whole(1, readout_degree=readout_degree)
    fresh = round(holdout * n)
    least = 2 + (n_features or 1) + readout_degree
    if min(fresh, n - fresh) < least:
        got = f"n = {n} with holdout = {holdout}"
        raise ValueError(f"x must have more samples than features in each part (>= {least}), got {got}")
    if y.min() == y.max():
        raise ValueError(f"y must not be constant: labels that are all {y[0].item():g} tell nothing about x")

    first, t = x[: n - fresh], y[: n - fresh]
    clean = hygiene and degree >= 2
    if clean:
        t = low_degree_residual(first, t)
        first = radial_normalize(first)
    t = _without_clip(t, len(t) / size) if clip is None else clip_labels(t, clip)
    edge = bulk_edge(t.to(compute.dtype(x.device)), len(t) / size)
    k, above = (MOST_FEATURES, edge) if n_features is None else (n_features, -math.inf)
    spectrum = None
    if _dense(method, first, degree):
        moment = moment_matrix(first, t, degree)
        spectrum, vectors = torch.linalg.eigh(drop_trace(moment) if clean and degree == 2 else moment)
        k = min(k, int((spectrum > above).sum()))
        values, directions = spectrum[size - k :].flip(0), vectors[:, size - k :].flip(1)
    else:
        apply, start = moment_operator(first, t, degree), _start(x, size)
        if clean and degree == 2:
            apply = _off_trace(apply, _trace_direction(start))
        values, directions = krylov_eigenpairs(apply, start, k, above)

    return _read_out((degree, directions, values, edge, spectrum), x[n - fresh :], y[n - fresh :], readout_degree)


def read_out(found: Recovery, x: Tensor, y: Tensor, n_features: int, readout_degree: int = 5) -> Recovery:
    """Layers 2 and 3 anew: with the first ``n_features`` directions, at most all, and on x (n, dim), y (n,).

    The samples must be fresh, not those that gave the directions (the last 20 % of `fit`). Raises ValueError for
    arguments out of range.

    >>> from labkit.recovery.teacher import HierarchicalTeacher
    >>> teacher = HierarchicalTeacher(60, 1, 2, 1.0, "id", 0.0, compute.generator(0))
    >>> found = fit(*teacher.sample(20_000, compute.generator(1)), degree=1)
    >>> read_out(found, *teacher.sample(4000, compute.generator(2)), n_features=1).coefficients.shape
    torch.Size([2])
    """
    x, y = _admit_inputs(x, y=y)
    if not 0 <= n_features <= len(found.eigenvalues):
        raise ValueError(f"n_features must lie in [0, {len(found.eigenvalues)}], those found, got {n_features}")
    require_whole(1, readout_degree=readout_degree)
    if len(x) < 2 + n_features + readout_degree:
        raise ValueError(f"x must have at least {2 + n_features + readout_degree} samples, got {len(x)}")
    directions, values = found.directions[:, :n_features], found.eigenvalues[:n_features]
    return _read_out((found.degree, directions, values, found.edge, found.spectrum), x, y, readout_degree)


def _read_out(first: tuple, x: Tensor, y: Tensor, readout_degree: int) -> Recovery:
    """Layers 2 and 3 on what layer 1 found: the first five fields of a `Recovery`."""
    degree, directions, *_ = first
    wide = compute.dtype(x.device)
    target = y.to(wide)
    design = _squares(project(x, directions.to(x.dtype), degree)).to(wide)
    coefficients = _least_squares(design, target)
    latent = design @ coefficients
    span = torch.stack([latent.min(), latent.max()])
    readout = _readout(_powers(latent, span, readout_degree + 1), target)
    return Recovery(*first, coefficients, span, readout)


def overlaps(found: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Squared overlaps of true directions (D, d₁) with found ones (D, K): (best single, subspace), each (d₁,).

    max_j ⟨A_k, v_j⟩² and Σ_j ⟨A_k, v_j⟩². Where the eigenvectors of nearby features mix, only the second says that
    they were found.

    >>> overlaps(torch.eye(3)[:, :2], torch.tensor([[0.6], [0.8], [0.0]]))
    (tensor([0.6400]), tensor([1.0000]))
    """
    found, truth = as_tensors(found=found, truth=truth)
    if found.dim() != 2 or truth.dim() != 2 or len(found) != len(truth):
        shapes = f"found {tuple(found.shape)}, truth {tuple(truth.shape)}"
        raise ValueError(f"found must be (D, K) and truth (D, d1), got {shapes}")
    squared = torch.nn.functional.pad((truth.mT @ found) ** 2, (0, 1))  # nothing found: overlap 0
    return squared.amax(1), squared.sum(1)


def surrogate_error(found: Tensor, truth: Tensor, amplitudes: Tensor) -> Tensor:
    """E(û − u)² of the best latent regression on directions found (D, K), for the Gaussian surrogate; ().

    (ĥ_j² − 1)/√2 are orthonormal and have correlation ⟨v_j, A_k⟩² with feature k, so the coefficients are b_j =
    Σ_k a_k ⟨v_j, A_k⟩² and the error is Σa² − Σb² (derived here): layers 2 and 3 without samples or their noise.

    >>> surrogate_error(torch.eye(3)[:, :1], torch.eye(3)[:, :2], torch.tensor([0.8, 0.6]))
    tensor(0.3600)
    """
    found, truth, amplitudes = as_tensors(found=found, truth=truth, amplitudes=amplitudes)
    if found.dim() != 2 or truth.dim() != 2 or len(found) != len(truth) or amplitudes.shape != truth.shape[1:]:
        shapes = f"found {tuple(found.shape)}, truth {tuple(truth.shape)}, amplitudes {tuple(amplitudes.shape)}"
        raise ValueError(f"found must be (D, K), truth (D, d1), amplitudes (d1,), got {shapes}")
    return (amplitudes**2).sum() - (((found.mT @ truth) ** 2 @ amplitudes) ** 2).sum()


def _off_trace(apply: Callable[[Tensor], Tensor], trace: Tensor) -> Callable[[Tensor], Tensor]:
    def off(v):
        return v - trace * (trace.mT @ v)

    return lambda v: off(apply(off(v)))


def _without_clip(t: Tensor, samples_per_dim: float) -> Tensor:
    """A label alone makes an eigenvalue t/δ, the bulk ends near 2·√(E t²/δ): it stands out when t² > 4δ·E t²."""
    largest = float(t.abs().max() / t.square().mean().sqrt())
    if largest**2 > 4 * samples_per_dim:
        warnings.warn(
            f"without clipping, the largest label ({largest:.2g} standard deviations, at n/D = {samples_per_dim:.3g}) "
            "makes an outlier of its own: eigenvectors will point at single samples, and the edge will follow them",
            stacklevel=3,
        )
    return t


def _squares(h: Tensor) -> Tensor:
    """1 and He_2(h_k) = (h_k² − 1)/√2, (n, K + 1)."""
    return torch.cat([torch.ones_like(h[:, :1]) if h.shape[1] else h.new_ones(len(h), 1), (h**2 - 1) / math.sqrt(2)], 1)


def _powers(latent: Tensor, span: Tensor, count: int) -> Tensor:
    """Powers 0 … count − 1 of û, held inside ``span`` and mapped to [−1, 1]: (n, count)."""
    low, high = span
    inside = torch.minimum(torch.maximum(latent, low), high)
    z = (2 * inside - low - high) / torch.where(high > low, high - low, 1)
    return torch.stack([z**j for j in range(count)], 1)


def _least_squares(design: Tensor, target: Tensor) -> Tensor:
    q, r = _factor(design)
    return torch.linalg.solve_triangular(r, q.mT @ target[:, None], upper=True)[:, 0]


def _readout(powers: Tensor, target: Tensor) -> Tensor:
    """The polynomial of the degree, ≥ 1 and < powers.shape[1], with the least leave-one-out error.

    Orthonormal columns are nested: the first r + 1 give the fit of degree r and its leverages.
    """
    q, r = _factor(powers)
    onto = q.mT @ target
    left_out = (target[:, None] - (q * onto).cumsum(1)) / (1 - (q**2).cumsum(1)).clamp_min(1e-9)
    best = 2 + int((left_out[:, 1:] ** 2).mean(0).argmin())
    return torch.linalg.solve_triangular(r[:best, :best], onto[:best, None], upper=True)[:, 0]


def _factor(design: Tensor) -> tuple[Tensor, Tensor]:
    """QR of (n, p), with a ridge at the level of rounding that keeps dependent columns from failing."""
    tiny = torch.finfo(design.dtype).eps ** 0.5 * design.norm()
    ridge = tiny * torch.eye(design.shape[1], dtype=design.dtype, device=design.device)
    q, r = torch.linalg.qr(torch.cat([design, ridge]))
    return q[: len(design)], r


def _orthonormal(columns: Tensor) -> Tensor:
    return torch.linalg.qr(columns / columns.norm(dim=0).clamp_min(torch.finfo(columns.dtype).tiny)).Q


def _admit_inputs(x: Tensor, y: Tensor | None = None, t: Tensor | None = None) -> tuple[Tensor, ...]:
    """x (n, dim) and, when given, its labels (n,)."""
    label = {name: value for name, value in (("y", y), ("t", t)) if value is not None}
    x, *labels = as_tensors(x=x, **label)
    if x.dim() != 2 or 0 in x.shape or any(value.shape != x.shape[:1] for value in labels):
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in {"x": x, **label}.items())
        raise ValueError(f"x must be (n, dim), not empty, and labels (n,), got {shapes}")
    if x.dtype not in (torch.float64, torch.float32):
        raise TypeError(f"x must be float64 or float32, got {x.dtype}")
    require_finite(x=x, **dict(zip(label, labels, strict=True)))
    return x, *(value.to(x.dtype) for value in labels)
