"""Studies for the tests of sweeps, where other processes find them without loading torch."""

import os
from pathlib import Path

import numpy as np

from labkit import compute


def study(lam, n, seed):
    """Results of every kind; all that is random comes from the seed."""
    draw = np.random.default_rng(seed).standard_normal(3)
    return {"error": draw[0] * lam / n, "curve": draw, "steps": n + seed, "name": f"{n}", "profile": compute.profile()}


def batched_study(lam, n, seed):
    rows = [study(*row) for row in zip(lam.tolist(), n.tolist(), seed.tolist(), strict=True)]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def counted(log, x, seed):
    """Writes down each time it is called."""
    with open(log, "a") as file:
        file.write(f"{x} {seed}\n")
    return x * seed


def dying(log, alive, x, seed):
    """Takes its process along at x = 12, until there is a file ``alive``."""
    if x == 12 and not Path(alive).exists():
        os._exit(1)
    return counted(log, x, seed)
