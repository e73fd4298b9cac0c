"""What the cache of a sweep costs: rows for `make bench`."""

import tempfile
import time

import numpy as np

from labkit import sweep

ROWS, ALLOWED = 1000, 2e-3  # seconds a row


def study(x, seed):
    return {"error": x + seed, "curve": np.zeros(20)}


def rows():
    """(what, our seconds, seconds allowed, 1)."""
    with tempfile.TemporaryDirectory() as folder:
        sweep.run(study, {"x": [-1]}, cache=folder, progress=False)  # loads torch
        for what in ("computed and kept", "found in the cache"):
            start = time.perf_counter()
            sweep.run(study, {"x": list(range(ROWS))}, cache=folder, progress=False)
            yield f"sweep: a row {what} / allowed", (time.perf_counter() - start) / ROWS, ALLOWED, 1.0
