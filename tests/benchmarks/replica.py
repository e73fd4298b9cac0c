"""The replica theory against its budgets, and against solving one setting after the other: rows for `make bench`."""

import time

import torch

from labkit.diagonal.replica import generalization_error
from labkit.diagonal.tasks import FULL, PARTIAL, SUBSET
from tests.calibration import seconds, slowness
from tests.diagonal import scalar_replica

CURVE = torch.linspace(0.02, 0.98, 40, dtype=torch.float64)
ALPHAS = torch.linspace(0.02, 0.98, 60, dtype=torch.float64)
LAMS = (torch.logspace(-3, 0.30102, 60, dtype=torch.float64) - 1)[:, None]
SAMPLE = range(2, 60, 7)  # of the map, along its diagonal, for the naive way


def rows():
    """(what, our seconds, seconds allowed or of the scalar loop, promised ratio)."""

    def ours(lam, alpha, task, alpha_pt=None, repeats=15):
        return seconds(lambda: generalization_error(task, 1e-3, lam, 0.1, alpha, alpha_pt), repeats)

    slow = slowness()  # milliseconds are promised for the reference core
    for lam in (-0.95, 1.0):
        yield f"replica, 40 points, perfect, λ {lam:g} / allowed", ours(lam, CURVE, FULL), 0.02 * slow, 1.0
        yield f"replica, 40 points, imperfect, λ {lam:g} / allowed", ours(lam, CURVE, SUBSET, 0.3), 0.1 * slow, 1.0
    whole = ours(LAMS, ALPHAS, PARTIAL, repeats=3)
    yield "replica, 60 x 60 map, perfect / allowed", whole, 0.4 * slow, 1.0
    start = time.perf_counter()
    for i in SAMPLE:
        scalar_replica.generalization_error(PARTIAL, 1e-3, LAMS[i].item(), 0.1, ALPHAS[i].item())
    loop = (time.perf_counter() - start) * LAMS.numel() * len(ALPHAS) / len(SAMPLE)
    yield "replica, 60 x 60 map, perfect / scalar loop", whole, loop, 100.0
    yield "replica, 60 x 60 map, imperfect / allowed", ours(LAMS, ALPHAS, SUBSET, 0.3, repeats=3), 5.0 * slow, 1.0
