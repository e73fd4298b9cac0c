"""The baseline without depth: kernel ridge regression with a dot-product kernel of the label's full degree 2q.

A rotation-invariant kernel learns the part of degree ℓ only from n ~ d^ℓ samples, so it needs d^{2q} where the
layer-wise method needs d^q (arXiv 2605.14567). Two sides: on noiseless labels of degree 2q it interpolates *exactly*
once n exceeds the number of its features, C(d+2q, 2q), and it is not told that few directions matter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.recovery.hermite import DEGREES
from labkit.validate import as_tensors, require_finite, require_positive

RIDGES = (1e-6, 1e-3, 1e-1, 1.0, 10.0)  # without the large ones it overfits: its error exceeds Var y


def polynomial_kernel(x: Tensor, other: Tensor, degree: int) -> Tensor:
    """k(x, x′) = (1 + x·x′/d)^{2q} of x (n, dim), x′ (m, dim) → (n, m); degree is q of the lift, 1 … 4.

    >>> polynomial_kernel(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]]), degree=1)
    tensor([[2.2500]])
    """
    x, other = as_tensors(x=x, other=other)
    if degree not in DEGREES:
        raise ValueError(f"degree must be 1, 2, 3 or 4, got {degree}")
    if x.dim() != 2 or other.dim() != 2 or x.shape[1] != other.shape[1]:
        raise ValueError(f"x and other must be (n, dim), (m, dim), got {tuple(x.shape)}, {tuple(other.shape)}")
    return (x @ other.mT).div_(x.shape[1]).add_(1).pow_(2 * degree)


@dataclass(frozen=True)
class KernelRidge:
    """What `fit` found."""

    x: Tensor  # (n, dim), the samples that it stands on
    dual: Tensor  # (n,), α
    mean: Tensor  # (), of the labels
    degree: int
    ridge: float  # the chosen λ

    def predict(self, x: Tensor) -> Tensor:
        """Σ_μ α_μ k(x, x_μ) + the mean label, of x (m, dim) → (m,)."""
        return polynomial_kernel(x, self.x, self.degree) @ self.dual + self.mean


@torch.no_grad()
def fit(
    x: Tensor, y: Tensor, degree: int, x_val: Tensor, y_val: Tensor, ridges: Sequence[float] = RIDGES
) -> KernelRidge:
    """α = (K + λ·mean(diag K)·I)⁻¹(y − ȳ) for the λ of least error on (x_val, y_val); x (n, dim), y (n,).

    Validation labels without noise are generous to the kernel. n³/3 operations for each λ, 2n² numbers.
    Raises ValueError for shapes that do not fit, constant labels, λ ≤ 0, NaN; RuntimeError when float32 is not
    enough for the least λ.

    >>> x = torch.linspace(-1, 1, 9).double()[:, None]
    >>> fit(x, x[:, 0] ** 2, 1, x, x[:, 0] ** 2).ridge
    1e-06
    """
    x, y, x_val, y_val = as_tensors(x=x, y=y, x_val=x_val, y_val=y_val)
    for rows, labels, name in ((x, y, "x"), (x_val, y_val, "x_val")):
        if rows.dim() != 2 or 0 in rows.shape or labels.shape != rows.shape[:1]:
            got = f"{tuple(rows.shape)} and {tuple(labels.shape)}"
            raise ValueError(f"{name} must be (n, dim), not empty, and its labels (n,), got {got}")
    require_finite(x=x, y=y, x_val=x_val, y_val=y_val)
    if y.min() == y.max():
        raise ValueError(f"y must not be constant: labels that are all {y[0].item():g} tell nothing about x")
    if not ridges:
        raise ValueError("ridges must hold at least one value, got none")
    require_positive(ridges=torch.tensor([float(ridge) for ridge in ridges], device="cpu"))
    kernel, mean = polynomial_kernel(x, x, degree), y.mean()
    to_val, size = polynomial_kernel(x_val, x, degree), kernel.diagonal().mean()
    found = []
    for ridge in ridges:
        factor = kernel.clone()
        factor.diagonal().add_(ridge * size)
        factor, failed = torch.linalg.cholesky_ex(factor)
        if failed:
            raise RuntimeError(f"ridge {ridge:g} is too small for {x.dtype}: use x.double() or larger ridges")
        dual = torch.cholesky_solve((y - mean)[:, None], factor)[:, 0]
        error = float(((to_val @ dual + mean - y_val) ** 2).mean())
        found.append((error, ridge, dual))
    _, ridge, dual = min(found, key=lambda one: one[0])
    return KernelRidge(x, dual, mean, degree, float(ridge))


def samples_to_reach(n: Tensor, error: Tensor, level: float = 0.5) -> Tensor:
    """The n at which a curve first falls to ``level``, between sizes linear in (ln n, ln error); shape (...).

    n (size,) increasing, error (..., size) > 0. ∞ where a curve stays above; NaN where it starts below, for then the
    crossing was not seen.

    >>> samples_to_reach(torch.tensor([100.0, 200.0, 400.0]), torch.tensor([1.0, 0.5, 0.25]), level=0.7)
    tensor(142.857)
    """
    n, error = as_tensors(n=n, error=error)
    if n.dim() != 1 or error.shape[-1:] != n.shape or len(n) < 2 or (n.diff() <= 0).any():
        raise ValueError(
            f"n must be (size,), increasing, and error (..., size), got {n.tolist()} and {tuple(error.shape)}"
        )
    require_positive(n=n, error=error)
    if not 0 < level < math.inf:
        raise ValueError(f"level must be positive and finite, got {level}")
    below = error <= level
    after = below.int().argmax(-1, keepdim=True).clamp_min(1)  # the first size below
    (e0, e1), (n0, n1) = (
        (curve.gather(-1, after - 1)[..., 0], curve.gather(-1, after)[..., 0])
        for curve in (error.log(), n.log().expand_as(error))
    )
    found = (n0 + (n1 - n0) * (e0 - math.log(level)) / (e0 - e1)).exp()
    return torch.where(below[..., 0], torch.nan, torch.where(below.any(-1), found, torch.inf))
