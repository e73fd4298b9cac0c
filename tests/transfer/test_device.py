"""Every public function of the room gives the same values on every device, and forgets `device=` nowhere."""

import inspect

import pytest
import torch

from labkit import training
from labkit.training import SGD
from labkit.transfer import protocol, relu, representation
from labkit.transfer.relu import Sizes
from tests.everywhere import made_everywhere, same_everywhere
from tests.transfer.conftest import randn

Z1, Z2 = randn(2, 30, 4), randn(2, 30, 4, seed=1)
X, Y = randn(2, 12, 3, seed=2), randn(2, 12, 1, seed=3)
PARAMS = {"w": randn(2, 6, 3, seed=4), "v": randn(2, 1, 6, seed=5)}
OTHER = {"w": randn(2, 6, 3, seed=6), "v": randn(2, 1, 6, seed=7)}
B, C = torch.tensor([0.5, 2.0]).double(), torch.tensor([0.1, 3.0]).double()
SIZES = Sizes(6, 8, 3, 2, n_pt=20, n_test=30, pt_loss=0.1, ft_loss=0.1, pt_steps=300, ft_steps=300)


def phase(found):
    return found.params, found.steps, found.loss, found.reached, found.diverged


def learned(params, x, y):
    return phase(protocol.learn(relu.forward, params, x, y, SGD(0.01, 0.9), 0.1, 5, center=params, per_net=True))


def rate(params, x):
    found = relu.StableRate(x)
    return found(0, params), found(10, params)


CALLS = {
    "effective_shared_dimensions": (representation.effective_shared_dimensions, Z1, Z2),
    "centered_kernel_alignment": (representation.centered_kernel_alignment, Z1, Z2),
    "shared_units": (representation.shared_units, Z1, Z2),
    "compare": (representation.compare, Z1, Z2),
    "learn": (learned, PARAMS, X, Y),
    "centered": (lambda p, q, x: protocol.centered(relu.forward, q)(p, x), PARAMS, OTHER, X),
    "new_readout": (lambda like, g: protocol.new_readout(like, g, training.generators([0, 1])), PARAMS["v"], B),
    "sources": (lambda p, q: protocol.sources(p, q, {"v": q["v"] + 1}), PARAMS, OTHER),
    "moved": (protocol.moved, PARAMS, OTHER),
    "error_bar": (lambda z: tuple(protocol.error_bar(z)), Z1),
    "invariant": (relu.invariant, PARAMS["w"], PARAMS["v"][:, 0]),
    "initial_norms": (lambda c: tuple(relu.initial_norms(c, 0.5)), C),
    "norms_after": (lambda b, c: tuple(relu.norms_after(b, c, -0.5)), B, C),
    "contrast": (lambda b, c: relu.contrast(b, c, -0.5), B, C),
    "forward": (relu.forward, PARAMS, X),
    "features": (relu.features, PARAMS, X),
    "drift": (lambda p, c: relu.drift(p, c, 0.5), PARAMS, C),
    "kernel_norm": (lambda p, x, u: relu.kernel_norm(p, x, u, 3), PARAMS, X, Y[..., 0]),
    "StableRate": (rate, PARAMS, X),
}
test_same_values_on_every_device, test_nothing_is_made_without_a_device = same_everywhere(CALLS, rtol=1e-7, atol=1e-10)


def experiment():
    old = relu.pretrain(0.5, -0.5, range(2), SIZES, dtype=torch.float64)
    done = relu.fine_tune(old, 12, ["subset", "new"], [0.3, 1.0], ["pretrained", "reset"])
    return phase(old.phase), old.drift, done


MADE = {
    "pretrain and fine_tune": experiment,
    "column": lambda: relu.column(0.5, [0.5], range(2), 12, sizes=SIZES)["pt_reached"],
    "initial": lambda: relu.initial(4, 3, 0.5, 0.5, training.generators([0, 1])),
    "teachers": lambda: {
        name: (it.directions, it.signs) for name, it in relu.teachers(6, 3, 2, training.generators([0, 1])).items()
    },
}
test_a_seed_means_the_same_on_every_device, test_what_is_made_has_a_device = made_everywhere(MADE, rtol=1e-7, atol=1e-9)

NO_TENSORS = {"streams", "told", "whole_seeds"}  # generators, which live on the CPU, words and numbers


@pytest.mark.parametrize("room", [representation, protocol, relu], ids=lambda r: r.__name__)
def test_every_public_function_is_called_above(room):
    own = inspect.getmembers(room, lambda it: inspect.isfunction(it) and it.__module__ == room.__name__)
    called = set(CALLS) | set(MADE) | {name for name, _ in own if f".{name}(" in inspect.getsource(experiment)}
    assert {name for name, _ in own if not name.startswith("_")} <= called | NO_TENSORS
