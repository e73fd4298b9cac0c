"""The penalty that an initialization puts on each coefficient, and how pretraining rewrites it.

Gradient flow on a diagonal linear network from β(0) = 0 ends at the interpolator of least Σᵢ q(βᵢ; √kᵢ). The
shape parameter √k is all that is left of the initialization: coefficients below √k pay a ridge price, those
above it a lasso price. Code carries √k (``root_k``), never k, whose useful values reach down to 1e-24.

Definitions of c, λ, γ, q and the regimes: Anguita et al. 2026, arXiv 2602.20062. Formulas below: derived
here. Every function takes tensors or numbers, broadcasts, keeps dtype and device, is differentiable, and
refuses bad input with a ValueError (TypeError for integer tensors).
"""

import numpy as np
import torch
from torch import Tensor

from labkit.validate import (
    as_tensors,
    refuse,
    require_broadcast,
    require_finite,
    require_positive,
    require_range,
)

REGIMES = ("I", "II", "III", "IV", "between")
CLEAR = 0.8  # a regime is named when its barycentric weight reaches this


def q(beta: float | Tensor, root_k: float | Tensor) -> Tensor:
    """Penalty of one coefficient: q = √k/4 · (1 − √(1+u²) + u·asinh u), u = 2β/√k.

    Even, strictly convex, q(0) = 0. Why this one: along the flow ½·asinh(u) stays in the range of Xᵀ, and
    that is the KKT condition of min Σ q(βᵢ) subject to Xβ = y.

    >>> q(torch.tensor([0.0, 1.0]), root_k=2.0)
    tensor([0.0000, 0.2336])
    """
    beta, root_k = _elementwise(beta=beta, root_k=root_k)
    u = 2 * beta / root_k
    return root_k / 4 * u * (torch.asinh(u) - u / (1 + _hypot1(u)))  # 1 − √(1+u²) would cancel for small u


def q_prime(beta: float | Tensor, root_k: float | Tensor) -> Tensor:
    """Marginal price of a coefficient: q′ = ½·asinh(2β/√k).

    >>> q_prime(1.0, root_k=2.0)
    tensor(0.4407, dtype=torch.float64)
    """
    beta, root_k = _elementwise(beta=beta, root_k=root_k)
    return torch.asinh(2 * beta / root_k) / 2


def q_prime_inverse(s: float | Tensor, root_k: float | Tensor) -> Tensor:
    """The coefficient whose marginal price is s: β = √k/2 · sinh 2s (infinite when sinh overflows).

    >>> q_prime_inverse(q_prime(3.0, root_k=0.1), root_k=0.1)
    tensor(3., dtype=torch.float64)
    """
    s, root_k = _elementwise(s=s, root_k=root_k)
    return root_k / 2 * torch.sinh(2 * s)


def q_ridge(beta: float | Tensor, root_k: float | Tensor) -> Tensor:
    """What q is for |β| ≪ √k: β²/(2√k), a ridge with weight 1/√k.

    >>> q(0.01, root_k=10.0) / q_ridge(0.01, root_k=10.0)
    tensor(1.0000, dtype=torch.float64)
    """
    beta, root_k = _elementwise(beta=beta, root_k=root_k)
    return beta**2 / (2 * root_k)


def q_lasso(beta: float | Tensor, root_k: float | Tensor) -> Tensor:
    """What q is for |β| ≫ √k: |β|/2 · (ln(4|β|/√k) − 1) + √k/4, a lasso up to the logarithm.

    >>> q(10.0, root_k=0.01) / q_lasso(10.0, root_k=0.01)
    tensor(1.0000, dtype=torch.float64)
    """
    beta, root_k = _elementwise(beta=beta, root_k=root_k)
    size = beta.abs()
    safe = torch.where(size > 0, size, 1)  # keeps ln(0) out of the value and out of the gradient
    return size / 2 * (torch.log(4 * safe / root_k) - 1) + root_k / 4


