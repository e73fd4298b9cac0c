"""Pretraining and fine-tuning: nets as one stack against a loop over them; one column of the ReLU bridge."""

import time
from dataclasses import replace

import torch

from labkit.transfer.relu import Sizes, column, fine_tune, pretrain
from tests.calibration import race, slowness

SECOND = (1, "s")
SEEDS = 24
LAM = (-0.99, -0.9, 0.0, 0.9, 0.99)
COLUMN_SECONDS = 60  # promised for two cores: here it is one


def rows():
    """(what, ours, the loop or what is allowed, promised ratio, unit), on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from stacked()
        yield from one_column()
    finally:
        torch.set_num_threads(threads)


def stacked():
    sizes = replace(Sizes(), ft_loss=1e-12, pt_loss=1e-12, pt_steps=100, ft_steps=100, n_test=50)  # all steps, all nets
    seeds, old = range(SEEDS), pretrain(0.3, -0.9, range(SEEDS), replace(sizes, pt_steps=1))
    what = f"fine-tuning {SEEDS} ReLU nets, 100 steps, n = 40: stack / loop"
    loop = [lambda i=i: fine_tune(old, 40, net=[i]) for i in seeds]
    ours, naive = race(lambda: fine_tune(old, 40), lambda: [run() for run in loop])
    yield what, ours, naive, 3.0


def one_column():
    """5 λ × 8 seeds at c = 0.3, pretrained and reset: to their losses."""
    slow, start = slowness(), time.perf_counter()
    found = column(0.3, LAM, range(8))
    spent = time.perf_counter() - start
    assert found["reached"].all(), "every net reaches its loss"
    yield "one column of the ReLU bridge, 5 λ × 8 seeds / allowed", spent, COLUMN_SECONDS * slow, 1.0, *SECOND
