"""What fine-tuning will generalize like, predicted before training: theory for dim → ∞, and the simulation beside it.

In high dimension every coordinate of the trained β is distributed as if it alone were estimated, from its true value
plus Gaussian noise, by one scalar "prox" of its own penalty (``prox``). Two numbers are left for all coordinates
together, the noise ω and the price τ, and two equations fix them (``generalization_error``). ``simulate`` trains
networks and measures the same error.

Data model and question: Anguita et al. 2026, arXiv 2602.20062. The equations are derived here (replica-symmetric =
state evolution of message passing, for a convex penalty) and checked against simulation; so are the algorithms.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.diagonal.tasks import TaskPair


@dataclass(frozen=True)
class Prediction:
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
    tensor([-1.3501e-05,  1.3501e-05,  1.2232e+00])
    """
    raise NotImplementedError


def prox_prime(r: float | Tensor, root_k: float | Tensor, tau: float | Tensor) -> Tensor:
    """How far the estimate follows r: ∂prox/∂r = h/(h + τ) in (0, 1], h = √(k + 4·prox²) = 1/q″(prox).

    Arguments, errors and derivatives as for ``prox``.
    """
    raise NotImplementedError


def generalization_error(
    task: TaskPair,
    c: float | Tensor,
    lam: float | Tensor,
    gamma: float | Tensor,
    alpha_ft: float | Tensor,
    alpha_pt: float | Tensor | None = None,
    noise_var: float | Tensor = 0.0,
    accuracy: str = "live",
) -> Prediction:
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
        accuracy: "live", relative error of the result ≤ 1e-3, or "reference", ≤ 1e-6

    A point that did not converge is not an error: ``converged`` says so. Raises ValueError for arguments out of
    range, for shapes that do not broadcast and for λ = −1 with γ = 0 (a saddle); TypeError when task is no TaskPair.
    """
    raise NotImplementedError


def pretraining_error(
    rho_pt: float | Tensor, c: float | Tensor, alpha_pt: float | Tensor, accuracy: str = "live"
) -> Prediction:
    """Error of pretraining itself: √k = 2c for all coordinates, a share rho_pt of them is 1/√ρ_PT, no noise.

    The same two equations with two components. Numbers or tensors that broadcast: rho_pt in (0, 1], c > 0,
    alpha_pt > 0. λ does not enter: it acts only through re-initialization.
    """
    raise NotImplementedError


def pretraining_law(
    rho_pt: float | Tensor, c: float | Tensor, alpha_pt: float | Tensor, accuracy: str = "live"
) -> PretrainingLaw:
    """What pretraining on alpha_pt·dim samples leaves of each true coefficient: β̂_PT = prox(β*_PT + ωz, 2c, τ).

    Arguments as for ``pretraining_error``, whose ω and τ it uses. The points are a quadrature of z.
    """
    raise NotImplementedError


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
    """
    raise NotImplementedError