def root_k_init(
    w_plus: float | Tensor, v_plus: float | Tensor, w_minus: float | Tensor, v_minus: float | Tensor
) -> Tensor:
    """√k of any initialization: k = AB = ‖θ‖⁴ − 4β², A = (w₊+v₊)² + (w₋−v₋)², B = (w₋+v₋)² + (w₊−v₊)².

    With β(0) = 0 it is the sum of the four squared weights of the coordinate, 2c after
    ``flow.initial_weights``: how they are split between layers and pathways does not matter. It is 0 where a
    coordinate cannot move (A or B 0).

    >>> root_k_init(1.0, 0.5, 1.0, 0.5)
    tensor(2.5000, dtype=torch.float64)
    """
    w_plus, v_plus, w_minus, v_minus = _elementwise(w_plus=w_plus, v_plus=v_plus, w_minus=w_minus, v_minus=v_minus)
    return _length(w_plus + v_plus, w_minus - v_minus) * _length(w_minus + v_minus, w_plus - v_plus)


def _length(x: Tensor, y: Tensor) -> Tensor:
    """√(x² + y²), with the derivative 0 where both are 0 (torch.hypot has NaN there)."""
    origin = (x == 0) & (y == 0)
    return torch.where(origin, 0, torch.hypot(torch.where(origin, 1, x), y))


def root_k_finetune(beta_pt: float | Tensor, c: float | Tensor, lam: float | Tensor, gamma: float | Tensor) -> Tensor:
    """√k of fine-tuning after pretraining reached β_PT: 2(1+λ)(c + √(c² + β_PT²)) + γ².

    Protocol (arXiv 2602.20062): pretrain from w² + v² = c, w² − v² = λc; then both pathways get the signed
    sum W = w₊ + w₋ as first layer and the constant γ/√2 as readout, so √k = 2W² + γ². λ < 0: the first layer
    starts smaller.

    Raises ValueError for λ = −1 with γ = 0: all re-initialized weights vanish, a saddle where nothing moves.

    >>> root_k_finetune(torch.tensor([0.0, 1.0]), c=1e-3, lam=-0.9, gamma=0.01)
    tensor([0.0005, 0.2003])
    """
    beta_pt, c, lam, gamma = _elementwise(beta_pt=beta_pt, c=c, lam=lam, gamma=gamma)
    root_k = 2 * (1 + lam) * (c + torch.hypot(c, beta_pt)) + gamma**2  # no division by c
    saddle = "must be > -1 where gamma = 0 (a saddle: all re-initialized weights are zero and nothing moves)"
    refuse("lam", lam.expand_as(root_k), root_k > 0, saddle)
    return root_k


def ell_order(beta_ft: float | Tensor, root_k: float | Tensor) -> Tensor:
    """The local exponent of the penalty: ℓ = ∂ ln q / ∂ ln|β_FT|.

    With u = 2β_FT/√k it is asinh u / (asinh u − u/(1+√(1+u²))): from 2 (ridge, u → 0: 2 − u²/6) to 1 (lasso),
    the latter only logarithmically: 1 + 1/(ln 2u − 1), so ℓ = 1.1 takes u ≈ 3·10⁴.

    >>> ell_order(torch.tensor([0.0, 1.0, 1e4]), root_k=1.0)
    tensor([2.0000, 1.7486, 1.1042])
    """
    beta_ft, root_k = _elementwise(beta_ft=beta_ft, root_k=root_k)
    u = 2 * beta_ft / root_k
    tiny = u.abs() < 1e-8  # there 2 − u²/6 is 2 to rounding, and the ratio tends to 0/0
    u = torch.where(tiny, 1, u)
    price = torch.asinh(u)
    return torch.where(tiny, 2, price / (price - u / (1 + _hypot1(u))))


