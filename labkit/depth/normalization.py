"""Root-mean-square and layer normalization with eps: how much they stretch and bend what passes through.

N(u) = u/s(u) with s(u) = √(‖u‖²/d + eps); LayerNorm is N after C = I − 11ᵀ/d, which takes the mean away. With the
extra coordinate √(d·eps), u' = (u, √(d·eps)) has norm √d·s(u) and N(u) is √d·u'/‖u'‖ without that coordinate: N is
a projection onto a sphere, and all below follows. C stretches nothing, so every bound holds for LayerNorm too, with
s of Cu. A gain γ after the norm multiplies every constant by max|γ|. Derived here.
"""

import math
from numbers import Real

import torch
from torch import Tensor

from labkit.validate import as_tensors, refuse, require_broadcast, require_finite, require_range

NORMS = ("rms", "layer")
CONSTANT = 4  # units of rounding of max|u|: entries no further apart are those of a constant vector


def rms_norm(u: Tensor, eps: float = 1e-5) -> Tensor:
    """N(u) = u/√(mean u² + eps) over the last axis of u (..., d) → (..., d), of norm below √d for eps > 0.

    Raises ValueError for eps < 0, for a scalar or NaN in u, and for u = 0 with eps = 0.

    >>> rms_norm(torch.tensor([3.0, 4.0]), eps=0.0)
    tensor([0.8485, 1.1314])
    """
    u, eps = _admit(u, eps)
    return u / _scale(u, eps)


def layer_norm(u: Tensor, eps: float = 1e-5) -> Tensor:
    """N(u − mean u) over the last axis of u (..., d) → (..., d): ``torch.nn.functional.layer_norm``.

    Raises ValueError as `rms_norm` does, where u − mean u takes the place of u: with eps = 0 for a u that is constant
    up to rounding, which would come out as ±1 and mean nothing.

    >>> layer_norm(torch.tensor([1.0, 2.0, 3.0]), eps=0.0)
    tensor([-1.2247,  0.0000,  1.2247])
    """
    u, eps = _admit(u, eps, "layer")
    return u / _scale(u, eps)


def rms(u: Tensor) -> Tensor:
    """√(mean u²) over the last axis: (..., d) → (...). Raises ValueError for a scalar, no entries and NaN.

    >>> rms(torch.tensor([3.0, 4.0]))
    tensor(3.5355)
    """
    u = _vectors("u", u)
    return _scale(u, u.new_zeros(()))[..., 0]


def jacobian(u: Tensor, eps: float = 1e-5, norm: str = "rms") -> Tensor:
    """∂N(u)/∂u = (I − uuᵀ/(d s²))/s at u (..., d) → (..., d, d); for ``norm="layer"`` that at Cu, times C.

    Raises ValueError as `rms_norm` does, and for another norm.

    >>> jacobian(torch.tensor([2.0, 0.0]), eps=2.0)  # s = 2
    tensor([[0.2500, 0.0000],
            [0.0000, 0.5000]])
    """
    u, eps = _admit(u, eps, norm)
    d, s = u.shape[-1], _scale(u, eps)
    eye, z = torch.eye(d, dtype=u.dtype, device=u.device), u / s
    slope = (eye - z[..., None] * z[..., None, :] / d) / s[..., None]
    return slope @ (eye - 1 / d) if norm == "layer" else slope


def singular_values(u: Tensor, eps: float = 1e-5, norm: str = "rms") -> tuple[Tensor, Tensor]:
    """Of the `jacobian` at u (..., d): (1/s across u, d − 1 times; eps/s³ along u), each (...).

    LayerNorm has 1/s only d − 2 times, and 0 along the ones. Raises ValueError as `jacobian` does.

    >>> across, along = singular_values(torch.tensor([2.0, 0.0]), eps=2.0)  # s = 2
    >>> across.item(), along.item()
    (0.5, 0.25)
    """
    u, eps = _admit(u, eps, norm)
    s = _scale(u, eps)[..., 0]
    return 1 / s, eps / s / s / s  # s³ may be too small or large for a float where the quotient is not


def lipschitz_bound(eps: float | Tensor, min_rms: float | Tensor = 0.0, gain: float | Tensor = 1.0) -> Tensor:
    """‖N(u) − N(v)‖ ≤ gain/√(min_rms² + eps)·‖u − v‖ for all u, v with rms ≥ min_rms; arguments broadcast.

    The set of these u is not convex, so that a bound on the Jacobian would not do; `pair_bound` gives it. With
    min_rms = 0 it is 1/√eps, the price of knowing nothing about the input; inf when eps = 0 too.

    gain: the largest |γ_i| of a learned gain. Raises ValueError for a negative argument.

    >>> lipschitz_bound(1e-4), lipschitz_bound(1e-4, min_rms=1.0)
    (tensor(100., dtype=torch.float64), tensor(1.0000, dtype=torch.float64))
    """
    eps, min_rms, gain = as_tensors(eps=eps, min_rms=min_rms, gain=gain)
    require_range(0, math.inf, eps=eps, min_rms=min_rms, gain=gain)
    require_broadcast(eps=eps, min_rms=min_rms, gain=gain)
    s = _scale(min_rms[..., None], eps[..., None])[..., 0]
    return torch.where(gain > 0, gain / s, gain + 0 * s)


