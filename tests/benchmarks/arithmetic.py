"""The Transformer of lesson 07: 16 seeds as one stack against a loop over torch.nn modules; the live run."""

import time

import torch
from torch import nn

from labkit import training
from labkit.results.modular_arithmetic import live
from labkit.transfer.arithmetic import addition, split
from labkit.transfer.transformer import BETAS, DECAY, LR, Transformer, learn
from tests.calibration import race, slowness
from tests.transfer.test_transformer import Single

STEPS, SEEDS = 20, 16
LIVE_SECONDS = 60  # 4 κ × 4 seeds, pretraining and one fine-tuning


def rows():
    """(what, ours, the loop or what is allowed, promised ratio), on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, modulus, fraction in (("pretraining mod 15, 540 pairs", 15, 0.6), ("mod 21, 180 pairs", 21, 0.2)):
            yield f"{SEEDS} nets, {name}, {STEPS} steps / loop", *stacked(modulus, fraction), 2.0
        start = time.perf_counter()
        live(progress=iter)
        yield "live run, 4 κ × 4 seeds / allowed", time.perf_counter() - start, LIVE_SECONDS * slowness(), 1.0, 1, "s"
    finally:
        torch.set_num_threads(threads)


def stacked(modulus, fraction):
    """AdamW on all training pairs, float32 both ways."""
    net, shape = Transformer(), {"width": 32, "heads": 4, "layers": 1, "norm": False}
    params = net.initial(modulus, training.generators(range(SEEDS)), dtype=torch.float32)
    pairs, labels = addition(modulus)
    train, _ = split(len(pairs), fraction, training.generators(range(SEEDS)))

    def loop():
        for seed in range(SEEDS):
            single = Single(params, seed, shape)
            adam = torch.optim.AdamW(single.parameters(), lr=LR, betas=BETAS, weight_decay=DECAY)
            for _ in range(STEPS):
                adam.zero_grad()
                nn.functional.cross_entropy(single(pairs[train[seed]]), labels[train[seed]]).backward()
                adam.step()

    def together():
        learn(net, params, modulus, fraction, training.generators(range(SEEDS)), STEPS, record_every=STEPS)

    return race(together, loop)
