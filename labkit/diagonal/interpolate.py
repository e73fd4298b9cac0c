"""Where training ends: the interpolator of least penalty, and its two limits.

Gradient flow on a diagonal network ends at argmin Σᵢ q(βᵢ; √kᵢ) subject to Xβ = y. ``min_penalty`` finds that
point without following the flow, by Newton's method on the n dual variables; ``min_norm`` (√k → ∞) and
``basis_pursuit`` (√k → 0) are what it tends to.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labkit.diagonal.penalty import admit
from labkit.validate import require_range

MAX_STEPS = 60  # 3 to 20 are usual, 53 the most seen from β(0) = 0; beyond, `converged` says so
MAX_HALVINGS = 40  # of one step
STEP_CAP = 6.0  # largest change of 2s in a step: cosh 2s may grow by e⁶, never overflow
CHUNK = {
    "cpu": 400_000,
    "cuda": 100_000_000,
}  # numbers of X at a time: what stays in cache, what bounds memory
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}  # of the residual


@dataclass(frozen=True)
class Interpolation:
    """What ``min_penalty`` found: β (…, dim), and for each problem (…) how well it interpolates."""

    beta: Tensor
    residual: Tensor  # ‖Xβ − y‖ / (‖y‖ + ‖Xβ(0)‖)
    iterations: Tensor  # Newton steps
    converged: Tensor  # residual ≤ 1e-11 (float64), 1e-5 (float32)


@torch.no_grad()
def min_penalty(x: Tensor, y: Tensor, root_k: float | Tensor, beta0: float | Tensor | None = None) -> Interpolation:
    """The β with Xβ = y of least Σᵢ q(βᵢ; √kᵢ) − q′(β(0)ᵢ; √kᵢ)·βᵢ: the endpoint of gradient flow.

    Minimizes the dual Σᵢ √kᵢ/4·(cosh 2sᵢ − 1) − y·ν over ν, s = Xᵀν + q′(β(0)), by Newton's method; β =
    √k/2·sinh 2s, the gradient is Xβ − y and the Hessian X diag(√(k + 4β²)) Xᵀ. (Duality: derived here; the
    penalty is that of arXiv 2602.20062.) Not differentiable: the result carries no graph.

    Arguments (leading axes broadcast; all problems are solved together)
        x: (…, n, dim), n ≤ dim
        y: (…, n)
        root_k: (…, dim) or a number, > 0; ``penalty.root_k_init`` of the actual initial weights
        beta0: (…, dim) or a number, β of the initial weights; None means 0

    A problem without solution (linearly dependent rows of X and a y that does not fit them), or one too badly
    conditioned for the dtype, is not an error: it comes back with ``converged`` False and the residual reached.

    Raises ValueError for shapes that do not fit, n > dim, NaN or infinity, root_k ≤ 0; TypeError for integer
    tensors.

    >>> x, y = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]).double(), torch.tensor([1.0, 1.0]).double()
    >>> min_penalty(x, y, root_k=1e-6).beta
    tensor([4.9987e-04, 9.9950e-01, 4.9987e-04], dtype=torch.float64)
    """
    named = {"x": x, "y": y, "root_k": root_k} | ({} if beta0 is None else {"beta0": beta0})
    x, y, root_k, *start = admit(**named)
    batch = batch_shape(x, y, root_k=root_k, **({"beta0": start[0]} if start else {}))
    n, dim = x.shape[-2:]

    x = x.expand(*batch, n, dim).reshape(-1, n, dim)
    y = y.expand(*batch, n).reshape(-1, n)
    root_k = root_k.expand(*batch, dim).reshape(-1, dim)
    two_s = torch.zeros_like(root_k)
    scale = _norm(y)
    if start:
        beta0 = start[0].expand(*batch, dim).reshape(-1, dim)
        two_s = torch.asinh(2 * beta0 / root_k)
        scale = scale + _norm((x @ beta0[..., None]).squeeze(-1))

    size = max(1, CHUNK.get(x.device.type, CHUNK["cuda"]) // (n * dim))
    parts = zip(*(v.split(size) for v in (x, y, root_k, two_s, scale)), strict=True)
    beta, residual, iterations = (torch.cat(found) for found in zip(*(_newton(*part) for part in parts), strict=True))
    beta, residual, iterations = beta.reshape(*batch, dim), residual.reshape(batch), iterations.reshape(batch)
    return Interpolation(beta, residual, iterations, residual <= TOLERANCE[beta.dtype])


@torch.inference_mode()
def _newton(x: Tensor, y: Tensor, root_k: Tensor, two_s: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Damped Newton on x (b, n, dim), y (b, n), root_k (b, dim) from two_s (b, dim): β, residual, steps."""
    tolerance, eps = TOLERANCE[x.dtype], torch.finfo(x.dtype).eps
    beta_found, residual_found = torch.empty_like(root_k), torch.empty_like(scale)
    iterations = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    live = torch.arange(len(x), device=x.device)  # the problems still being worked on
    scale, half_k = torch.where(scale > 0, scale, 1)[:, None], root_k / 2
    beta = half_k * torch.sinh(two_s)  # (b, dim)
    for step in range(MAX_STEPS + 1):
        gap = y - (x @ beta[..., None])[..., 0]  # (b, n)
        residual = torch.linalg.vector_norm(gap / scale, dim=-1)
        done = residual <= tolerance if step < MAX_STEPS else torch.ones_like(live, dtype=torch.bool)
        if done.any():
            finished = live[done]
            beta_found[finished], residual_found[finished], iterations[finished] = beta[done], residual[done], step
            if len(finished) == len(live):
                break
            keep = ~done
            live, x, y, half_k, two_s, scale, gap = (v[keep] for v in (live, x, y, half_k, two_s, scale, gap))

        weight = half_k * torch.cosh(two_s)  # √(k + 4β²)/2 = dβ/d2s
        direction = _solve((x * weight[:, None]) @ x.mT, gap)  # of 2ν, (b, n)
        slope = (direction[:, None] @ x)[:, 0]  # of 2s along the step, (b, dim)

        # Along the step the dual is convex with derivative pull(t), −pull_start at t = 0; a step is taken
        # unless it overshoots. (Near the minimum differences of the dual itself would have no digits left.)
        target = (y * direction).sum(-1)
        limit = target + (gap * direction).sum(-1) / 2 + 10 * eps * target.abs()
        t = (STEP_CAP / slope.abs().amax(-1).clamp_min(STEP_CAP))[:, None]
        for _ in range(MAX_HALVINGS):
            moved = torch.addcmul(two_s, t, slope)
            beta = half_k * torch.sinh(moved)
            overshot = (beta * slope).sum(-1) > limit
            if not overshot.any():
                break
            t = torch.where(overshot[:, None], t / 2, t)
        two_s = moved
    return beta_found, residual_found, iterations


