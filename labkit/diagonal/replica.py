"""What fine-tuning will generalize like, predicted before training: theory for dim → ∞, and the simulation beside it.

In high dimension every coordinate of the trained β is distributed as if it alone were estimated, from its true value
plus Gaussian noise, by one scalar "prox" of its own penalty (``prox``). Two numbers are left for all coordinates
together, the noise ω and the price τ, and two equations fix them (``generalization_error``). ``simulate`` trains
networks and measures the same error.

Data model and question: Anguita et al. 2026, arXiv 2602.20062. The equations are derived here (replica-symmetric =
state evolution of message passing, for a convex penalty) and checked against simulation; so are the algorithms.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labkit import compute
from labkit.diagonal.interpolate import min_penalty
from labkit.diagonal.penalty import admit, root_k_finetune
from labkit.diagonal.tasks import TaskPair, design
from labkit.validate import require_broadcast, require_positive, require_range

MAX_STEPS = 60  # 3 to 8 are usual; beyond, `converged` says so
FLOOR = 1e-12  # of √k: below, nothing changes any more
RECOVERED = -58.0  # of ln ω²: the error is then below 1e-25, all rounding, and called 0
NEGLIGIBLE = 1e-10  # a share of coordinates
KNEE = 2.5  # the integral over z is cut at −KNEE: the bulk of the noise and its tail have different scales in t
CHUNK = {"cpu": 100_000, "cuda": 20_000_000}  # quadrature nodes at a time: what stays in cache, what bounds memory
DRAWN = 50_000_000  # trials × dim² of a simulation at a time


class _Rule(NamedTuple):
    """How finely to integrate, how exactly to solve."""

    nodes: int  # of each panel
    kinds: int  # that stand for the law of pretraining
    reach: float  # integrals run over |z| ≤ reach
    tolerance: float  # of the last step of ln ω² and ln τ; what is left after it is of the order of its square


ACCURACY = {"live": _Rule(48, 16, 6.5, 3e-3), "reference": _Rule(96, 32, 7.5, 1e-4)}
LEGENDRE = {n: np.polynomial.legendre.leggauss(n) / np.array([[2], [1]]) + [[0.5], [0]] for n in (48, 96)}  # on [0, 1]


@dataclass(frozen=True)
class Generalization:
    """What theory says, each of the common shape of the arguments."""

    error: Tensor  # E(β̂ − β*)², the zero predictor has 1
    omega: Tensor  # noise that each coordinate sees, ω² = (σ² + error)/α
    tau: Tensor  # price of the penalty in the scalar problem; 0 for α ≥ 1
    converged: Tensor  # False: both equations were not solved to the tolerance, do not trust the numbers


@dataclass(frozen=True)
class PretrainingLaw:
    """Joint law of (β*_PT, β̂_PT) as weighted points, folded so that β*_PT ≥ 0: E f = Σ weight·f(beta_star, beta_pt).

    Points run along the last axis; leading axes are those of the arguments.
    """

    beta_star: Tensor  # (…, points), 0 or 1/√ρ_PT
    beta_pt: Tensor  # (…, points); where β*_PT = 0 only the half β̂_PT > 0, with the weight of both
    weight: Tensor  # (…, points), sums to 1
    converged: Tensor  # (…)


@dataclass(frozen=True)
class Simulation:
    """Errors of trained networks, trials along the last axis."""

    error: Tensor  # (…, trials), ‖β̂_FT − β*_FT‖²/dim
    converged: Tensor  # (…, trials), both stages interpolate to the tolerance of min_penalty

    @property
    def mean(self) -> Tensor:
        """Over trials, (…)."""
        return self.error.mean(-1)

    @property
    def standard_error(self) -> Tensor:
        """Of the mean, (…)."""
        return self.error.std(-1) / self.error.shape[-1] ** 0.5


def prox(r: float | Tensor, root_k: float | Tensor, tau: float | Tensor) -> Tensor:
    """The estimate of one coordinate from its noisy value r: argmin_b ½(b − r)² + τ·q(b; √k).

    Odd in r; a linear shrinkage √k/(√k + τ)·r for |r| ≪ √k, a soft threshold (up to logarithms) for √k → 0. Solves
    b + τ·q′(b) = r as A·sinh t + B·t = r with b = A·sinh t, A = √k/2, B = τ/2 (derived here), which cannot overflow.
    Differentiable in all three arguments.

    Numbers or tensors that broadcast: r finite, root_k > 0, tau ≥ 0; ValueError otherwise.

    >>> prox(torch.tensor([-0.1, 0.1, 2.0]), root_k=1e-6, tau=0.1)
    tensor([-1.8134e-06,  1.8134e-06,  1.2296e+00])
    """
    t, a, _ = _scalar_problem(r, root_k, tau)
    return a * torch.sinh(t)


def prox_prime(r: float | Tensor, root_k: float | Tensor, tau: float | Tensor) -> Tensor:
    """How far the estimate follows r: ∂prox/∂r = h/(h + τ) in (0, 1], h = √(k + 4·prox²) = 1/q″(prox).

    Arguments, errors and derivatives as for ``prox``.

    >>> prox_prime(torch.tensor([-0.1, 0.1, 2.0]), root_k=1e-6, tau=0.1)
    tensor([3.7619e-05, 3.7619e-05, 9.6092e-01])
    """
    t, a, b = _scalar_problem(r, root_k, tau)
    stretch = a * torch.cosh(t)
    return stretch / (stretch + b)


def _scalar_problem(r: float | Tensor, root_k: float | Tensor, tau: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """t, A and B of ``prox``."""
    r, root_k, tau = admit(r=r, root_k=root_k, tau=tau)
    require_range(0, torch.inf, tau=tau)
    require_broadcast(r=r, root_k=root_k, tau=tau)
    a, b = root_k / 2, tau / 2
    with torch.no_grad():
        t = _invert(r, a, b, steps=12)
    for _ in range(2):  # from the solution Newton does not move, but it makes derivatives up to the third right
        t = t - (a * torch.sinh(t) + b * t - r) / (a * torch.cosh(t) + b)
    return t, a, b


def _invert(r: Tensor, a: Tensor, b: Tensor, steps: int) -> Tensor:
    """t with A·sinh t + B·t = r. For t > 0 the left side is convex: from above, Newton descends and stays above."""
    size = r.abs()
    t = torch.minimum(size / (a + b), torch.asinh(size / a))
    for _ in range(steps):
        gap = torch.addcmul(b * t - size, a, torch.sinh(t))
        t = torch.addcdiv(t, gap, torch.addcmul(b, a, torch.cosh(t)), value=-1)
    return torch.copysign(t, r)


@torch.no_grad()
def generalization_error(
    task: TaskPair,
    c: float | Tensor,
    lam: float | Tensor,
    gamma: float | Tensor,
    alpha_ft: float | Tensor,
    alpha_pt: float | Tensor | None = None,
    noise_var: float | Tensor = 0.0,
    accuracy: str = "live",
) -> Generalization:
    """Error of fine-tuning on alpha_ft·dim samples after pretraining on alpha_pt·dim, for dim → ∞.

    With r = β* + ωz, z ~ N(0, 1) independent of (β*, √k), β̂ = prox(r, √k, τ), the two equations are
        ω² = (σ² + E(β̂ − β*)²)/α   and   E prox′ = α,
    the second because training interpolates (α < 1). √k = ``penalty.root_k_finetune``(β̂_PT): after perfect
    pretraining β̂_PT = β*_PT, else its law is ``pretraining_law``. For α > 1 training is least squares: σ²/(α − 1). At
    α = 1 with noise the error is infinite; without noise it is 0 for α ≥ 1.

    Arguments (numbers or tensors, all but ``task`` broadcast)
        c > 0, lam in [−1, 1], gamma ≥ 0: initialization, as in ``penalty.root_k_finetune``; √k below 1e-12 counts
            as 1e-12
        alpha_ft > 0: samples of fine-tuning / dim
        alpha_pt > 0: samples of pretraining / dim, without noise; None or ≥ 1 means learned perfectly
        noise_var ≥ 0: σ², variance of the noise on the labels of fine-tuning
        accuracy: "live", relative error of the result ≤ 1e-3, or "reference", ≤ 1e-6 (for α ≤ 0.99 or ≥ 1)

    A point that did not converge is not an error: ``converged`` says so. Computed in float64 where the device has it;
    not differentiable. Raises ValueError for arguments out of range, for shapes that do not broadcast and for λ = −1
    with γ = 0 (a saddle); TypeError when task is no TaskPair.

    >>> from labkit.diagonal.tasks import SUBSET
    >>> lam = torch.tensor([1.0, -0.95, -1.0])
    >>> generalization_error(SUBSET, c=1e-3, lam=lam, gamma=0.1, alpha_ft=0.2).error
    tensor([0.4726, 0.2215, 0.3843])
    """
    _require_task(task)
    rule = _rule(accuracy)
    given = {"c": c, "lam": lam, "gamma": gamma, "alpha_ft": alpha_ft, "noise_var": noise_var}
    dtype, shape, (c, lam, gamma, alpha, noise_var, *rest) = _admit(
        **given, **({} if alpha_pt is None else {"alpha_pt": alpha_pt})
    )
    root_k_finetune(0.0, c, lam, gamma)  # refuses the saddle

    # Pretraining is solved once for what it depends on; `which` says which of its solutions a point uses.
    pretrained = torch.broadcast_tensors(c, *rest)
    which = torch.arange(pretrained[0].numel(), device=c.device).reshape(pretrained[0].shape)
    size = max(1, _chunk(c) // (12 * rule.nodes * rule.kinds))
    parts = zip(*(value.reshape(-1).split(size) for value in pretrained), strict=True)
    found = zip(*(_after_pretraining(task, *part, rule=rule) for part in parts), strict=True)
    share, beta_pt, converged = (torch.cat(values) for values in found)  # (pretrainings, 2, kinds)
    seen = (share > NEGLIGIBLE).any(0)
    zeros = int(seen[0].sum())
    share, beta_pt = share[:, seen], beta_pt[:, seen]
    star = torch.full_like(share[0], task.rho_ft**-0.5)
    star[:zeros] = 0
    c, lam, gamma, alpha, noise_var, which = (
        value.expand(shape).reshape(-1) for value in (c, lam, gamma, alpha, noise_var, which)
    )

    def kinds(points: Tensor) -> _Kinds:
        root_k = root_k_finetune(beta_pt[which[points]], *(value[points, None] for value in (c, lam, gamma)))
        return _Kinds(share[which[points]], root_k.clamp_min(FLOOR) / 2, star.expand_as(root_k), zeros)

    found = _solve(kinds, 2 * len(star) - zeros, alpha, noise_var, rule)
    return _shaped(replace(found, converged=found.converged & converged[which]), shape, dtype)


@torch.no_grad()
def pretraining_error(
    rho_pt: float | Tensor, c: float | Tensor, alpha_pt: float | Tensor, accuracy: str = "live"
) -> Generalization:
    """Error of pretraining itself: √k = 2c for all coordinates, a share rho_pt of them is 1/√ρ_PT, no noise.

    The same two equations, for two kinds of coordinates. Numbers or tensors that broadcast: rho_pt in (0, 1], c > 0,
    alpha_pt > 0; ValueError otherwise. λ does not enter: it acts only through re-initialization.

    >>> pretraining_error(0.1, c=1e-3, alpha_pt=torch.tensor([0.2, 0.3, 0.5])).error
    tensor([0.7856, 0.5059, 0.0054])
    """
    rule = _rule(accuracy)
    dtype, shape, values = _admit(rho_pt=rho_pt, c=c, alpha_pt=alpha_pt)
    rho, c, alpha = (value.expand(shape).reshape(-1) for value in values)
    return _shaped(_pretraining(rho, c, alpha, rule), shape, dtype)


@torch.no_grad()
def pretraining_law(
    rho_pt: float | Tensor, c: float | Tensor, alpha_pt: float | Tensor, accuracy: str = "live"
) -> PretrainingLaw:
    """What pretraining on alpha_pt·dim samples leaves of each true coefficient: β̂_PT = prox(β*_PT + ωz, 2c, τ).

    Arguments and errors as for ``pretraining_error``, whose ω and τ it uses. The points are a quadrature of z, exact
    for smooth functions; with alpha_pt ≥ 1 all of them have β̂_PT = β*_PT.

    >>> law = pretraining_law(0.1, c=1e-3, alpha_pt=0.3)
    >>> (law.weight * (law.beta_pt - law.beta_star) ** 2).sum()
    tensor(0.5059, dtype=torch.float64)
    """
    rule = _rule(accuracy)
    dtype, shape, values = _admit(rho_pt=rho_pt, c=c, alpha_pt=alpha_pt)
    return _shaped(_law(*(value.expand(shape).reshape(-1) for value in values), rule), shape, dtype)


class _Kinds(NamedTuple):
    """The coordinates by kind: a kind has one true value and one √k. The first ``zeros`` kinds have β* = 0."""

    share: Tensor  # (points, kinds), of all coordinates
    half_k: Tensor  # (points, kinds), √k/2
    star: Tensor  # (points, kinds), β*
    zeros: int

    def at(self, points: Tensor) -> "_Kinds":
        return _Kinds(self.share[points], self.half_k[points], self.star[points], self.zeros)


def _before_pretraining(rho: Tensor, c: Tensor) -> _Kinds:
    half_k = torch.stack([c, c], 1).clamp_min(FLOOR / 2)
    return _Kinds(torch.stack([1 - rho, rho], 1), half_k, torch.stack([0 * rho, rho.rsqrt()], 1), zeros=1)


def _pretraining(rho: Tensor, c: Tensor, alpha: Tensor, rule: _Rule) -> Generalization:
    return _solve(lambda points: _before_pretraining(rho[points], c[points]), 3, alpha, torch.zeros_like(alpha), rule)


def _law(rho: Tensor, c: Tensor, alpha: Tensor, rule: _Rule) -> PretrainingLaw:
    found = _pretraining(rho, c, alpha, rule)
    exact = found.omega == 0
    at = _quadrature(_before_pretraining(rho, c), torch.where(exact, 1, found.omega), found.tau, rule)
    star = at.star.expand_as(at.beta).flatten(1)
    beta = torch.where(exact[:, None], star, at.beta.flatten(1))
    return PretrainingLaw(star, beta, at.weight.flatten(1), found.converged)


def _after_pretraining(
    task: TaskPair, c: Tensor, alpha: Tensor | None = None, *, rule: _Rule
) -> tuple[Tensor, Tensor, Tensor]:
    """Shares of the coordinates by β̂_PT, those with β*_FT = 0 and the others, and β̂_PT, each (points, 2, kinds).

    Perfect pretraining (no alpha) leaves two values of β̂_PT. Else there are many, of which √k is a smooth function of
    asinh(β̂_PT/c): the few of a Gauss rule stand for all of them.
    """
    rho, scale = torch.full_like(c, task.rho_pt), c[:, None, None]
    if alpha is None:
        before = _before_pretraining(rho, c)
        law = PretrainingLaw(before.star, before.star, before.share, torch.ones_like(c, dtype=torch.bool))
    else:
        law = _law(rho, c, alpha, rule)
    active = torch.where(law.beta_star > 0, task.rho_shared, task.rho_new)  # P(β*_FT ≠ 0 | β*_PT)
    share = torch.stack([law.weight * (1 - active), law.weight * active], 1)
    beta_pt = law.beta_pt[:, None].expand_as(share)
    if alpha is not None:
        node, share = _gauss(torch.asinh(beta_pt.abs() / scale), share, rule.kinds)
        beta_pt = scale * torch.sinh(node)
    return share, beta_pt, law.converged


def _gauss(values: Tensor, weight: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """Gauss rule of a measure given by many weighted values (…, many): values and weights (…, points).

    It has the moments of the measure up to degree 2·points − 1. Lanczos' method on diag(values) makes the Jacobi
    matrix; its eigenvalues are the new values, the first entries of its eigenvectors give the weights (Golub, Welsch).
    """
    total = weight.sum(-1, keepdim=True)
    tiny = torch.finfo(values.dtype).eps * values.abs().amax(-1, keepdim=True)
    basis = torch.zeros(*values.shape, points + 1, dtype=values.dtype, device=values.device)
    basis[..., 0] = (weight / torch.where(total > 0, total, 1)).sqrt()
    jacobi = torch.zeros(*values.shape[:-1], points, points, dtype=values.dtype, device=values.device)
    for j in range(points):
        new = (values * basis[..., j])[..., None]
        jacobi[..., : j + 1, j] = (basis[..., : j + 1].mT @ new)[..., 0]
        for _ in range(2):  # once is not enough against rounding
            new = new - basis @ (basis.mT @ new)
        norm = new.norm(dim=-2)
        basis[..., j + 1] = torch.where(norm > 16 * tiny, new[..., 0] / norm, 0)  # 0: the measure has no more points
    value, vector = torch.linalg.eigh(jacobi, UPLO="U")
    return value, total * vector[..., 0, :] ** 2


def _solve(
    kinds: Callable[[Tensor], _Kinds], panels: int, alpha: Tensor, noise_var: Tensor, rule: _Rule
) -> Generalization:
    """The answer for each point of the vectors alpha and noise_var.

    ``kinds(points)`` are their coordinates; the quadrature takes one panel for a kind with β* = 0, two for another.
    """
    error = torch.where(noise_var > 0, noise_var / (alpha - 1), 0)  # least squares; below 1, replaced
    tau, converged = torch.zeros_like(error), torch.ones_like(error, dtype=torch.bool)
    interpolating = (alpha < 1).nonzero().squeeze(1)
    # Having seen 30 MB freed, glibc keeps what is freed later for the next request: no page faults in what follows.
    torch.empty(4_000_000, dtype=torch.float64, device="cpu")
    if len(interpolating):
        for part in interpolating.split(max(1, _chunk(alpha) // (panels * rule.nodes))):
            x, y, converged[part] = _fixed_point(kinds(part), alpha[part], noise_var[part], rule)
            error[part] = torch.where(x < RECOVERED, 0, alpha[part] * x.exp() - noise_var[part])
            tau[part] = y.exp()
    return Generalization(error, ((noise_var + error) / alpha).sqrt(), tau, converged)


def _chunk(like: Tensor) -> int:
    return CHUNK.get(like.device.type, CHUNK["cuda"])


def _fixed_point(kinds: _Kinds, alpha: Tensor, noise_var: Tensor, rule: _Rule) -> tuple[Tensor, Tensor, Tensor]:
    """x = ln ω², y = ln τ with E prox′ = α and ω² = (σ² + error)/α, and whether they were reached; all (points,).

    Newton's method for F1 = logit E prox′ − logit α, F2 = ln((σ² + error)/α) − x. Alone it gets lost in some per cent
    of all settings. What saves it (derived here): both equations together are a saddle point, concave in ω/τ, convex
    in ω, so F1 falls with y at fixed x, and F2, along the ridge F1 = 0, changes its sign once, from + to −. So off the
    ridge only y moves, inside a bracket; near it both move, and x stays inside the bracket of that sign change.
    """
    # A start: the solution for √k → ∞, with ln τ corrected for how much each kind then shrinks.
    x = torch.log((noise_var + (1 - alpha) * (kinds.share * kinds.star**2).sum(1)) / alpha)
    square, follow = kinds.star**2 + x.exp()[:, None], 1.0
    for _ in range(2):
        h = 2 * torch.sqrt(kinds.half_k**2 + follow**2 * square)
        y = torch.log((kinds.share * h).sum(1) * (1 - alpha) / alpha)
        follow = h / (h + y.exp()[:, None])
    x_low, x_high = torch.full_like(x, -80), torch.full_like(x, 60)
    y_low, y_high = torch.full_like(x, -torch.inf), torch.full_like(x, torch.inf)

    found, reached = torch.stack([x, y]), torch.zeros_like(x, dtype=torch.bool)
    live = torch.arange(len(x), device=x.device)  # the points still being worked on
    for _ in range(MAX_STEPS):
        g, e, g_x, g_y, e_x, e_y = _moments(kinds, x, y, rule)
        f1 = torch.logit(g) - torch.logit(alpha)
        f2 = torch.log((noise_var + e) / alpha) - x
        a11, a12 = g_x / (g * (1 - g)), g_y / (g * (1 - g))
        a21, a22 = e_x / (noise_var + e) - 1, e_y / (noise_var + e)
        ridge, slope = f2 - a22 / a12 * f1, a21 - a22 / a12 * a11  # F2 and its slope, carried to the ridge
        dx = torch.where(slope < 0, -ridge / slope, 4 * ridge.sign())
        dy = -(f1 + a11 * dx) / a12

        done = torch.maximum(dx.abs(), dy.abs()) < rule.tolerance
        done |= (x < RECOVERED) & (f1.abs() < 1)
        found[:, live] = torch.stack([x, y]) + torch.stack([dx, dy]).clamp(-rule.tolerance, rule.tolerance)
        reached[live] = done
        if done.all():
            break

        near = (f1 / a12).abs() <= 1  # of y from the ridge
        sure = near & (ridge.abs() > f1.abs())  # of the sign of F2 on the ridge
        x_low = torch.where(sure & (ridge > 0), x, x_low)
        x_high = torch.where(sure & (ridge < 0), x, x_high)
        moving = sure | (near & (dx.abs() < 2))
        dx = dx.clamp(-4, 4)
        wall = torch.where(dx < 0, x_low, x_high)
        dx = torch.where((wall - x - dx) * dx > 0, dx, (wall - x) / 2)  # not through the wall: half way
        dx = torch.where(moving, dx, 0)
        y_low, y_high = torch.where(f1 > 0, y, y_low), torch.where(f1 > 0, y_high, y)
        new = y - ((f1 + a11 * dx) / a12).clamp(-4, 4)
        middle = (y_low + y_high) / 2
        outside = ~moving & ((new <= y_low) | (new >= y_high)) & middle.isfinite()
        x, y = x + dx, torch.where(outside, middle, new)
        y_low = torch.where(moving, -torch.inf, y_low)  # the bracket was for the old x
        y_high = torch.where(moving, torch.inf, y_high)

        if done.any():
            keep = ~done
            live, kinds = live[keep], kinds.at(keep)
            x, y, x_low, x_high, y_low, y_high, alpha, noise_var = torch.stack(
                [x, y, x_low, x_high, y_low, y_high, alpha, noise_var]
            )[:, keep]
    return *found, reached


def _moments(kinds: _Kinds, x: Tensor, y: Tensor, rule: _Rule) -> tuple[Tensor, ...]:
    """g = E prox′, e = E(β̂ − β*)² at ω² = eˣ, τ = e^y, and ∂g/∂x, ∂g/∂y, ∂e/∂x, ∂e/∂y; all (points,)."""
    at = _quadrature(kinds, (x / 2).exp(), y.exp(), rule)
    inverse = (at.stretch + at.b).reciprocal_()
    follow = at.stretch * inverse  # prox′
    lag = at.b * inverse  # 1 − prox′
    bt = at.b * at.t
    err = at.beta - at.star
    noise = err + bt  # ωz
    pull = err * follow

    def mean(values: Tensor) -> Tensor:
        return (at.weight * values).sum((1, 2))

    lag_bent = lag * at.beta * inverse
    g_x = mean(lag_bent * inverse * noise) / 2
    g_y = -mean(lag * torch.addcmul(follow, lag_bent, at.t))
    return mean(follow), mean(err * err), g_x, g_y, mean(pull * noise), -2 * mean(pull * bt)


class _Nodes(NamedTuple):
    """Values at the nodes of the quadrature, (points, panels, nodes) or broadcasting to it; A, B, t as in ``prox``."""

    weight: Tensor  # share of the kind × probability; sums to 1 over panels and nodes
    star: Tensor  # β*
    beta: Tensor  # β̂ = A·sinh t
    stretch: Tensor  # A·cosh t
    t: Tensor
    b: Tensor


def _quadrature(kinds: _Kinds, omega: Tensor, tau: Tensor, rule: _Rule) -> _Nodes:
    """Gauss–Legendre in t in place of z: z = (A·sinh t + B·t − β*)/ω is smooth in t, while β̂(z) has a kink for √k → 0.

    Where the noise is small against β* its bulk is narrow in t and its tail long (up to t = −60): two panels, cut at
    z = −2.5. Each panel gets its exact share of the Gaussian, so the weights sum to 1 however coarse the rule is.
    """
    omega, b = omega[:, None], tau[:, None] / 2
    spikes = slice(kinds.zeros, None)
    a1, star1, share1 = kinds.half_k[:, spikes], kinds.star[:, spikes], kinds.share[:, spikes]
    reach = rule.reach * omega
    r = torch.cat([kinds.star + reach, (star1 - KNEE * omega).clamp_min(0), star1 - reach], 1)
    ends = _invert(r, torch.cat([kinds.half_k, a1, a1], 1), b, steps=4)
    high, knee, low = ends.split([kinds.star.shape[1], a1.shape[1], a1.shape[1]], 1)
    z = (a1 * torch.sinh(knee) + b * knee - star1) / omega  # of the knee used, an upper bound of the one wanted
    tail = share1 * torch.special.ndtr(z)
    # Panels: half lines of the kinds with β* = 0, bulks of the others, tails of the others.
    share = torch.cat([kinds.share[:, : kinds.zeros], share1 - tail, tail], 1)[..., None]
    low = torch.cat([torch.zeros_like(high[:, : kinds.zeros]), knee, low], 1)[..., None]
    high = torch.cat([high, knee], 1)[..., None]
    a, star = torch.cat([kinds.half_k, a1], 1)[..., None], torch.cat([kinds.star, star1], 1)[..., None]

    node, weight = (torch.as_tensor(v, dtype=a.dtype, device=a.device) for v in LEGENDRE[rule.nodes])
    t = low + (high - low) * node
    grown = t.exp().mul_(a / 2)
    shrunk = grown.reciprocal().mul_(a * a / 4)
    beta, stretch, b = grown - shrunk, grown.add_(shrunk), b[..., None]
    z = (b * t).add_(beta).sub_(star).div_(omega[..., None])
    weight = z.square_().mul_(-0.5).exp_().mul_(stretch + b).mul_(weight)
    weight.mul_(share / weight.sum(-1, keepdim=True))
    return _Nodes(weight, star, beta, stretch, t, b)


def _require_task(task: TaskPair) -> None:
    if not isinstance(task, TaskPair):
        raise TypeError(f"task must be a TaskPair, got {type(task).__name__}")


def _rule(accuracy: str) -> _Rule:
    if accuracy not in ACCURACY:
        raise ValueError(f"accuracy must be one of {', '.join(ACCURACY)}, got {accuracy!r}")
    return ACCURACY[accuracy]


def _admit(**named: float | Tensor) -> tuple[torch.dtype, torch.Size, list[Tensor]]:
    """The arguments inside their domains, in float64 where the device has it; their own dtype; their common shape."""
    values = admit(**named)
    named = dict(zip(named, values, strict=True))
    shape = require_broadcast(**named)
    for name, value in named.items():
        if name in ("alpha_ft", "alpha_pt", "rho_pt"):
            require_positive(**{name: value})
        if name == "rho_pt":
            require_range(0, 1, rho_pt=value)
        if name == "noise_var":
            require_range(0, torch.inf, noise_var=value)
    dtype = values[0].dtype
    return dtype, shape, [v.to(torch.promote_types(dtype, compute.dtype(v.device))) for v in values]


def _shaped(found, shape: torch.Size, dtype: torch.dtype):
    """The fields (points, …) of a result as (*shape, …), in the dtype of the arguments."""
    values = {f.name: getattr(found, f.name) for f in fields(found)}
    return type(found)(
        **{k: (v if v.dtype == torch.bool else v.to(dtype)).reshape((*shape, *v.shape[1:])) for k, v in values.items()}
    )


@torch.no_grad()
def simulate(
    task: TaskPair,
    c: float | Tensor,
    lam: float | Tensor,
    gamma: float | Tensor,
    alpha_ft: float,
    alpha_pt: float | None = None,
    noise_var: float | Tensor = 0.0,
    *,
    dim: int,
    trials: int,
    generator: torch.Generator,
) -> Simulation:
    """Train: pretraining, re-initialization, fine-tuning, each to its exact end, ``trials`` independent times.

    Both stages end where gradient flow ends, at ``interpolate.min_penalty`` (least squares for more samples than
    dimensions; pretraining with alpha_pt None or ≥ 1 finds β*_PT). c, lam, gamma and noise_var broadcast, and all
    their values see the same tasks, inputs and noise. alpha_ft and alpha_pt are numbers: n = round(α·dim) rows. A
    generator with the same seed draws the same rows at any α, only more or fewer of them: a dot that follows a slider
    moves smoothly.

    Arguments
        task, c, lam, gamma, alpha_ft, alpha_pt, noise_var: as in ``generalization_error``
        dim ≥ 1: features; trials ≥ 2, because a standard error needs two

    Raises ValueError for arguments out of range; TypeError when task is no TaskPair.

    >>> from labkit.diagonal.tasks import SUBSET
    >>> lam = torch.tensor([1.0, -0.95, -1.0])
    >>> run = simulate(SUBSET, 1e-3, lam, 0.1, 0.2, dim=200, trials=8, generator=compute.generator(0))
    >>> run.mean, run.standard_error
    (tensor([0.5367, 0.3324, 0.4517]), tensor([0.0349, 0.0742, 0.0927]))
    """
    _require_task(task)
    for name, value, least in (("dim", dim, 1), ("trials", trials, 2)):
        if not value >= least or value != int(value):
            reason = ", for a standard error" if name == "trials" else ""
            raise ValueError(f"{name} must be a whole number >= {least}{reason}, got {value}")
    given = {"c": c, "lam": lam, "gamma": gamma, "noise_var": noise_var, "alpha_ft": alpha_ft}
    given |= {} if alpha_pt is None else {"alpha_pt": alpha_pt}
    dtype, shape, (c, lam, gamma, noise_var, *alphas) = _admit(**given)
    root_k_finetune(0.0, c, lam, gamma)  # refuses the saddle
    samples = []
    for name, alpha in zip(("alpha_ft", "alpha_pt"), alphas, strict=False):
        if alpha.dim():
            raise ValueError(f"{name} must be one number, got shape {tuple(alpha.shape)}")
        samples.append(round(float(alpha) * dim))
        if samples[-1] < 1:
            raise ValueError(f"{name} must be at least one sample of dim = {dim}, got {float(alpha):g}")
    n_ft, n_pt = (*samples, dim)[:2]
    c, lam, gamma, sigma = (value[..., None, None] for value in (c, lam, gamma, noise_var.sqrt()))

    found = []
    size = max(1, DRAWN // dim**2)
    for first in range(0, trials, size):
        count = min(size, trials - first)
        seeds = torch.randint(2**62, (4,), generator=generator, device="cpu").tolist()  # no draw shifts another
        for_task, for_pt, for_ft, for_noise = (compute.generator(seed) for seed in seeds)
        star_pt, star_ft = (beta.to(c) for beta in task.sample(dim, for_task, batch=(count,)))  # (trials, dim)
        beta_pt, well = star_pt, torch.ones_like(star_pt[:, 0], dtype=torch.bool)
        if n_pt < dim:
            x = _rows(n_pt, dim, count, for_pt).to(c)
            pretrained = min_penalty(x, (x @ star_pt[..., None])[..., 0], 2 * c)
            beta_pt, well = pretrained.beta, pretrained.converged
        x = _rows(n_ft, dim, count, for_ft).to(c)
        noise = _rows(n_ft, 1, count, for_noise).to(c)[..., 0]
        y = (x @ star_ft[..., None])[..., 0] + sigma * noise
        if n_ft <= dim:
            finetuned = min_penalty(x, y, root_k_finetune(beta_pt, c, lam, gamma))
            beta_ft, well = finetuned.beta, well & finetuned.converged
        else:
            q, r = torch.linalg.qr(x)
            beta_ft = torch.linalg.solve_triangular(r, q.mT @ y[..., None], upper=True)[..., 0]
        error = ((beta_ft - star_ft) ** 2).mean(-1).to(dtype)
        found.append([value.expand(*shape, count) for value in (error, well)])
    return Simulation(*(torch.cat(parts, -1) for parts in zip(*found, strict=True)))


def _rows(n: int, dim: int, trials: int, generator: torch.Generator) -> Tensor:
    """Inputs (trials, n, dim), x ~ N(0, I/dim), drawn row by row: more rows begin with the same ones.

    torch fills 16 numbers at a time and draws an incomplete last group anew: so the rows come in groups of 16.
    """
    return design(trials, dim, generator, batch=(-(-n // 16) * 16,))[:n].transpose(0, 1)
