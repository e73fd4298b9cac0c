"""What layer 1 finds of twelve features in the real lift of degree 2 at γ = 1, for three ways to look at the data.

The table of lesson 08, "theory meets experiment". At full size also d = 64, D = 2080.
"""

import torch

from labkit import compute
from labkit.recovery.hermite import lift_dim
from labkit.recovery.lifted import LOOKS, layer_one, teacher
from labkit.results import Recipe


def found(dim: int, samples_per_dim: float, look: str, seed: int) -> dict[str, torch.Tensor]:
    """Overlaps of all features (12,), the edge of the bulk by the labels, and where the noise does end."""
    task = teacher(dim, 1.0, look, compute.generator(seed))
    x, y = task.sample(round(samples_per_dim * lift_dim(dim, 2)), compute.generator(10_000 + seed), torch.float32)
    layer = layer_one(x, y, degree=2, hygiene=LOOKS[look][1])
    truth = task.directions
    return {"overlap": layer.overlaps(truth), "edge": layer.edge, "noise_edge": layer.noise_edge(truth)}


def recipe() -> Recipe:
    return Recipe(
        found,
        grid={
            "dim": compute.pick(quick=[16], standard=[16, 32, 48], full=[16, 32, 48, 64]),
            "samples_per_dim": [20.0, 50.0, 100.0],
            "look": list(LOOKS),
        },
        seeds=compute.pick(quick=2, standard=8, full=32),
        remake={"dim": 16},
        tolerances={"overlap": 1e-3, "edge": 1e-4, "noise_edge": 1e-3},  # sums in float32
    )
