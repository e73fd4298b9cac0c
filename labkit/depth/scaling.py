"""Power laws that follow once an exponent is assumed, and the deepest model that still pays.

None of these laws predicts an exponent: each takes one in and says what it implies for the excess risk
E_D = L(f_D) − L_∞ of a network that grew to D blocks one by one. α is ``risk_exponent``.

====================  ================================================  =============================================
gradient domination   the next block gains ≥ k E_D^{1 + 1/α}            ``dominated_excess``: E_D ≤ O(D^{−α})
signal decay          it gains c D^{−(1 + α)}                           ``signal_excess``: E_D ~ (c/α) D^{−α}
observability         it works only while its signal can be seen        ``visible_depth``: a depth that grows with n
data law              depth D costs C·width·√(D/n), or C·width·D/n      ``best_depth``, ``data_risk``
====================  ================================================  =============================================

The reading of arXiv 2605.08297 is ours: its own Assumptions G and G′ may differ. Everything here is derived here.
"""

import math

import torch
from torch import Tensor

from labkit.validate import as_tensors, refuse, require_broadcast, require_finite, require_positive, require_range

STEEP = 1e5  # α from which the first gain is all: the second is (1 + 1/D)^{−α} of it
RATES = ("slow", "fast")  # the cost of depth as √(D/n), uniform bounds, or as D/n, parameters counted


# ---- gradient domination


def dominated_excess(
    depth: float | Tensor, initial: float | Tensor, gain: float | Tensor, risk_exponent: float | Tensor
) -> Tensor:
    """(E_0^{−1/α} + kD/α)^{−α} ≥ E_D when each block gains at least k E^{1 + 1/α}; all arguments broadcast.

    Why: E^{−1/α} is convex and decreasing, so a step of k E^{1 + 1/α} adds at least k/α to it.

    Arguments
        depth: D ≥ 0, blocks added; initial: E_0 > 0
        gain: k in [0, E_0^{−1/α}]; beyond, the first block would gain more than there is, and is refused
        risk_exponent: α > 0

    >>> dominated_excess(torch.tensor([0.0, 10.0, 1000.0]), initial=1.0, gain=0.5, risk_exponent=1.0)
    tensor([1.0000, 0.1667, 0.0020])
    """
    depth, initial, gain, alpha = _admit_gain(depth=depth, initial=initial, gain=gain, risk_exponent=risk_exponent)
    require_range(0, math.inf, depth=depth)
    share = gain * initial ** (1 / alpha)  # of E_0 that the first block gains, in [0, 1]
    return initial * (1 + torch.where(gain > 0, share, 0) * depth / alpha) ** -alpha


