"""The covariance of activation gradients: how diagonal it is, and how many samples show a direction.

A direction q is seen in n samples by the mean of s_i = ⟨g_i, q(z_i)⟩, which is −G with variance qᵀΣq/n for a constant
q; qᵀΣq ≤ λmax‖q‖² = tr Σ‖q‖²/r_eff. Width therefore averages noise away where r_eff = tr Σ/λmax grows with it, and
not where one direction dominates. A matrix of small rank can *look* diagonal: in a random subspace of dimension r ≪ d
its correlations are about √(2/(πr)) while nearly all its energy is off the diagonal. Look at the spectrum too.

That Σ is nearly diagonal is an assumption of arXiv 2605.08297; what it is good for, as said here, is our reading.
"""

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from labkit import spectra
from labkit.validate import as_tensors, refuse, require_broadcast, require_finite, require_positive

OVER = ("channels", "all")


def gradient_covariance(g: Tensor, over: str = "channels", center: bool = True) -> Tensor:
    """Σ_g of activation gradients g (net, n, d) → (net, d, d), positive semi-definite; mean over the n samples.

    Of images, g (net, n, height, width, channels), it is over channels, each position one more sample (average over
    positions), or with ``over="all"`` over channels × positions. ``center=False``: the second moment E gᵀg.
    Raises ValueError for fewer than 2 samples and for another shape.

    >>> gradient_covariance(torch.tensor([[[1.0, 1.0], [-1.0, 1.0]]]))
    tensor([[[1., 0.],
             [0., 0.]]])
    """
    if not isinstance(center, bool):
        raise TypeError(f"center must be True or False, got {center!r}")
    if over not in OVER:
        raise ValueError(f"over must be one of {', '.join(OVER)}, got {over!r}")
    (g,) = as_tensors(g=g)
    if g.dim() < 3 or 0 in g.shape:
        raise ValueError(f"g must be (net, n, ..., d) and not empty, got {tuple(g.shape)}")
    if g.shape[1] < 2:
        raise ValueError(f"g must hold at least 2 samples, got {g.shape[1]}")
    require_finite(g=g)
    g = g.flatten(2) if over == "all" else g.flatten(1, -2)
    if center:
        g = g - g.mean(1, keepdim=True)
    return g.mT @ g / g.shape[1]


def off_diagonal_energy(cov: Tensor) -> Tensor:
    """‖Σ − diag Σ‖_F²/‖Σ‖_F² of (..., d, d) → (...), from 0 (diagonal) to 1 − 1/d (Σ ∝ 11ᵀ).

    Raises ValueError for a matrix that is not square, symmetric and finite, or whose trace is not > 0.

    >>> off_diagonal_energy(torch.ones(4, 4))
    tensor(0.7500)
    """
    cov = _admit(cov)
    cov = cov / cov.abs().amax((-2, -1), keepdim=True)
    diagonal = cov.diagonal(dim1=-2, dim2=-1).square().sum(-1)
    return (1 - diagonal / cov.square().sum((-2, -1))).clamp(min=0)


