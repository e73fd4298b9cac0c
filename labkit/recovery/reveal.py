"""What n samples reveal of many features: in the Gaussian surrogate, in the real lift of degree 2, and for n = ∞."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit import compute
from labkit.recovery import spectral, theory
from labkit.recovery.hermite import lift_dim
from labkit.recovery.teacher import HierarchicalTeacher
from labkit.validate import as_tensors, require_positive, require_whole

ROWS = 50_000  # of x at a time
LISTED = 60  # features beyond these are label noise


def layer_one(teacher: HierarchicalTeacher, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues (D,), rising, and vectors (D, D) of Ĉ from n samples, labels clipped at 3 sd; the edge of the bulk.

    The samples are drawn in float32, `ROWS` at a time: n is not limited by memory. No cleaning: for degree 1.
    """
    require_whole(2, n=n)
    total, labels, limit = 0, [], 3 * math.sqrt(1 + teacher.noise_std**2)
    for start in range(0, n, ROWS):
        x, y = teacher.sample(min(ROWS, n - start), generator, torch.float32)
        labels.append(y.clamp(-limit, limit))
        total = total + len(x) * spectral.moment_matrix(x, labels[-1], teacher.degree)
    values, vectors = torch.linalg.eigh(total / n)
    return values, vectors, theory.bulk_edge(torch.cat(labels).to(values), n / teacher.lift_dim)


@dataclass(frozen=True)
class Revealed:
    """Squared overlaps of the `LISTED` first features with what n samples reveal, each (LISTED,), means over draws."""

    subspace: Tensor  # surrogate: with the span of all eigenvectors beyond the edge
    single: Tensor  # surrogate: with the best of these
    lift: Tensor  # real lift, with hygiene: with the best eigenvector
    limit: Tensor  # real lift, without the low degrees of the label, n = ∞: with the best eigenvector
    law: Tensor  # the exact law of the surrogate
    found: float  # eigenvectors beyond the edge, surrogate
    sharp: float  # features with n > n_k, simple law, n_k = n_1 k^{2γ}
    gap: float  # features with n > k² n_k: what Davis & Kahan's bound asks for, up to constants


def reveal(dim: int, gamma: float, n: int, seeds: Iterable[int]) -> Revealed:
    """One draw a seed at d = ``dim``, D = d(d + 1)/2, σ = 0; the features beyond the listed ones are noise (γ > 1/2).

    >>> reveal(16, 1.0, 20_000, seeds=[0]).lift[:3]
    tensor([0.9712, 0.8920, 0.7147], dtype=torch.float64)
    """
    draws = [_draw(dim, gamma, n, seed) for seed in seeds]
    if not draws:
        raise ValueError("seeds must not be empty")
    *overlaps, found = zip(*draws, strict=True)
    size = n / lift_dim(dim, 2)
    times = size / theory.window(gamma, 1, tail="noise")[0]  # n/n_1
    return Revealed(
        *(torch.stack(values).mean(0) for values in overlaps),
        law=theory.overlap(size, gamma, LISTED, tail="noise"),
        found=sum(found) / len(found),
        sharp=times ** (1 / (2 * gamma)),
        gap=times ** (1 / (2 * gamma + 2)),
    )


def _draw(dim: int, gamma: float, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    surrogate, real = (
        HierarchicalTeacher(d, degree, LISTED, gamma, "id", 0.0, compute.generator(seed), tail="noise")
        for d, degree in ((lift_dim(dim, 2), 1), (dim, 2))
    )
    generator = compute.generator(1000 + seed)
    values, vectors, edge = layer_one(surrogate, n, generator)
    single, subspace = spectral.overlaps(vectors[:, values > edge], surrogate.directions)
    x, y = real.sample(n, generator, torch.float32)
    lift = spectral.fit(x, y, 2, holdout=0.02).directions
    moment = theory.population_moment(real.directions, real.amplitudes)
    limit = torch.linalg.eigh(spectral.drop_trace(moment.signal + moment.crossed)).eigenvectors
    best = [spectral.overlaps(found, real.directions)[0] for found in (lift, limit)]
    return subspace, single, *best, int((values > edge).sum())


def lift_errors(dim: int, samples_per_dim: Tensor, hygiene: bool, seed: int) -> Tensor:
    """MSE/Var of the whole algorithm on the real lift of degree 2, 12 features, γ = 1, σ = 0, at each n/D (points,).

    >>> lift_errors(12, torch.tensor([20.0, 100.0]), True, seed=0)
    tensor([0.6070, 0.2924], dtype=torch.float64)
    """
    generator = compute.generator(seed)
    teacher = HierarchicalTeacher(dim, 2, 12, 1.0, "id", 0.0, generator)
    test, errors = teacher.sample_inputs(20_000, generator), []
    truth = teacher.target(test)
    for size in samples_per_dim.tolist():
        x, y = teacher.sample(round(size * teacher.lift_dim), generator, torch.float32)
        model = spectral.fit(x, y, 2, hygiene=hygiene)
        errors.append(((model.predict(test) - truth) ** 2).mean() / truth.var())
    return torch.stack(errors)


def lift_slope(dim: int, samples_per_dim: Tensor, hygiene: bool, seeds: Iterable[int]) -> tuple[Tensor, float, float]:
    """Mean `lift_errors` (points,), their log-log slope fitted seed by seed, and the standard error of its mean."""
    seeds = list(seeds)
    if len(seeds) < 2:
        raise ValueError(f"seeds must be at least two, for a standard error, got {len(seeds)}")
    errors = torch.stack([lift_errors(dim, samples_per_dim, hygiene, seed) for seed in seeds])
    slopes = fitted_slope(samples_per_dim.to(errors), errors)
    return errors.mean(0), float(slopes.mean()), float(slopes.std() / len(slopes) ** 0.5)


def fitted_slope(x: Tensor, y: Tensor) -> Tensor:
    """Least-squares slope of ln y (..., points) against ln x (points,) → (...).

    >>> fitted_slope(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([8.0, 4.0, 2.0]))
    tensor(-1.)
    """
    x, y = as_tensors(x=x, y=y)
    require_positive(x=x, y=y)
    if not (x != x[:1]).any():
        raise ValueError(f"x must hold at least two different values, got {x.tolist()}")
    centered = x.log() - x.log().mean()
    return (y.log() @ centered.to(y)) / (centered @ centered)
