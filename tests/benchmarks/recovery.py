"""The moment matrix by streaming against forming the lift; what runs behind the sliders: rows for `make bench`."""

import sys

import torch

from labkit import compute
from labkit.recovery import spectral, theory
from labkit.recovery.hermite import lift
from labkit.recovery.teacher import HierarchicalTeacher
from tests.calibration import race, slowness
from tests.recovery.peak import peak_bytes

N, DIM = 100_000, 34  # D = 595
MB = (1e-6, "MB")


def rows():
    """(what, ours, the naive way or what is allowed, promised ratio), on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from moment()
        yield from live()
    finally:
        torch.set_num_threads(threads)
    if sys.platform.startswith("linux"):
        (streamed, flat), (formed,) = peak_bytes("streamed", DIM, N, N // 2), peak_bytes("formed", DIM, N)
        yield f"Ĉ, D = 595, n = {N:,}: memory / lift formed", streamed, formed, 20.0, *MB
        yield f"... / the same with n = {N // 2:,}", streamed, flat, 0.8, *MB


def moment():
    x = torch.randn(N, DIM, generator=compute.generator(0))
    t = torch.randn(N, generator=compute.generator(1)).clamp(-3, 3)

    def formed():
        h = lift(x, 2)
        return h.mT @ (t[:, None] * h)

    def matrix_free():
        apply = spectral.moment_operator(x, t, 2)
        for _ in range(12):
            apply(start)

    start = torch.randn(595, 6, dtype=torch.float64, generator=compute.generator(2))
    ways = (
        lambda: spectral.moment_matrix(x, t, 2),
        lambda: spectral._sum_by_products(x, t, 2, 595),
        matrix_free,
        formed,
    )
    syrk, products, free, naive = race(*ways)
    yield f"Ĉ, D = 595, n = {N:,} / lift formed", syrk, naive, 2.5
    yield "... by products, as on other devices", products, naive, 1.0
    yield "... matrix-free, 12 blocks of 6", free, naive, None  # for what does not fit


def live():
    """Against the budgets of a slider."""
    labels, deltas = theory.label_quadrature(1.0, 12), torch.logspace(0.7, 3, 40, dtype=torch.float64)
    many = torch.logspace(0, 5, 200, dtype=torch.float64)
    teacher = HierarchicalTeacher(200, 1, 12, 1.0, "id", 0.0, compute.generator(0))

    def surrogate():
        x, y = teacher.sample(10_000, compute.generator(1), torch.float32)
        return torch.linalg.eigvalsh(spectral.moment_matrix(x, spectral.clip_labels(y), 1))

    ways = {
        "exact law of 12 features / allowed": (lambda: theory.overlap(100.0, 1.0, 12), 10e-3),
        "... at 40 sizes": (lambda: theory.exact(labels, deltas), 25e-3),
        "cascade of 1000 features at 200 sizes": (lambda: theory.cascade(many, 1.0, 1000), 25e-3),
        "surrogate, D = 200, n = 10,000": (surrogate, 25e-3),
    }
    slow = slowness()  # milliseconds are promised for the reference core
    for (name, (_, allowed)), spent in zip(ways.items(), race(*(way for way, _ in ways.values())), strict=True):
        yield name, spent, allowed * slow, 1.0
