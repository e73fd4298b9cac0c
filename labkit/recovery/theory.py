"""When a feature leaves the noise, and the law that the steps add up to. δ = n/D is ``samples_per_dim``.

Three laws for the squared overlap ρ_k = ⟨A_k, v_k⟩² of the k-th eigenvector of Ĉ = (1/n) Σ t (HHᵀ − I), t = clip(y):

===========  ========================================================================================================
``exact``    the spiked-matrix equations (Lu & Li, arXiv 1702.06435, adapted to several features), for D → ∞,
             with their expectations over (y, h) taken on frozen draws
``simple``   δ ≫ 1: ρ_k = (1 − n_k/n)₊, with the threshold n_k = D·E y²/(2a_k²) (derived here; that of
             arXiv 2605.14567 up to constants)
``plus``     the same divided by 1 + 2/δ, the noise that a strong feature makes for itself (derived here)
===========  ========================================================================================================

All hold for the Gaussian surrogate, identity link, Σa² = 1 (the exact law for any link).
"""

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit import compute
from labkit.recovery.hermite import as_matrix, from_matrix
from labkit.validate import as_tensors, refuse, require_finite, require_positive

LINKS = {"id": lambda u: u, "tanh": torch.tanh, "even": lambda u: u**2 - 1}
LAWS = ("exact", "plus", "simple")
TAILS = ("cut", "noise")


def amplitudes(gamma: float, n_features: int, tail: str = "cut") -> Tensor:
    """a_k = k^{−γ}/√Z, (n_features,): Z = Σ_{j ≤ d₁} j^{−2γ} ("cut") or ζ(2γ) ("noise": the infinite sum).

    >>> amplitudes(1.0, 3)
    tensor([0.8571, 0.4286, 0.2857], dtype=torch.float64)
    """


def tail_variance(gamma: float, n_features: int, tail: str = "cut") -> float:
    """1 − Σ_{k ≤ d₁} a_k²: the variance of the features that ``tail="noise"`` turns into label noise; else 0."""


def scaling_exponent(gamma: float | Tensor) -> Tensor:
    """The exponent of MSE(n) in the window of `window`: −1 + 1/(2γ), γ > 1/2 (arXiv 2605.14567).

    Raises ValueError for γ ≤ 1/2: Σ k^{−2γ} diverges, so what is learned depends on d₁ and no power law forms.

    >>> scaling_exponent(1.0)
    tensor(-0.5000, dtype=torch.float64)
    """


def recovery_threshold(
    k: int | Tensor, gamma: float, n_features: int, lift_dim: int, noise_std: float = 0.0, tail: str = "cut"
) -> Tensor:
    """n_k = D (1 + σ²)/(2a_k²): the samples beyond which feature k leaves the noise; k = 1, 2, ...

    >>> recovery_threshold(2, gamma=1.0, n_features=3, lift_dim=600)
    tensor(1633.3333, dtype=torch.float64)
    """


def learned_features(
    samples_per_dim: float | Tensor, gamma: float, n_features: int, noise_std: float = 0.0, tail: str = "cut"
) -> Tensor:
    """How many features have n_k < n, (...), int64.

    >>> learned_features(torch.tensor([0.5, 5.0, 50.0]), gamma=1.0, n_features=12)
    tensor([0, 2, 7])
    """


def window(gamma: float, n_features: int, noise_std: float = 0.0, tail: str = "cut") -> tuple[float, float]:
    """The two ends of the power law in δ = n/D: n_1/D, where it starts, and n_{d₁}/D, where features run out.

    >>> window(1.0, 12)
    (0.78, 112.7)
    """


@dataclass(frozen=True)
class Labels:
    """What the exact law needs of the labels: weighted draws of t and of the squared features."""

    t: Tensor  # (draw,), clipped labels
    squares: Tensor  # (draw, n_features), h²
    weight: Tensor  # (draw,), sums to 1

    def binned(self, bins: int = 512) -> "Labels":
        """Draws of nearly equal t joined in equal-count bins, the two atoms at ±clip apart: a curve over δ from
        200 000 draws then costs milliseconds, at an error far below the noise of the draws."""


def draw_labels(
    gamma: float,
    n_features: int,
    noise_std: float = 0.0,
    clip: float | None = 3.0,
    draws: int = 10_000,
    generator: torch.Generator | None = None,
    link: str = "id",
    tail: str = "cut",
) -> Labels:
    """Draws of (t, h²) of the surrogate, t = y clipped at ``clip``·√(E y²).

    Without a generator the draws are those of seed 0: curves then move smoothly with their parameters. ``clip=None``
    warns: sup t then depends on the draws, and so does whatever lies near the threshold.
    """