def pretraining_dependence(
    beta_ft: float | Tensor,
    beta_pt: float | Tensor,
    c: float | Tensor,
    lam: float | Tensor,
    gamma: float | Tensor,
) -> Tensor:
    """How the price of a coefficient falls with its pretrained size: PD = ∂ ln q / ∂ ln|β_PT| = −(ℓ−1)·E.

    E = ∂ ln √k / ∂ ln|β_PT| = 2(1+λ)·β_PT²/√(c²+β_PT²) / √k, which is 0 at β_PT = 0. −1 < PD ≤ 0, and −PD ≤ ℓ
    − 1: full reuse (PD → −1) and the lasso limit (ℓ → 1) exclude each other.

    >>> pretraining_dependence(1.0, 1.0, c=1e-3, lam=0.0, gamma=0.01)
    tensor(-0.8859, dtype=torch.float64)
    """
    beta_ft, beta_pt, c, lam, gamma = _elementwise(beta_ft=beta_ft, beta_pt=beta_pt, c=c, lam=lam, gamma=gamma)
    root_k = root_k_finetune(beta_pt, c, lam, gamma)
    elasticity = 2 * (1 + lam) * beta_pt * (beta_pt / torch.hypot(c, beta_pt)) / root_k
    return -(ell_order(beta_ft, root_k) - 1) * elasticity


def regime_weights(ell: float | Tensor, pd: float | Tensor) -> Tensor:
    """Weights (…, 3) of (ℓ, PD) in the triangle I (1, 0), II (2, −1), III (2, 0): 2−ℓ, −PD, ℓ+PD−1.

    I: lasso, blind to pretraining; II: ridge, reuses pretrained features; III: ridge, blind. They sum to 1;
    negative values that rounding leaves are set to 0. A point outside the triangle is refused.

    >>> regime_weights(1.5, -0.5)
    tensor([0.5000, 0.5000, 0.0000], dtype=torch.float64)
    """
    ell, pd = _elementwise(ell=ell, pd=pd)
    slack = 16 * torch.finfo(ell.dtype).eps
    refuse("ell", ell, (ell >= 1 - slack) & (ell <= 2 + slack), "must lie in [1, 2]")
    refuse("pd", pd, (pd >= -1 - slack) & (pd <= slack), "must lie in [-1, 0]")
    refuse("ell + pd", ell + pd, ell + pd >= 1 - slack, "must lie in [1, 2]: no penalty has -pd > ell - 1")
    return torch.stack(torch.broadcast_tensors(2 - ell, -pd, ell + pd - 1), dim=-1).clamp_min(0)


def regime_name(weights: Tensor) -> str | list:
    """The regime that the weights (…, 3) name: "I", "II", "III", "IV" or "between".

    I, II or III when its weight is ≥ .8; else IV when ω_III < .2; else "between". IV is the edge from I to
    II: nearly lasso, yet reusing. A str for shape (3,), else nested lists of str.

    >>> regime_name(torch.tensor([[0.9, 0.1, 0.0], [0.5, 0.4, 0.1], [0.1, 0.2, 0.7]]))
    ['I', 'IV', 'between']
    """
    (weights,) = admit(weights=weights)
    if weights.shape[-1:] != (3,):
        raise ValueError(f"weights must be (..., 3) for I, II, III, got {tuple(weights.shape)}")
    largest, index = weights.max(dim=-1)
    index = torch.where(largest >= CLEAR, index, torch.where(weights[..., 2] < 1 - CLEAR, 3, 4))
    return np.array(REGIMES)[index.cpu().numpy()].tolist()


def admit(**named: float | Tensor) -> tuple[Tensor, ...]:
    """The arguments as tensors, inside the domain of their symbol: c, √k > 0, γ ≥ 0, |λ| ≤ 1, all finite."""
    values = as_tensors(**named)
    for name, value in zip(named, values, strict=True):
        if name in ("c", "root_k"):
            require_positive(**{name: value})
        elif name == "gamma":
            require_range(0, torch.inf, gamma=value)
        elif name == "lam":
            require_range(-1, 1, lam=value)
        else:
            require_finite(**{name: value})
    return values


def _elementwise(**named: float | Tensor) -> tuple[Tensor, ...]:
    values = admit(**named)
    require_broadcast(**dict(zip(named, values, strict=True)))
    return values


def _hypot1(u: Tensor) -> Tensor:
    return torch.hypot(torch.ones_like(u), u)  # √(1+u²) without overflow
