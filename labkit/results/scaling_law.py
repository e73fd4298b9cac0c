"""The error of the Gaussian surrogate against the number of samples, for three γ, without label noise and with much.

The experiment of lesson 09. With σ = 0 the window is n/D = 20 … 1000 at D = 400, with σ = 3 it is 500 … 10 000 at
D = 200; in both, features become known one by one. ``error`` is that after a perfect second layer
(`labkit.recovery.spectral.surrogate_error`), the tail of features that are label noise included; ``found`` counts the
eigenvalues beyond the edge.
"""

from dataclasses import dataclass

import numpy as np
import torch

from labkit import compute
from labkit.recovery import spectral, theory
from labkit.recovery.reveal import fitted_slope, layer_one
from labkit.recovery.teacher import HierarchicalTeacher
from labkit.results import Recipe, load

WINDOWS = {0.0: (400, np.geomspace(20, 1000, 6)), 3.0: (200, np.geomspace(500, 10_000, 6))}  # σ: D, sizes n/D
LISTED = 100  # features beyond these are label noise; more than are learned anywhere in the windows
WAYS = ("asymptotic", "simple", "plus", "exact", "simulation")  # to a slope


def scaling(gamma: float, noise_std: float, step: int, seed: int) -> dict[str, float]:
    """Error and number of features found at the size ``step`` of the window of ``noise_std``."""
    dim, sizes = WINDOWS[noise_std]
    teacher = HierarchicalTeacher(dim, 1, LISTED, gamma, "id", noise_std, compute.generator(seed), tail="noise")
    values, vectors, edge = layer_one(teacher, round(dim * sizes[step]), compute.generator(1000 + seed))
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


@dataclass(frozen=True)
class Comparison:
    """Shipped simulation and theory in one window, for one γ and σ."""

    sizes: np.ndarray  # (6,), n/D
    error: np.ndarray  # (6,), mean over seeds
    error_se: np.ndarray  # (6,), standard error of that mean
    slopes: np.ndarray  # (5,), log-log slopes in this window, in the order of `WAYS`
    slope_se: float  # of the last one, from the scatter of the slopes of the seeds
    curve: tuple[np.ndarray, np.ndarray]  # n/D and error by the exact law, over both windows


def compare(gamma: float, noise_std: float) -> Comparison:
    """The slope by the asymptotic exponent, by the three laws at the same sizes, and as simulated.

    >>> compare(1.0, 3.0).slopes[[0, 3]]
    array([-0.5   , -0.4957])
    """
    table = load("scaling_law").table.select(gamma=gamma, noise_std=noise_std)
    curve = table.mean("error", by="samples_per_dim")
    sizes = torch.as_tensor(curve["samples_per_dim"])
    laws = [theory.mse_curve(sizes, gamma, LISTED, noise_std, law, tail="noise") for law in WAYS[1:4]]
    seeds = np.stack([table.select(seed=seed)["error"] for seed in np.unique(table["seed"])])
    each = fitted_slope(sizes, torch.as_tensor(seeds))
    slopes = [theory.scaling_exponent(gamma), *(fitted_slope(sizes, law.cpu()) for law in laws), each.mean()]
    se = float(each.std() / len(each) ** 0.5)
    fine = torch.logspace(1, 4.3, 60, dtype=torch.float64)
    exact = theory.cascade(fine, gamma, LISTED, noise_std, "noise").mse.cpu()
    measured = sizes.numpy(), curve["mean"], curve["se"], np.array([float(slope) for slope in slopes]), se
    return Comparison(*measured, (fine.numpy(), exact.numpy()))