def dominated_recursion(
    steps: int, initial: float | Tensor, gain: float | Tensor, risk_exponent: float | Tensor
) -> Tensor:
    """E_{D+1} = E_D − k E_D^{1 + 1/α} itself, D = 0 … steps on the last axis: (..., steps + 1).

    >>> dominated_recursion(2, initial=1.0, gain=0.5, risk_exponent=1.0)  # 1, 1 − 1/2, 1/2 − 1/8
    tensor([1.0000, 0.5000, 0.3750], dtype=torch.float64)
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise ValueError(f"steps must be a whole number >= 0, got {steps!r}")
    initial, gain, alpha = _admit_gain(initial=initial, gain=gain, risk_exponent=risk_exponent)
    excess, path = initial.expand(require_broadcast(initial=initial, gain=gain, risk_exponent=alpha)), []
    for _ in range(steps):
        path.append(excess)
        excess = excess - gain * excess ** (1 + 1 / alpha)
    return torch.stack([*path, excess], -1)


def _admit_gain(**named: float | Tensor) -> tuple[Tensor, ...]:
    values = dict(zip(named, as_tensors(**named), strict=True))
    require_positive(initial=values["initial"], risk_exponent=values["risk_exponent"])
    require_range(0, math.inf, gain=values["gain"])
    require_broadcast(**values)
    ceiling = values["initial"] ** (-1 / values["risk_exponent"])
    allowed = values["gain"] <= ceiling
    refuse(
        "gain",
        values["gain"].expand(allowed.shape),
        allowed,
        "must be <= initial^(-1/risk_exponent): no block gains more than the excess",
    )
    return tuple(values.values())


# ---- signal decay and observability


def signal(
    depth: float | Tensor, amplitude: float | Tensor, risk_exponent: float | Tensor, curvature: float | Tensor = 1.0
) -> Tensor:
    """G_D = √(c/κ) D^{−(1 + α)/2}: the first-order slope whose gain κ G_D² is c D^{−(1 + α)}.

    Slope exponent (1 + α)/2, risk exponent α. ``amplitude`` is c > 0, ``curvature`` κ > 0 (1/(2β S) of a step along a
    direction of energy S).

    >>> signal(torch.tensor([1.0, 4.0]), amplitude=1.0, risk_exponent=1.0)
    tensor([1.0000, 0.2500])
    """
    depth, c, alpha, kappa = as_tensors(
        depth=depth, amplitude=amplitude, risk_exponent=risk_exponent, curvature=curvature
    )
    named = {"depth": depth, "amplitude": c, "risk_exponent": alpha, "curvature": kappa}
    require_positive(**named)
    require_broadcast(**named)
    return c.sqrt() / kappa.sqrt() * depth ** (-(1 + alpha) / 2)


def signal_excess(depth: float | Tensor, amplitude: float | Tensor, risk_exponent: float | Tensor) -> Tensor:
    """E_D = Σ_{j ≥ D} c j^{−1−α} = c ζ(1 + α, D), all gains to come realized; (c/α) D^{−α} ≤ E_D ≤ (c/α) (D − 1)^{−α}.

    Raises ValueError for depth < 1, amplitude or risk_exponent ≤ 0.

    >>> signal_excess(1.0, amplitude=1.0, risk_exponent=1.0)  # π²/6
    tensor(1.6449, dtype=torch.float64)
    """
    depth, c, alpha = as_tensors(depth=depth, amplitude=amplitude, risk_exponent=risk_exponent)
    require_range(1, math.inf, depth=depth)
    require_positive(amplitude=c, risk_exponent=alpha)
    require_broadcast(depth=depth, amplitude=c, risk_exponent=alpha)
    small = torch.finfo(alpha.dtype).eps ** (1 / 3)  # below, 1 + α forgets more of α than its series leaves out
    near_one = depth**-alpha * (1 / alpha + depth.log() - torch.digamma(depth))
    sums = torch.special.zeta(1 + alpha.clamp(small, STEEP), depth)
    return c * torch.where(alpha < small, near_one, torch.where(alpha > STEEP, depth ** -(1 + alpha), sums))


def visible_depth(
    n: float | Tensor,
    width: float | Tensor,
    amplitude: float | Tensor,
    risk_exponent: float | Tensor,
    noise_std: float | Tensor,
    width_exponent: float | Tensor = 0.0,
    curvature: float | Tensor = 1.0,
    z: float | Tensor = 1.645,
) -> Tensor:
    """D_vis = (c n w^γ/(κ τ² z²))^{1/(1 + α)}: the depth where √n w^{γ/2} G_D/τ falls to z standard errors.

    With `signal_excess` the risk is then ∝ (n w^γ)^{−α/(1 + α)}.

    Arguments (they broadcast)
        amplitude c, risk_exponent α, curvature κ: those of `signal`; noise_std: τ, of one coordinate
        width_exponent: γ: 1 where the effective rank of the activation gradients grows as the width, 0 where it stays
        z: standard errors that count as seen, default 95 %, one-sided

    >>> visible_depth(torch.tensor([1e3, 1e5]), width=16.0, amplitude=1.0, risk_exponent=1.0, noise_std=1.0)
    tensor([ 19.2236, 192.2357])
    """
    n, width, c, alpha, tau, gamma, kappa, z = as_tensors(
        n=n, width=width, amplitude=amplitude, risk_exponent=risk_exponent, noise_std=noise_std,
        width_exponent=width_exponent, curvature=curvature, z=z
    )  # fmt: skip
    named = {
        "n": n,
        "width": width,
        "amplitude": c,
        "risk_exponent": alpha,
        "noise_std": tau,
        "curvature": kappa,
        "z": z,
    }
    require_positive(**named)
    require_finite(width_exponent=gamma)
    require_broadcast(**named, width_exponent=gamma)
    seen = c.sqrt() * (n.sqrt() / tau) / (kappa.sqrt() * z) * width ** (gamma / 2)  # roots first: squares overflow
    return seen ** (2 / (1 + alpha))


# ---- the data law


def data_risk(
    depth: float | Tensor,
    n: float | Tensor,
    width: float | Tensor,
    amplitude: float | Tensor,
    risk_exponent: float | Tensor,
    cost: float | Tensor,
    rate: str = "slow",
) -> Tensor:
    """A D^{−α} + C w √(D/n), or + C w D/n for ``rate="fast"``: what depth is worth and what it costs.

    ``amplitude`` A, ``cost`` C. All but ``rate`` broadcast; all positive.

    >>> data_risk(torch.tensor([1.0, 4.0]), n=1e4, width=16.0, amplitude=1.0, risk_exponent=1.0, cost=0.5)
    tensor([1.0800, 0.4100])
    """
    depth, n, width, a, alpha, cost = _admit_law(
        rate, depth=depth, n=n, width=width, amplitude=amplitude, risk_exponent=risk_exponent, cost=cost
    )
    share = depth / n
    return a * depth**-alpha + cost * width * (share.sqrt() if rate == "slow" else share)


def best_depth(
    n: float | Tensor,
    width: float | Tensor,
    amplitude: float | Tensor,
    risk_exponent: float | Tensor,
    cost: float | Tensor,
    rate: str = "slow",
) -> Tensor:
    """D*, real, where `data_risk` is least: (2αA√n/(Cw))^{1/(α + 1/2)}, "fast" (αA n/(Cw))^{1/(1 + α)}.

    D* ∝ n^{1/(2α + 1)} and the risk ∝ n^{−α/(2α + 1)}; "fast": n^{1/(1 + α)} and n^{−α/(1 + α)}.

    >>> best_depth(torch.tensor([1e4, 1e7]), width=16.0, amplitude=1.0, risk_exponent=1.0, cost=0.5)
    tensor([ 8.5499, 85.4988])
    """
    n, width, a, alpha, cost = _admit_law(
        rate, n=n, width=width, amplitude=amplitude, risk_exponent=risk_exponent, cost=cost
    )
    if rate == "slow":
        return (2 * alpha * (a / cost) * (n.sqrt() / width)) ** (1 / (alpha + 0.5))
    return (alpha * (a / cost) * (n / width)) ** (1 / (1 + alpha))


def data_exponent(risk_exponent: float | Tensor, rate: str = "slow") -> Tensor:
    """The exponent of the least risk in n: −α/(2α + 1), "fast" −α/(1 + α).

    >>> data_exponent(1.0), data_exponent(1.0, "fast")
    (tensor(-0.3333, dtype=torch.float64), tensor(-0.5000, dtype=torch.float64))
    """
    (alpha,) = _admit_law(rate, risk_exponent=risk_exponent)
    return -alpha / (2 * alpha + 1) if rate == "slow" else -alpha / (1 + alpha)


def _admit_law(rate: str, **named: float | Tensor) -> tuple[Tensor, ...]:
    if rate not in RATES:
        raise ValueError(f"rate must be one of {', '.join(RATES)}, got {rate!r}")
    values = dict(zip(named, as_tensors(**named), strict=True))
    require_positive(**values)
    require_broadcast(**values)
    return tuple(values.values())


# ---- from measured curves


def deepest_useful(marginal_gain: Tensor, marginal_cost: float | Tensor) -> Tensor:
    """How many insertions pay, int64 (...): those before the first whose gain is not above its cost.

    ``marginal_gain`` (..., step) and ``marginal_cost``, which broadcasts with it: what insertion 1, 2, … lowers the
    training-side risk by, and what it adds to the gap. All of them pay: the number of steps.

    Raises ValueError for NaN, or no steps.

    >>> deepest_useful(torch.tensor([0.10, 0.04, 0.02, 0.03]), 0.025)
    tensor(2)
    """
    gain, cost = as_tensors(marginal_gain=marginal_gain, marginal_cost=marginal_cost)
    require_finite(marginal_gain=gain, marginal_cost=cost)
    require_broadcast(marginal_gain=gain, marginal_cost=cost)
    if not gain.dim() or not gain.shape[-1]:
        raise ValueError(f"marginal_gain must have a last axis of at least one step, got {tuple(gain.shape)}")
    return (gain > cost).cumprod(-1).sum(-1)
