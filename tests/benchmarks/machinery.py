"""Many nets as one against a loop over single nets: rows for `make bench`."""

from itertools import pairwise

import torch
from torch import nn

from labkit import compute, training
from labkit.training import conv2d, cross_entropy, linear, mse, to_nets
from tests.calibration import race


def rows():
    """(what, our seconds, seconds of the loop, promised ratio), on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield ("32 MLPs (20-48-1), 80 samples, 200 steps", *dense(n_nets=32, steps=200), 3.0)
        yield ("20 conv nets (1-8-16-32), 15 images, 50 steps", *convolutional(n_nets=20, steps=50), 2.0)
    finally:
        torch.set_num_threads(threads)


def dense(n_nets, steps, sizes=(20, 48, 1)):
    """Seconds of all nets together and one after the other: momentum SGD on all samples."""
    generators = training.generators(range(n_nets))
    x = torch.randn(80, 20, dtype=torch.float64, generator=compute.generator(0))
    y = torch.randn(80, 1, dtype=torch.float64, generator=compute.generator(1))
    place = {"device": "cpu", "dtype": torch.float64}
    params = {f"w{i}": training.he((b, a), generators, **place) for i, (a, b) in enumerate(pairwise(sizes))}
    params |= {f"b{i}": torch.zeros(n_nets, size, dtype=torch.float64) for i, size in enumerate(sizes[1:])}

    def forward(p, x):
        for i in range(len(sizes) - 1):
            x = linear(x.relu() if i else x, p[f"w{i}"], p[f"b{i}"])
        return x

    def single(net):
        layers = [nn.Linear(a, b, dtype=torch.float64) for a, b in pairwise(sizes)]
        with torch.no_grad():
            for i, layer in enumerate(layers):
                layer.weight.copy_(params[f"w{i}"][net])
                layer.bias.copy_(params[f"b{i}"][net])
        return nn.Sequential(layers[0], *(part for layer in layers[1:] for part in (nn.ReLU(), layer)))

    sgd = training.SGD(lr=1e-3, momentum=0.9)
    return race(
        lambda: training.train(forward, params, x, y, sgd, steps, loss=mse),
        lambda: loop(map(single, range(n_nets)), x, y, steps, nn.functional.mse_loss),
    )


def convolutional(n_nets, steps):
    """The same for three convolutions, an average pool and a readout, on a few-shot batch of 8 x 8 images."""
    generators, place = training.generators(range(n_nets)), {"device": "cpu", "dtype": torch.float32}
    x = torch.randn(15, 1, 8, 8, generator=compute.generator(0))
    y = torch.arange(15) % 5
    sizes, strides = (1, 8, 16, 32), (1, 2, 2)
    params = {f"w{i}": training.he((b, a, 3, 3), generators, **place) for i, (a, b) in enumerate(pairwise(sizes))}
    params["readout"] = training.normal((5, 32), generators, std=0.1, **place)

    def forward(p, x):
        for i, stride in enumerate(strides):
            x = conv2d(x, p[f"w{i}"], stride=stride, padding=1).relu()
        return linear(to_nets(x.mean((2, 3)), n_nets), p["readout"])

    def single(net):
        layers = []
        for (a, b), stride in zip(pairwise(sizes), strides, strict=True):
            layers += [nn.Conv2d(a, b, 3, stride, padding=1, bias=False), nn.ReLU()]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5, bias=False))
        with torch.no_grad():
            for weight, stacked in zip(model.parameters(), params.values(), strict=True):
                weight.copy_(stacked[net])
        return model

    sgd = training.SGD(lr=1e-3, momentum=0.9)
    return race(
        lambda: training.train(forward, params, x, y, sgd, steps, loss=cross_entropy),
        lambda: loop(map(single, range(n_nets)), x, y, steps, nn.functional.cross_entropy),
    )


def loop(models, x, y, steps, loss):
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
