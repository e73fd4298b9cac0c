"""What n samples reveal of many features: in the Gaussian surrogate, in the real lift of degree 2, and for n = ∞."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit import compute
from labkit.recovery import spectral, theory
from labkit.recovery.hermite import lift_dim
from labkit.recovery.teacher import HierarchicalTeacher
from labkit.validate import require_whole

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
    """Squared overlaps of the `LISTED` first features with what n samples reveal, each (LISTED,)."""

    subspace: Tensor  # surrogate: with the span of all eigenvectors beyond the edge
    single: Tensor  # surrogate: with the best of these
    lift: Tensor  # real lift, with hygiene: with the best eigenvector
    limit: Tensor  # real lift, without the low degrees of the label, n = ∞: with the best eigenvector
    found: int  # eigenvectors beyond the edge, surrogate


def reveal(dim: int, gamma: float, n: int, seed: int) -> Revealed:
    """One draw at d = ``dim``, D = d(d + 1)/2, σ = 0; the features beyond the listed ones are noise (γ > 1/2).

    >>> reveal(16, 1.0, 20_000, seed=0).lift[:3]
    tensor([0.9712, 0.8920, 0.7147], dtype=torch.float64)
    """
    size = lift_dim(dim, 2)
    teachers = [
        HierarchicalTeacher(d, degree, LISTED, gamma, "id", 0.0, compute.generator(seed), tail="noise")
        for d, degree in ((size, 1), (dim, 2))
    ]
    generator = compute.generator(1000 + seed)
    values, vectors, edge = layer_one(teachers[0], n, generator)
    single, subspace = spectral.overlaps(vectors[:, values > edge], teachers[0].directions)
    x, y = teachers[1].sample(n, generator, torch.float32)
    lift = spectral.fit(x, y, 2, holdout=0.02).directions
    moment = theory.population_moment(teachers[1].directions, teachers[1].amplitudes)
    limit = torch.linalg.eigh(spectral.drop_trace(moment.signal + moment.crossed)).eigenvectors
    best = [spectral.overlaps(found, teachers[1].directions)[0] for found in (lift, limit)]
    return Revealed(subspace, single, *best, int((values > edge).sum()))