def _norm(vector: Tensor) -> Tensor:
    """‖v‖₂ along the last axis without overflow or underflow."""
    largest = vector.abs().amax(-1, keepdim=True)
    return largest.squeeze(-1) * (vector / torch.where(largest > 0, largest, 1)).norm(dim=-1)


def _solve(hessian: Tensor, gap: Tensor) -> Tensor:
    """hessian⁻¹ gap for (b, n, n) and (b, n); a jitter of the size of rounding keeps it positive definite."""
    diagonal = hessian.diagonal(dim1=-2, dim2=-1)
    jitter = torch.finfo(gap.dtype).eps * diagonal.sum(-1, keepdim=True)
    diagonal += jitter
    factor, failed = torch.linalg.cholesky_ex(hessian)
    if failed.any():  # linearly dependent rows
        diagonal += torch.where(failed[:, None] > 0, 1e4 * jitter, 0)
        factor, failed = torch.linalg.cholesky_ex(hessian)
    direction = torch.cholesky_solve(gap[..., None], factor).squeeze(-1)
    return direction.nan_to_num(nan=0, posinf=0, neginf=0)  # still singular: stay, and come back unconverged


@torch.no_grad()
def min_norm(x: Tensor, y: Tensor) -> Tensor:
    """The interpolator of least ‖β‖₂, β = Xᵀ(XXᵀ)⁻¹y, by QR: where ``min_penalty`` tends for √k → ∞.

    x (…, n, dim) with n ≤ dim and linearly independent rows, y (…, n), leading axes broadcast → β (…, dim).
    Raises ValueError otherwise.

    >>> min_norm(torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]), torch.tensor([1.0, 1.0]))
    tensor([0.3333, 0.6667, 0.3333])
    """
    x, y = admit(x=x, y=y)
    batch_shape(x, y)
    orthonormal, triangle = torch.linalg.qr(x.mT)  # Xᵀ = QR, (…, dim, n) and (…, n, n)
    pivots = triangle.diagonal(dim1=-2, dim2=-1).abs()
    enough = pivots.amin(-1) > x.shape[-1] * torch.finfo(x.dtype).eps * pivots.amax(-1)
    if not enough.all():
        raise ValueError("the rows of x must be linearly independent")
    z = torch.linalg.solve_triangular(triangle.mT, y[..., None], upper=False)
    return (orthonormal @ z).squeeze(-1)


