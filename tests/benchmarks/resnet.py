"""The small ResNet of lesson 06: seeds as one stack against a loop over torch.nn modules; the live run."""

import time

import torch
from torch import nn

from labkit import compute, training
from labkit.training import SGD, cross_entropy
from labkit.transfer.digits import CLIP, MOMENTUM, live
from labkit.transfer.resnet import SMALL, SMALL_BATCH_NORM
from tests.calibration import race, slowness
from tests.transfer.test_resnet import Plain

SEEDS, STEPS = 20, 4
LIVE_SECONDS = 60  # 3 κ × 5 seeds: pretraining and four fine-tunings


def rows():
    """(what, ours, the loop or what is allowed, promised ratio), on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, net in (("ResNet", SMALL), ("with batch norm", SMALL_BATCH_NORM)):
            for batch, promised in ((64, 1.5), (15, 3.0)):
                together, alone = stacked(net, batch)
                yield f"{SEEDS} nets, {name}, batch {batch}, {STEPS} steps / loop", together, alone, promised
        start = time.perf_counter()
        live()
        yield "live run, 3 κ × 5 seeds / allowed", time.perf_counter() - start, LIVE_SECONDS * slowness(), 1.0, 1, "s"
    finally:
        torch.set_num_threads(threads)


def stacked(net, batch):
    """Momentum SGD with clipped gradients, float32 both ways."""
    params = net.init(28, training.generators(range(SEEDS)), dtype=torch.float32)
    x = torch.randn(SEEDS, batch, 1, 8, 8, generator=compute.generator(0))
    y = (torch.arange(batch) % 28).expand(SEEDS, -1)

    def together():
        training.train(
            net.forward, params, x, y, SGD(0.01, MOMENTUM), STEPS, loss=cross_entropy, per_net=True, clip=CLIP
        )

    def loop():
        for seed in range(SEEDS):
            model = Plain(net, params, seed).float()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=MOMENTUM)
            for _ in range(STEPS):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[seed]), y[seed]).backward()
                nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()

    return race(together, loop)
