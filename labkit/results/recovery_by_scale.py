"""How many samples a diagonal network needs to find three spikes, for several scales of its initialization.

The experiment of lesson 01 with the end point of training (``diagonal.interpolate.min_penalty``): the smaller c,
the sooner the error falls; for large c it is that of the ℓ2 interpolator, 1 − n/D on average.
"""

import numpy as np
import torch

from labkit import compute
from labkit.diagonal.interpolate import min_penalty
from labkit.diagonal.tasks import TaskPair, design
from labkit.results import Recipe

DIM = 40
SPIKES = TaskPair(3 / DIM, 1, 0)


def recovery(c: np.ndarray, n: np.ndarray, seed: np.ndarray) -> dict[str, np.ndarray]:
    """‖β − β*‖²/‖β*‖² for each row. A seed stands for one problem, of which the first n samples are used."""
    generators = [compute.generator(int(s)) for s in seed]
    x = torch.stack([design(DIM, DIM, generator) for generator in generators])  # (row, dim, dim)
    star = torch.stack([SPIKES.sample(DIM, generator)[1] for generator in generators])  # (row, dim)
    root_k = 2 * x.new_tensor(c)[:, None]
    beta = torch.empty_like(star)
    for size in np.unique(n):
        rows = torch.as_tensor(np.flatnonzero(n == size), device=x.device)
        some = x[rows, :size]
        beta[rows] = min_penalty(some, (some @ star[rows, :, None])[..., 0], root_k[rows]).beta
    return {"error": ((beta - star) ** 2).sum(-1) / (star**2).sum(-1)}


def recipe() -> Recipe:
    return Recipe(
        recovery,
        grid={"n": range(2, 39, 3), "c": [1e-8, 1e-4, 1e-2, 0.1, 1.0, 10.0]},
        seeds=compute.pick(quick=8, standard=64, full=1024),
        remake={"n": 14},
        batched=384,
        tolerances={"error": 1e-7},
    )
