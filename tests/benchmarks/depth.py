"""Students of 16 seeds as one stack against a loop over seeds; what runs behind the sliders: rows for `make bench`."""

import torch
from torch import nn

from labkit import compute, training
from labkit.depth import bounds, covariance, jumpboard
from labkit.depth.network import PostNormResNet, fit
from labkit.depth.task import TEACHER_SEED, TeacherTask
from tests.calibration import race, slowness

STEPS, SEEDS = 60, 16
F32 = torch.float32


class Single(nn.Module):
    """One post-norm network as torch.nn writes it."""

    def __init__(self, in_dim, width, depth, n_classes):
        super().__init__()
        self.stem, self.out = nn.Linear(in_dim, width, bias=False), nn.Linear(width, n_classes, bias=False)
        self.w1, self.w2 = (nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth)) for _ in "12")
        self.norm = nn.RMSNorm(width, eps=1e-5, elementwise_affine=False)

    def forward(self, x):
        z = self.norm(self.stem(x))
        for w1, w2 in zip(self.w1, self.w2, strict=True):
            z = self.norm(z + w2(w1(z).relu()))
        return self.out(z)


def rows():
    """(what, ours, the loop or what is allowed, promised ratio), on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from stacked()
        yield from live()
    finally:
        torch.set_num_threads(threads)


def stacked():
    """Adam, batches of 256 of each net's own sample, D = 4, d = 16, float32 both ways."""
    task, generators = TeacherTask(compute.generator(TEACHER_SEED)), training.generators(range(SEEDS))
    x, y = task.sample_each(4000, generators, F32)
    model = PostNormResNet(9, 16, 4, 16, 4, generators=generators, dtype=F32)

    def loop():
        for net in range(SEEDS):
            single = Single(9, 16, 4, 4)
            adam = torch.optim.Adam(single.parameters(), lr=1e-2)
            for step in range(STEPS):
                rows = slice(256 * (step % 15), 256 * (step % 15 + 1))
                adam.zero_grad()
                nn.functional.cross_entropy(single(x[net, rows]), y[net, rows]).backward()
                adam.step()

    together, alone = race(lambda: fit(model, x, y, STEPS), loop)
    yield f"{SEEDS} students (D = 4, d = 16), {STEPS} steps / loop", together, alone, 3.0


def live():
    """Against the budgets of a slider: one cached net, 2000 samples, D = 8, d = 32, l* = 4, float64."""
    task = TeacherTask(compute.generator(TEACHER_SEED))
    x, y = task.sample(2000, compute.generator(0))
    model = PostNormResNet(9, 32, 8, 32, 4)
    w1 = jumpboard.draw_features(model, 64)
    along, t = jumpboard.direction(model, 4, x, y, w1), torch.linspace(0, 3, 20, dtype=x.dtype)
    g = jumpboard.activation_gradient(model, 4, x, y)
    n, norms = torch.logspace(2, 10, 200, dtype=x.dtype), {"s_1": 1.2, "s_2": 1.0, "s_in": 2.2, "s_out": 1.5}
    net = bounds.NormClass(depth=16, width=32, input_norm=6.5, input_rms=0.33, **norms)
    ways = {
        "bound D1, depth 16, 200 n / allowed": (lambda: bounds.cover_bound(n, net), 2e-3),
        "bound D2, depth 16, 200 n / allowed": (lambda: bounds.rademacher_bound(n, net), 2e-3),
        "direction, m = 64 / allowed": (lambda: jumpboard.direction(model, 4, x, y, w1), 20e-3),
        "covariance and spectrum / allowed": (lambda: covariance.measures(covariance.gradient_covariance(g)), 20e-3),
        "gain curve, 20 steps / allowed": (lambda: jumpboard.gain_curve(model, along, x, y, t), 40e-3),
    }
    slow = slowness()  # milliseconds are promised for the reference core
    for (name, (_, allowed)), spent in zip(ways.items(), race(*(way for way, _ in ways.values())), strict=True):
        yield name, spent, allowed * slow, 1.0