def correlation(cov: Tensor) -> Tensor:
    """Σ_ij/√(Σ_ii Σ_jj) of (..., d, d); 0 in rows and columns of a coordinate that never varies.

    Raises ValueError as `off_diagonal_energy` does.

    >>> correlation(torch.tensor([[4.0, 1.0], [1.0, 1.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    cov = _admit(cov)
    std = cov.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    inverse = torch.where(std > 0, 1 / torch.where(std > 0, std, 1), 0)
    return inverse[..., None] * cov * inverse[..., None, :]


def mean_correlation(cov: Tensor) -> Tensor:
    """Mean |correlation| over pairs of different coordinates that vary (..., d, d) → (...); 0 without such a pair.

    Raises ValueError as `off_diagonal_energy` does.

    >>> mean_correlation(torch.tensor([[4.0, 1.0], [1.0, 1.0]]))
    tensor(0.5000)
    """
    found = correlation(cov).abs()
    alive = (found.diagonal(dim1=-2, dim2=-1) > 0).sum(-1)
    off = found.sum((-2, -1)) - found.diagonal(dim1=-2, dim2=-1).sum(-1)
    return off / (alive * (alive - 1)).clamp(min=1)


def generic_correlation(rank: float | Tensor) -> Tensor:
    """√(2/(π·rank)): about the mean |correlation| when Σ projects on a random subspace of dimension rank ≪ d.

    >>> generic_correlation(3)
    tensor(0.4607, dtype=torch.float64)
    """
    (rank,) = as_tensors(rank=rank)
    require_positive(rank=rank)
    return (2 / (math.pi * rank)).sqrt()


@dataclass(frozen=True)
class Measures:
    """All measures of one Σ, each (...), and its eigenvalues (..., d), largest first.

    ``effective_rank`` tr Σ/λmax ≤ ``participation`` (tr Σ)²/‖Σ‖² ≤ ``rank``, the number of eigenvalues above rounding.
    """

    off_diagonal: Tensor
    mean_correlation: Tensor
    effective_rank: Tensor
    participation: Tensor
    rank: Tensor
    eigenvalues: Tensor


def measures(cov: Tensor, rtol: float | None = 1e-6) -> Measures:
    """The `Measures` of covariances (..., d, d). rtol: of the rank, relative to λmax, as in ``spectra.numerical_rank``.

    Raises ValueError as `off_diagonal_energy` does.

    >>> found = measures(torch.diag(torch.tensor([2.0, 1.0, 1.0, 0.0])))
    >>> found.off_diagonal.item(), found.effective_rank.item(), found.rank.item()
    (0.0, 2.0, 3)
    """
    cov = _admit(cov)
    if rtol is not None and not isinstance(rtol, Real):
        raise TypeError(f"rtol must be a number or None, got {type(rtol).__name__}")
    return Measures(
        off_diagonal=off_diagonal_energy(cov),
        mean_correlation=mean_correlation(cov),
        effective_rank=spectra.effective_rank(cov),
        participation=spectra.participation(cov),
        rank=spectra.numerical_rank(cov, rtol),
        eigenvalues=torch.linalg.eigvalsh(cov).flip(-1),
    )


def samples_to_see(scores: Tensor, confidence: float = 0.95) -> Tensor:
    """n at which the mean of the scores s_i = ⟨g_i, q_i⟩ is z standard errors below 0: (z·sd(s)/G)², G = −mean s.

    scores (..., n) → (...), a real number; inf where G ≤ 0 (not a descent direction). z = 1.645 for 95 % one-sided
    confidence. Scores are of samples that did not choose the direction (``jumpboard.scores``). At this n the test
    has power 1/2. Relative standard error of the result from n₀ scores: about 2/z·√(result/n₀).
    Raises ValueError for fewer than 2 scores and unless 0.5 < confidence < 1.

    >>> samples_to_see(torch.tensor([-1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0, -1.0]))
    tensor(9.2761)
    """
    (scores,) = as_tensors(scores=scores)
    if scores.dim() < 1 or 0 in scores.shape or scores.shape[-1] < 2:
        raise ValueError(f"scores must be (..., n) with n >= 2, got {tuple(scores.shape)}")
    require_finite(scores=scores)
    unit = scores.detach().abs().amax(-1, keepdim=True)
    scores = scores / torch.where(unit > 0, unit, 1)  # a ratio: squares of very small or large scores leave the floats
    gain, z = -scores.mean(-1), _quantile(confidence)
    return torch.where(gain > 0, (z * scores.std(-1) / torch.where(gain > 0, gain, 1)) ** 2, math.inf)


def samples_by_rank(
    mean: float | Tensor, std: float | Tensor, effective_rank: float | Tensor, confidence: float = 0.95
) -> Tensor:
    """Enough samples, z²·std²/(mean²·r_eff), when every coordinate of g has mean ±``mean`` and the same ``std``.

    The direction is q = −sign(mean): G = d·mean, qᵀΣq ≤ tr Σ·d/r_eff = (d·std)²/r_eff. Arguments broadcast.
    Raises ValueError for an argument that is not > 0.

    >>> samples_by_rank(0.1, 1.0, effective_rank=torch.tensor([1.0, 10.0]))
    tensor([270.5543,  27.0554])
    """
    mean, std, effective_rank = as_tensors(mean=mean, std=std, effective_rank=effective_rank)
    require_positive(mean=mean, std=std, effective_rank=effective_rank)
    require_broadcast(mean=mean, std=std, effective_rank=effective_rank)
    return (_quantile(confidence) * (std / mean)) ** 2 / effective_rank


def _quantile(confidence: float) -> float:
    if not isinstance(confidence, Real):
        raise TypeError(f"confidence must be a number, got {type(confidence).__name__}")
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence must lie in (0.5, 1), got {confidence}")
    level = torch.tensor(2 * confidence - 1, dtype=torch.float64, device="cpu")
    return math.sqrt(2) * torch.erfinv(level).item()


def _admit(cov: Tensor) -> Tensor:
    (cov,) = as_tensors(cov=cov)
    spectra.participation(cov)  # refuses what is no covariance
    refuse("diagonal of cov", cov.diagonal(dim1=-2, dim2=-1), cov.diagonal(dim1=-2, dim2=-1) >= 0, "must be >= 0")
    return cov