def bulk_edge(t: Tensor, samples_per_dim: float | Tensor, weight: Tensor | None = None) -> Tensor:
    """Where the eigenvalues of pure noise end, from the labels t (draw,) alone: (...), the shape of δ.

    ψ(λ̄) − E t with E t²/(λ̄ − t)² = 1/δ, λ̄ > max t, and ψ(λ) = λ(1/δ + E t/(λ − t)). For δ ≫ 1 it is
    2√(E t²/δ) + E t³/(δ E t²). Exact when H is Gaussian and independent of t; a usable cut on real data.

    Raises ValueError for labels that are all equal, NaN, or δ ≤ 0.
    """


@dataclass(frozen=True)
class Spikes:
    """The exact law at one or many δ (...)."""

    edge: Tensor  # (...), upper end of the bulk
    outlier: Tensor  # (..., n_features), eigenvalue of feature k; the edge where it has not left the bulk
    overlap: Tensor  # (..., n_features), ρ_k; 0 there


def exact(labels: Labels, samples_per_dim: float | Tensor) -> Spikes:
    """The exact law: feature k is out iff E t(h_k² − 1)/(λ − t) = 1/δ has a root λ_k > λ̄; then the eigenvalue is
    ψ(λ_k) − E t and ρ_k = ψ′/(ψ′ + E t²h_k²/(λ_k − t)²), ψ′ = 1/δ − E t²/(λ_k − t)²."""


def overlap(
    samples_per_dim: float | Tensor,
    gamma: float,
    n_features: int,
    noise_std: float = 0.0,
    law: str = "exact",
    clip: float | None = 3.0,
    draws: int = 10_000,
    generator: torch.Generator | None = None,
    link: str = "id",
    tail: str = "cut",
) -> Tensor:
    """Squared overlaps ρ_k of the eigenvectors with the features at δ = n/D (...) → (..., n_features).

    ``law``: "exact", "plus", "simple" (the last two for link "id" only; clip, draws and generator are then not used).
    Many δ share binned draws. Raises ValueError for arguments out of range.

    >>> overlap(100.0, gamma=1.0, n_features=3, law="simple")
    tensor([0.9932, 0.9728, 0.9388], dtype=torch.float64)
    """


def mse_curve(
    samples_per_dim: float | Tensor,
    gamma: float,
    n_features: int,
    noise_std: float = 0.0,
    law: str = "exact",
    clip: float | None = 3.0,
    draws: int = 200_000,
    generator: torch.Generator | None = None,
    tail: str = "cut",
) -> Tensor:
    """Error without label noise, in units of Var u: Σ_k a_k²(1 − ρ_k²) + the variance of the tail, (...).

    A feature of overlap ρ_k gets the coefficient a_k ρ_k from the latent regression (derived here). Identity link.

    >>> mse_curve(torch.tensor([20.0, 200.0]), gamma=1.0, n_features=12, law="simple")
    tensor([0.3592, 0.0813], dtype=torch.float64)
    """


def mse_power_law(samples_per_dim: float | Tensor, gamma: float, noise_std: float = 0.0) -> Tensor:
    """The asymptote of `mse_curve` for d₁ = ∞: C/ζ(2γ) · K^{1−2γ}, K = (2δ/(ζ(2γ)(1+σ²)))^{1/(2γ)}, 1 ≪ K.

    C = 2 − 1/(2γ+1) + 1/(2γ−1): the error of the learned features and the tail of those that are not.
    """


def mse_parametric(samples_per_dim: float | Tensor, n_features: int, noise_std: float = 0.0) -> Tensor:
    """Beyond the window, when all features are known: (d₁(1 + σ²) + 4)/δ."""


@dataclass(frozen=True)
class Moment:
    """E y(HHᵀ − I) for q = 2, identity link, Gaussian x, as three matrices (D, D) that add up."""

    signal: Tensor  # √2 Σ a_i A_i A_iᵀ: what n → ∞ gives when d → ∞ too
    low_degree: Tensor  # U → 2√2 (SU + US), S = Σ a_i M_i²: from the degree-2 part of the label
    crossed: Tensor  # U → 2√2 Σ a_i M_i U M_i

    @property
    def total(self) -> Tensor:
        return self.signal + self.low_degree + self.crossed


def population_moment(directions: Tensor, amplitudes: Tensor) -> Moment:
    """The moment matrix of infinitely many samples at finite d, for directions (D, d₁) of degree 2.

    The two corrections are why weak features stay hidden at small d, whatever n. Derived here by Wick's theorem.
    """


def population_variance(directions: Tensor, amplitudes: Tensor) -> tuple[Tensor, Tensor]:
    """(Var u, the part of it that has degree 2), q = 2: Σa² + 2Σ a_i a_j [2 tr M_i²M_j² + tr M_iM_jM_iM_j] and
    4 tr S². They tend to 1 and 0 for d → ∞."""
