"""The error of the Gaussian surrogate against the number of samples, for three γ, without label noise and with much.

The experiment of lesson 09. With σ = 0 the window is n/D = 20 … 1000 at D = 400, with σ = 3 it is 500 … 10 000 at
D = 200; in both, features become known one by one. ``error`` is that after a perfect second layer
(`labkit.recovery.spectral.surrogate_error`), the tail of features that are label noise included; ``found`` counts the
eigenvalues beyond the edge.
"""

import math

import numpy as np
import torch

from labkit import compute
from labkit.recovery import spectral, theory
from labkit.recovery.teacher import HierarchicalTeacher
from labkit.results import Recipe

WINDOWS = {0.0: (400, np.geomspace(20, 1000, 6)), 3.0: (200, np.geomspace(500, 10_000, 6))}  # σ: D, sizes n/D
LISTED = 100  # features beyond these are label noise; more than are learned anywhere in the windows
ROWS = 50_000  # of x at a time


def layer_one(teacher: HierarchicalTeacher, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Eigenvalues (D,), rising, and vectors (D, D) of Ĉ from n samples, clipped at 3 sd, and the edge of the bulk."""
    generator, total, labels = compute.generator(seed), 0, []
    limit = 3 * math.sqrt(1 + teacher.noise_std**2)
    for start in range(0, n, ROWS):
        x, y = teacher.sample(min(ROWS, n - start), generator, torch.float32)
        labels.append(y.clamp(-limit, limit))
        total = total + len(x) * spectral.moment_matrix(x, labels[-1], teacher.degree)
    t = torch.cat(labels).to(total.dtype)
    values, vectors = torch.linalg.eigh(total / n)
    return values, vectors, theory.bulk_edge(t, n / teacher.lift_dim)


def scaling(gamma: float, noise_std: float, step: int, seed: int) -> dict[str, float]:
    """Error and number of features found at the size ``step`` of the window of ``noise_std``."""
    dim, sizes = WINDOWS[noise_std]
    teacher = HierarchicalTeacher(dim, 1, LISTED, gamma, "id", noise_std, compute.generator(seed), tail="noise")
    values, vectors, edge = layer_one(teacher, round(dim * sizes[step]), 1000 + seed)
    found = vectors[:, values > edge]
    error = spectral.surrogate_error(found, teacher.directions, teacher.amplitudes)
    return {
        "samples_per_dim": sizes[step],
        "error": float(error) + theory.tail_variance(gamma, LISTED, "noise"),
        "found": found.shape[1],
    }


def recipe() -> Recipe:
    return Recipe(
        scaling,
        grid={"gamma": [0.75, 1.0, 1.5], "noise_std": [0.0, 3.0], "step": range(6)},
        seeds=compute.pick(quick=2, standard=8, full=64),
        remake={"noise_std": 0.0, "step": 0},
        tolerances={"error": 1e-5},  # of float32 products
    )