@torch.no_grad()
def basis_pursuit(x: Tensor, y: Tensor) -> Tensor:
    """An interpolator of least ‖β‖₁, by linear programming: where ``min_penalty`` tends for √k → 0.

    x (…, n, dim), y (…, n), leading axes broadcast → β (…, dim). Problems are solved one after the other on
    the CPU: this is a reference, not a tool for large batches. Raises ValueError when no β interpolates.

    >>> basis_pursuit(torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]), torch.tensor([1.0, 1.0]))
    tensor([0., 1., 0.])
    """
    from scipy.optimize import linprog  # costs half a second to import: only who asks pays

    x, y = admit(x=x, y=y)
    batch, (n, dim) = batch_shape(x, y), x.shape[-2:]
    problems = x.expand(*batch, n, dim).reshape(-1, n, dim).cpu().double().numpy()
    targets = y.expand(*batch, n).reshape(-1, n).cpu().double().numpy()
    found = np.empty((len(problems), dim))
    for i, (a, b) in enumerate(zip(problems, targets, strict=True)):
        # β = p − m with p, m ≥ 0 makes Σ(p + m) linear
        answer = linprog(np.ones(2 * dim), A_eq=np.hstack([a, -a]), b_eq=b, bounds=(0, None), method="highs")
        if answer.status != 0:
            raise ValueError(f"no β with Xβ = y was found: {answer.message}")
        found[i] = answer.x[:dim] - answer.x[dim:]
    return torch.as_tensor(found, dtype=x.dtype, device=x.device).reshape(*batch, dim)


def recovery_threshold(rho: float | Tensor) -> Tensor:
    """Samples / dim from which ℓ1 finds a vector with a share rho of coordinates that are not zero, for dim → ∞.

    The smallest, over thresholds t, of ρ(1 + t²) + 2(1 − ρ)[(1 + t²)Φ(−t) − tφ(t)], the largest error that the soft
    threshold at tω leaves of a sparse vector in noise of size ω, over ω². With more samples/dim than that the noise
    ω² = error/α dies out (Donoho, Maleki, Montanari 2009, arXiv 0907.3574). It is where ``min_penalty`` starts to
    recover for √k → 0; a larger √k blurs it.

    A number or a tensor in [0, 1], ValueError otherwise; good to 1e-6.

    >>> recovery_threshold(torch.tensor([0.02, 0.1, 0.3]))
    tensor([0.1042, 0.3288, 0.6456])
    """
    (rho,) = admit(rho=rho)
    require_range(0, 1, rho=rho)
    t = torch.linspace(0, 8, 4001, dtype=rho.dtype, device=rho.device)
    density = torch.exp(-(t**2) / 2) / (2 * torch.pi) ** 0.5
    of_zeros = 2 * ((1 + t**2) * torch.special.ndtr(-t) - t * density)
    return (rho[..., None] * (1 + t**2 - of_zeros) + of_zeros).amin(-1).clamp_min(0)


def batch_shape(x: Tensor, y: Tensor, **per_coordinate: Tensor) -> torch.Size:
    """The common leading axes of x (…, n, dim), y (…, n), others (…, dim); misfits and half precision are refused."""
    if x.dtype not in TOLERANCE:
        raise TypeError(f"x must be float64 or float32, got {x.dtype}")
    shapes = {name: tuple(v.shape) for name, v in {"x": x, "y": y, **per_coordinate}.items()}
    got = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    want = ", ".join(["x (..., n, dim)", "y (..., n)", *(f"{name} (..., dim)" for name in per_coordinate)])
    misfit = f"shapes do not fit: got {got}, expected {want} with n, dim >= 1 and leading axes that broadcast"
    if x.dim() < 2 or y.dim() < 1 or x.shape[-2] != y.shape[-1]:
        raise ValueError(misfit)
    n, dim = x.shape[-2:]
    if n > dim:
        raise ValueError(f"x must have n <= dim (more rows cannot all be interpolated), got n = {n}, dim = {dim}")
    if any(v.shape[-1:] not in ((), (1,), (dim,)) for v in per_coordinate.values()):
        raise ValueError(misfit)
    try:
        batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-1], *(v.shape[:-1] for v in per_coordinate.values()))
    except RuntimeError:
        raise ValueError(misfit) from None
    if 0 in (*batch, n):
        raise ValueError(f"there is nothing to solve: got {got}")
    return batch
