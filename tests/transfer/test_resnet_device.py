"""The ResNets and their experiment give the same values on every device, and forget `device=` nowhere."""

import inspect

import pytest
import torch

from labkit import training
from labkit.results import digits_transfer
from labkit.training import SGD, cross_entropy, train
from labkit.transfer import digits, resnet
from labkit.transfer.resnet import ResNet
from tests.everywhere import made_everywhere, same_everywhere
from tests.transfer.test_resnet import images, labels, weights

NETS = {
    "plain": ResNet((3, 4), in_channels=2),
    "batch norm": ResNet((3, 4), in_channels=2, norm="batch"),
}
KAPPA = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)


def outputs(net):
    def call(params, x, kappa):
        known = net.statistics(params, x, batch=3) if net.norm else None
        if net.norm:
            moved = resnet.rescale_convolutions(net, params, kappa)
            moved = moved, resnet.match_norms(net, moved, params)
        else:
            moved = (resnet.rescale(params, kappa, 2.0),)
        return net.forward(params, x), net.features(params, x, known), *(net.forward(new, x, known) for new in moved)

    return call


def steps(net):
    def call(params, x, y):
        return train(net.forward, params, x, y, SGD(0.01), 2, loss=cross_entropy).params

    return call


CALLS = {}
for name, net in NETS.items():
    CALLS[f"outputs, {name}"] = (outputs(net), weights(net), images(net), KAPPA)
    CALLS[f"own images, {name}"] = (net.forward, weights(net), images(net, n_nets=3))
    CALLS[f"training, {name}"] = (steps(net), weights(net), images(net), labels())
test_same_values_on_every_device, test_nothing_is_made_without_a_device = same_everywhere(CALLS, rtol=1e-7, atol=1e-9)


def experiment(net, statistics):
    def call():
        old = digits.pretrain([0.5, 2.0], 1.0, [0, 1], net=net, max_steps=2, dtype=torch.float64)
        found = []
        for centered in (False, True):
            new = digits.finetune(old, "new", 3, 0.5, centered, statistics, max_steps=2)
            names = "accuracy", "pr_before", "pr_after", "ensd", "cka"
            found += [new.phase.loss, *(getattr(new, name) for name in names)]
        best, rates = digits.smallest_rate(
            lambda lr: digits.finetune(old, "subset", 3, lr=lr, max_steps=2), [1e-3, 1e-2]
        )
        if net.norm:
            found.append(digits_transfer.with_matched_norms(old).phase.params["stem"])
        return old.accuracy, old.phase.loss, *found, best.phase.loss, rates.nan_to_num(-1.0)

    return call


MADE = {
    "init": lambda: NETS["batch norm"].init(5, training.generators(range(2))),
    "experiment": experiment(ResNet((3, 4)), "batch"),
    "experiment with batch norm": experiment(ResNet((3, 4), norm="batch"), "batch"),
    "experiment with frozen statistics": experiment(ResNet((3, 4), norm="batch"), "frozen"),
    "gallery": lambda: digits.gallery(0, 1),
    "live": lambda: digits.live([0.5], [0, 1], [{"task": "subset"}], max_steps=2),
}
test_a_seed_means_the_same_on_every_device, test_what_is_made_has_a_device = made_everywhere(MADE, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("module", [resnet, digits])
def test_every_public_function_is_called_here(module):
    source = inspect.getsource(inspect.getmodule(experiment))
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
            assert name in source or name in ("streams", "few_shots"), name
