import torch

from labkit import compute


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=compute.generator(seed))
