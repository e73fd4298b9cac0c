"""How slow is this machine right now? One number that scales every time limit of the tests.

Limits are written for one quiet core. `slowness()` runs a fixed mix of what a panel does (interpreted Python,
small numpy arrays, small linear solves) and compares it with the time that the mix took on such a core.
"""

import statistics
import time

import numpy as np

REFERENCE_SECONDS = 0.050  # one core, quiet, Python 3.11 and numpy 2.4, median of 20
MARGIN = 4  # the tests assert four times the budget (the budgets themselves are measured by `make bench`)


def workload() -> float:
    """A fixed piece of work of about 50 ms; returns a number so that nothing of it can be skipped."""
    total = 0.0
    for i in range(250_000):
        total += (i % 7) * 0.5
    angles = np.linspace(0.0, 3.0, 4000)
    matrix = np.eye(40) + 0.01 * np.cos(np.outer(np.arange(40), np.arange(40)))
    for _ in range(250):
        total += float(np.exp(-np.sinh(angles)).sum())
        total += float(np.linalg.solve(matrix, angles[:40]).sum())
    return total


def seconds(function, repeats: int = 15) -> float:
    """Median time of one call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def race(*functions, rounds: int = 5) -> list[float]:
    """The least seconds of each function, all taking turns: the rest is what else the computer did."""
    times = [[seconds(function, 1) for function in functions] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]


def measure(repeats: int = 5) -> float:
    """Median over `repeats` runs of the workload, in seconds."""
    return seconds(workload, repeats)


def slowness(repeats: int = 5) -> float:
    """At least 1: how many times longer than on the reference core the workload takes now."""
    return max(1.0, measure(repeats) / REFERENCE_SECONDS)


def time_factor() -> float:
    """By how much a test multiplies a time budget before it asserts it: `MARGIN` times the slowness."""
    return MARGIN * slowness()