def pair_bound(u: Tensor, v: Tensor, eps: float = 1e-5, norm: str = "rms") -> Tensor:
    """‖N(u) − N(v)‖ ≤ ‖u − v‖/√(s(u)·s(v)): that factor for u, v (..., d), which broadcast, → (...).

    Because ‖a/‖a‖ − b/‖b‖‖²·‖a‖‖b‖ = 2‖a‖‖b‖ − 2a·b ≤ ‖a − b‖². Raises ValueError as `jacobian` does.

    >>> pair_bound(torch.tensor([1.0, 1.0]), torch.tensor([4.0, 4.0]), eps=0.0)
    tensor(0.5000)
    """
    (u, eps), (v, _) = _admit(u, eps, norm), _admit(v, eps, norm, "v")
    require_broadcast(u=u, v=v)
    return (_scale(u, eps).rsqrt() * _scale(v, eps).rsqrt())[..., 0]


def curvature_bound(u: Tensor, eps: float = 1e-5, norm: str = "rms") -> Tensor:
    """‖D²N(u)[v, v]‖ ≤ 2/(√(3d)·s²)·‖v‖²: that factor at u (..., d) → (...).

    For eps = 0 the left side is √((1 − c²)(1 + 3c²)/d)/s²·‖v‖², c the cosine between u and v: largest at c² = 1/3,
    where the bound is met. Raises ValueError as `jacobian` does.

    >>> curvature_bound(torch.ones(3), eps=0.0)
    tensor(0.6667)
    """
    u, eps = _admit(u, eps, norm)
    s = _scale(u, eps)[..., 0]
    return 2 / math.sqrt(3 * u.shape[-1]) / s / s


def normalized(u: Tensor, eps: float, norm: str = "rms", dim: int = -1) -> Tensor:
    """`rms_norm` or `layer_norm` over any axis and without checks, for the inside of a network.

    >>> normalized(torch.tensor([3.0, 4.0]), eps=0.0)
    tensor([0.8485, 1.1314])
    """
    if norm == "layer":
        u = u - u.mean(dim, keepdim=True)
    square = torch.linalg.vecdot(u, u, dim=dim).unsqueeze(dim)  # its backward pass is lighter than that of a mean
    return u * (square / u.shape[dim] + eps).rsqrt()


def require_norm(norm: str) -> None:
    """Refuse what is no norm."""
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")


def require_eps(eps: float) -> None:
    """Refuse eps < 0 and what is no number."""
    if not isinstance(eps, Real) or isinstance(eps, bool):
        raise TypeError(f"eps must be a number, got {eps!r}")
    if not 0 <= eps < math.inf:
        raise ValueError(f"eps must lie in [0, inf), got {eps}")


def _scale(u: Tensor, eps: Tensor) -> Tensor:
    """s(u) (..., 1), the squares in units of the largest entry: no float is too small or too large for that."""
    unit = torch.maximum(u.detach().abs().amax(-1, keepdim=True), eps.detach().sqrt())
    unit = torch.where(unit > 0, unit, 1)
    return unit * ((u / unit).square().mean(-1, keepdim=True) + eps / unit / unit).sqrt()


def _vectors(name: str, u: Tensor) -> Tensor:
    (u,) = as_tensors(**{name: u})
    if u.dim() < 1 or 0 in u.shape:
        raise ValueError(f"{name} must be (..., d) and not empty, got {tuple(u.shape)}")
    require_finite(**{name: u})
    return u


def _admit(u: Tensor, eps: float, norm: str = "rms", name: str = "u") -> tuple[Tensor, Tensor]:
    """u, centered for LayerNorm, and eps, as tensors."""
    require_norm(norm)
    require_eps(eps)
    u = _vectors(name, u)
    given, eps = f"when eps = {float(eps):g}", u.new_tensor(float(eps))
    largest, limit = u.detach().abs().amax(-1), torch.finfo(u.dtype).max / (2 * u.shape[-1])
    refuse(
        f"largest |entry| of {name}", largest, largest <= limit, f"must be <= {limit:.3g}, for a sum over the entries"
    )
    if norm == "rms":
        refuse(f"largest |entry| of {name}", largest, (largest > 0) | (eps > 0), f"must be > 0 {given}")
        return u, eps
    spread = u.detach().amax(-1) - u.detach().amin(-1)
    beyond = spread > CONSTANT * torch.finfo(u.dtype).eps * largest
    rule = f"must be > 0, beyond rounding, {given}: a constant vector minus its mean has no direction"
    refuse(f"spread of {name}", spread, beyond | (eps > 0), rule)
    u = u - u[..., :1].detach()  # exactly 0 where u is constant, and as exact as can be where it nearly is
    return u - u.mean(-1, keepdim=True), eps
