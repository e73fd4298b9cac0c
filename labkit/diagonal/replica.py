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
from labkit.validate import require_broadcast, require_generator, require_positive, require_range, require_whole

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
    omega: Tensor  # (…), noise that each coordinate sees in pretraining; 0 for α ≥ 1
    tau: Tensor  # (…), price of the penalty in pretraining; 0 for α ≥ 1
    c: Tensor  # (…), of the initialization it is the law for
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
    alpha_pt: float | Tensor | PretrainingLaw | None = None,
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
        alpha_pt > 0: samples of pretraining / dim, without noise; None or ≥ 1 means learned perfectly; or what
            ``pretraining_law`` gave for the ρ_PT of the task and the same c, which saves solving it again (a law
            keeps the accuracy that it was solved with)
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
    law = alpha_pt if isinstance(alpha_pt, PretrainingLaw) else None
    if law is not None:
        given["alpha_pt"] = 1 + law.omega
    elif alpha_pt is not None:
        given["alpha_pt"] = alpha_pt
    dtype, shape, (c, lam, gamma, alpha, noise_var, *rest) = _admit(**given)
    if law is not None:
        _require_law_of(task, c, law)
    root_k_finetune(0.0, c, lam, gamma)  # refuses the saddle

    # Pretraining is solved once for what it depends on; `which` says which of its solutions a point uses.
    pretrained = torch.broadcast_tensors(c, *rest)
    which = torch.arange(pretrained[0].numel(), device=c.device).reshape(pretrained[0].shape)
    size = max(1, _chunk(c) // (12 * rule.nodes * rule.kinds))
    found = []
    for part in which.reshape(-1).split(size):
        at_c, *at_alpha = (value.reshape(-1)[part] for value in pretrained)
        if law is not None:
            known = _law_at(law, pretrained[0].shape, part, c.dtype)
        else:
            known = _law(torch.full_like(at_c, task.rho_pt), at_c, *at_alpha, rule) if at_alpha else None
        found.append(_after_pretraining(task, at_c, known, rule))
    share, beta_pt, converged = (torch.cat(values) for values in zip(*found, strict=True))  # (pretrainings, 2, kinds)
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

    Arguments and errors as for ``pretraining_error``, whose ω and τ it holds. The points are a quadrature of z, exact
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


@torch.inference_mode()
def _law(rho: Tensor, c: Tensor, alpha: Tensor, rule: _Rule) -> PretrainingLaw:
    found = _pretraining(rho, c, alpha, rule)
    exact = found.omega == 0
    at = _quadrature(_before_pretraining(rho, c), torch.where(exact, 1, found.omega), found.tau, rule)
    star = at.star.expand_as(at.beta).flatten(1)
    beta = torch.where(exact[:, None], star, at.beta.flatten(1))
    return PretrainingLaw(star, beta, at.weight.flatten(1), found.omega, found.tau, c, found.converged)


def _law_at(law: PretrainingLaw, shape: torch.Size, points: Tensor, dtype: torch.dtype) -> PretrainingLaw:
    """The law at some points of a grid of this shape, (points, …)."""
    each = {f.name: getattr(law, f.name) for f in fields(law)}
    axes = law.omega.dim()
    each = {k: v.expand((*shape, *v.shape[axes:])).reshape((-1, *v.shape[axes:]))[points] for k, v in each.items()}
    return PretrainingLaw(**{k: v if v.dtype == torch.bool else v.to(dtype) for k, v in each.items()})


@torch.inference_mode()
def _after_pretraining(
    task: TaskPair, c: Tensor, law: PretrainingLaw | None, rule: _Rule
) -> tuple[Tensor, Tensor, Tensor]:
    """Shares of the coordinates by β̂_PT, those with β*_FT = 0 and the others, and β̂_PT, each (points, 2, kinds).

    Perfect pretraining (no law) leaves two values of β̂_PT. Else there are many, of which √k is a smooth function of
    asinh(β̂_PT/c): the few of a Gauss rule stand for all of them.
    """
    if law is None:
        before = _before_pretraining(torch.full_like(c, task.rho_pt), c)
        star, beta_pt, weight, converged = before.star, before.star, before.share, torch.ones_like(c, dtype=torch.bool)
    else:
        star, beta_pt, weight, converged = law.beta_star, law.beta_pt, law.weight, law.converged
    active = torch.where(star > 0, task.rho_shared, task.rho_new)  # P(β*_FT ≠ 0 | β*_PT)
    share = torch.stack([weight * (1 - active), weight * active], 1)
    beta_pt = beta_pt[:, None].expand_as(share)
    if law is not None:
        scale = c[:, None, None]
        node, share = _gauss(torch.asinh(beta_pt.abs() / scale), share, rule.kinds)
        beta_pt = scale * torch.sinh(node)
    return share, beta_pt, converged


def _gauss(values: Tensor, weight: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """Gauss rule of a measure given by many weighted values (…, many): values and weights (…, points).

    It has the moments of the measure up to degree 2·points − 1. Lanczos' method on diag(values) makes the Jacobi
    matrix; its eigenvalues are the new values, the first entries of its eigenvectors give the weights (Golub, Welsch).
    """
    total, zero = weight.sum(-1, keepdim=True), weight.new_zeros(())
    tiny = 16 * torch.finfo(values.dtype).eps * values.abs().amax(-1, keepdim=True)
    basis = torch.zeros(*values.shape, points + 1, dtype=values.dtype, device=values.device)
    basis[..., 0] = (weight / torch.where(total > 0, total, 1)).sqrt()
    jacobi = torch.zeros(*values.shape[:-1], points, points, dtype=values.dtype, device=values.device)
    for j in range(points):
        new = (values * basis[..., j])[..., None]
        jacobi[..., : j + 1, j] = (basis[..., : j + 1].mT @ new)[..., 0]
        for _ in range(2):  # once is not enough against rounding
            new = new - basis @ (basis.mT @ new)
        norm = new.norm(dim=-2)
        basis[..., j + 1] = torch.where(norm > tiny, new[..., 0] / norm, zero)  # 0: the measure has no more points
    value, vector = torch.linalg.eigh(jacobi, UPLO="U")
    return value, total * vector[..., 0, :] ** 2


@torch.inference_mode()  # an eighth of the time, against no_grad
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
    at, done = torch.stack([x, y]), torch.zeros_like(x, dtype=torch.bool)
    x_low, x_high = torch.full_like(x, -80), torch.full_like(x, 60)
    y_low, y_high = torch.full_like(x, -torch.inf), torch.full_like(x, torch.inf)
    level, logarithm = torch.logit(alpha), torch.log(alpha)
    zero, infinity = x.new_tensor(0.0), x.new_tensor(torch.inf)  # a number in `where` would be made anew each time

    found, reached = torch.empty_like(at), torch.empty_like(done)
    live = torch.arange(len(x), device=x.device)  # the points still being worked on, and some that are done
    for _ in range(MAX_STEPS):
        x, y = at
        g, e, g_x, g_y, e_x, e_y = _moments(kinds, x, y, rule)
        total, odds = noise_var + e, g * (1 - g)  # the slopes of F1 are g_x/odds and g_y/odds
        f1, f2 = torch.logit(g) - level, torch.log(total) - logarithm - x
        off, slant = odds * f1 / g_y, g_x / g_y  # the ridge lies at y − off, and its slope is −slant
        ridge, slope = f2 - e_y / total * off, (e_x - e_y * slant) / total - 1  # F2 and its slope, carried to the ridge
        dx = torch.where(slope < 0, -ridge / slope, 4 * ridge.sign())
        last = torch.stack([dx, -(off + slant * dx)])
        now = ((last.abs() < rule.tolerance).all(0) | (x < RECOVERED) & (f1.abs() < 1)) & ~done
        last = at + torch.where(now, last.clamp(-rule.tolerance, rule.tolerance), zero)

        near = off.abs() <= 1
        sure = near & (ridge.abs() > f1.abs())  # of the sign of F2 on the ridge
        x_low = torch.where(sure & (ridge > 0), x, x_low)
        x_high = torch.where(sure & (ridge < 0), x, x_high)
        moving = sure | (near & (dx.abs() < 2))
        dx = dx.clamp(-4, 4)
        room = torch.where(dx < 0, x_low, x_high) - x
        dx = torch.where((room - dx) * dx > 0, dx, room / 2)  # not through the wall: half way
        dx = torch.where(moving, dx, zero)
        y_low, y_high = torch.where(f1 > 0, y, y_low), torch.where(f1 > 0, y_high, y)
        new = y - (off + slant * dx).clamp(-4, 4)
        middle = (y_low + y_high) / 2
        outside = ~moving & ((new <= y_low) | (new >= y_high)) & (middle.abs() < torch.inf)
        y_low = torch.where(moving, -infinity, y_low)  # the bracket was for the old x
        y_high = torch.where(moving, infinity, y_high)

        done |= now
        at = torch.where(done, last, torch.stack([x + dx, torch.where(outside, middle, new)]))
        left = int((~done).sum())
        if left <= len(live) / 2:  # dropping some costs as much as a few of them more
            found[:, live], reached[live], keep = at, done, ~done
            if not left:
                break
            live, done, kinds = live[keep], done[keep], kinds.at(keep)
            numbers = torch.stack([x_low, x_high, y_low, y_high, alpha, noise_var, level, logarithm])[:, keep]
            at, (x_low, x_high, y_low, y_high, alpha, noise_var, level, logarithm) = at[:, keep], numbers
    found[:, live], reached[live] = at, done
    return *found, reached


def _moments(kinds: _Kinds, x: Tensor, y: Tensor, rule: _Rule) -> tuple[Tensor, ...]:
    """g = E prox′, e = E(β̂ − β*)² at ω² = eˣ, τ = e^y, and ∂g/∂x, ∂g/∂y, ∂e/∂x, ∂e/∂y; all (points,)."""
    at = _quadrature(kinds, (x / 2).exp(), y.exp(), rule)
    inverse = at.h.reciprocal()
    follow = at.stretch * inverse  # prox′
    lag = inverse * at.b  # 1 − prox′
    bent = inverse.mul_(lag).mul_(at.beta)  # consumes `inverse`
    pull = at.err * follow

    def mean(values: Tensor) -> Tensor:
        return values.mul_(at.weight).sum((1, 2))  # consumes `values`

    g_y = mean(torch.addcmul(follow, bent, at.t).mul_(lag)).neg_()
    g_x = mean(bent.mul_(at.noise).div_(at.h)) / 2
    e_x, e_y = mean(at.noise.mul_(pull)), mean(pull.mul_(at.bt)) * -2
    return mean(follow), mean(at.err.square()), g_x, g_y, e_x, e_y


class _Nodes(NamedTuple):
    """Values at the nodes of the quadrature, (points, panels, nodes) or broadcasting to it; A, B, t as in ``prox``."""

    weight: Tensor  # share of the kind × probability; sums to 1 over panels and nodes
    star: Tensor  # β*
    t: Tensor
    beta: Tensor  # β̂ = A·sinh t
    stretch: Tensor  # A·cosh t
    b: Tensor
    h: Tensor  # A·cosh t + B
    bt: Tensor  # B·t
    err: Tensor  # β̂ − β*
    noise: Tensor  # ωz


def _quadrature(kinds: _Kinds, omega: Tensor, tau: Tensor, rule: _Rule) -> _Nodes:
    """Gauss–Legendre in t in place of z: z = (A·sinh t + B·t − β*)/ω is smooth in t, while β̂(z) has a kink for √k → 0.

    Where the noise is small against β* its bulk is narrow in t and its tail long (up to t = −60): two panels, cut at
    z = −2.5. Each panel gets its exact share of the Gaussian, so the weights sum to 1 however coarse the rule is.
    """
    omega, b = omega[:, None], tau[:, None] / 2
    spikes, many = slice(kinds.zeros, None), kinds.star.shape[1]
    a1, star1, share1 = kinds.half_k[:, spikes], kinds.star[:, spikes], kinds.share[:, spikes]
    a, star = torch.cat([kinds.half_k, a1, a1], 1), torch.cat([kinds.star, star1], 1)
    # Ends of panels: the upper ones of half lines of the kinds with β* = 0, of bulks and of tails; the lower of tails.
    reach = rule.reach * omega
    r = torch.cat([kinds.star + reach, (star1 - KNEE * omega).clamp_min_(0), star1 - reach], 1)
    ends, panels = _invert(r, a, b, steps=4), star.shape[1]
    knee = ends[:, many:panels]
    z = (a1 * torch.sinh(knee) + b * knee - star1) / omega  # of the knee used, an upper bound of the one wanted
    tail = share1 * torch.special.ndtr(z)
    share = torch.cat([kinds.share[:, : kinds.zeros], share1 - tail, tail], 1)[..., None]
    low = torch.nn.functional.pad(ends[:, many:], (kinds.zeros, 0))[..., None]
    a, star, b = a[:, :panels, None], star[..., None], b[..., None]

    node, weight = (torch.as_tensor(v, dtype=a.dtype, device=a.device) for v in LEGENDRE[rule.nodes])
    t = torch.addcmul(low, ends[:, :panels, None] - low, node)
    grown = t.exp().mul_(a / 2)
    shrunk = grown.reciprocal().mul_(a * a / 4)
    beta, stretch = grown - shrunk, grown.add_(shrunk)
    h, bt, err = stretch + b, b * t, beta - star
    noise = err + bt
    weight = noise.square().mul_(-0.5 / omega[..., None] ** 2).exp_().mul_(h).mul_(weight)
    weight.mul_(share / weight.sum(-1, keepdim=True))
    return _Nodes(weight, star, t, beta, stretch, b, h, bt, err, noise)


def _require_task(task: TaskPair) -> None:
    if not isinstance(task, TaskPair):
        raise TypeError(f"task must be a TaskPair, got {type(task).__name__}")


def _require_law_of(task: TaskPair, c: Tensor, law: PretrainingLaw) -> None:
    tiny = 16 * max(torch.finfo(v.dtype).eps for v in (law.weight, law.c, c))
    whole = (law.weight >= 0).all(-1) & ((law.weight.sum(-1) - 1).abs() <= 1e-3) & law.beta_pt.isfinite().all(-1)
    if not whole.all():
        raise ValueError("alpha_pt must be a law as pretraining_law gives it, got one whose weights do not sum to 1")
    for name, there, here in (("rho_pt", law.beta_star.amax(-1) ** -2, task.rho_pt), ("c", law.c, c)):
        off = (there - here).abs() > tiny * there
        if off.any():
            got, want = (torch.as_tensor(v).expand(off.shape)[off][0] for v in (there, here))
            raise ValueError(f"alpha_pt must be a law for {name} = {want:g}, got one for {name} = {got:g}")


def _rule(accuracy: str) -> _Rule:
    if not isinstance(accuracy, str) or accuracy not in ACCURACY:
        raise ValueError(f"accuracy must be one of {', '.join(ACCURACY)}, got {accuracy!r}")
    return ACCURACY[accuracy]


def _admit(**named: float | Tensor) -> tuple[torch.dtype, torch.Size, list[Tensor]]:
    """The arguments inside their domains, in float64 where the device has it; their own dtype; their common shape."""
    values = admit(**named)
    named = dict(zip(named, values, strict=True))
    shape = require_broadcast(**named)
    if 0 in shape:
        raise ValueError(
            f"there is nothing to solve: got {', '.join(f'{k} {tuple(v.shape)}' for k, v in named.items())}"
        )
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
    """The fields (points, …) of a result as (*shape, …), in the dtype of the arguments.

    Copies: what was made in inference mode could not be used where a graph is built.
    """
    values = {f.name: getattr(found, f.name).clone() for f in fields(found)}
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
    require_whole(1, dim=dim)
    require_whole(2, trials=trials)
    require_generator(generator)
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
