"""Test error against samples on the sphere, layer by layer and with a kernel: the curves of lesson 10.

Sizes are in units of what each method needs in the end: 20·D samples for the layer-wise one, D = d(d+1)/2, and as
many as it has features for the kernel (`labkit.recovery.separation.kernel_dim`).
"""

from labkit import compute
from labkit.recovery.hermite import lift_dim
from labkit.recovery.separation import METHODS, kernel_dim, measured_error
from labkit.results import Recipe


def error_by_size(dim: int, method: str, size: float, seed: int) -> dict:
    """The number of samples, and test error / Var u, of one fit of degree 2 to two features."""
    n = round(size * (20 * lift_dim(dim, 2) if method == "spectral" else kernel_dim(dim, 2)))
    return {"n": n, "error": measured_error(dim, n, method, seed)}


def recipe() -> Recipe:
    return Recipe(
        error_by_size,
        grid={
            "dim": compute.pick(quick=(6, 8), standard=(10, 14, 18), full=(10, 14, 18, 22, 26)),
            "method": METHODS,
            "size": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
        },
        seeds=compute.pick(quick=2, standard=12, full=64),
        remake={"dim": 10, "size": 0.5},
        tolerances={"error": 1e-6},
    )


LARGE = (  # what lesson 10 adds at profile "full": layer by layer alone, n/D = 10, 30, 100, on a GPU
    {"method": ["spectral"], "dim": [128], "n": [82_560, 247_680, 825_600]},
    {"method": ["spectral"], "dim": [32], "n": [59_840, 179_520, 598_400], "degree": [3], "inputs": ["gaussian"]},
)
