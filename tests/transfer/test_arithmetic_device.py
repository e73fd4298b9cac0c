"""Every public function of modular addition gives the same values on every device, and forgets `device=` nowhere."""

import inspect

import pytest
import torch

from labkit import training
from labkit.training import SGD
from labkit.transfer import arithmetic, transformer
from labkit.transfer.transformer import Transformer, learn, rescale
from tests.everywhere import made_everywhere, same_everywhere

V, M = 6, 5
PAIRS, LABELS = arithmetic.addition(M, V, device="cpu")
KAPPA = torch.tensor([0.5, 3.0], dtype=torch.float64)
PLACE = {"device": "cpu", "dtype": torch.float64}
NETS = {
    "one layer": Transformer(V, 8, 2, 12),
    "two layers": Transformer(V, 8, 2, 12, layers=2),
    "norms": Transformer(V, 8, 2, 12, norm=True),
}


def seeds():
    return training.generators([3, 4])


def weights(net):
    return net.initial(M, seeds(), **PLACE)


def outputs(net):
    def call(params, pairs, labels, kappa):
        out = net(params, pairs)
        rescaled = [net(rescale(params, kappa, pair, net.norm), pairs) for pair in ("stream", *transformer.INNER)]
        return (
            out,
            transformer.loss(out, labels),
            net.features(params, pairs),
            *rescaled,
            transformer.charges(params, net.norm),
            transformer.balancedness(params),
        )

    return call


def phases(net):
    def call(params):
        old = learn(net, params, M, 0.5, seeds(), 4, record_every=2)
        new = transformer.start_fine_tuning(old.params, 3, [0, 1])
        after = learn(net, new, 3, 0.5, seeds(), 2, SGD(1e-2), record_every=1)
        return old.params, old.accuracy, old.steps_to(0.1), new["unembed"], after.params, after.loss, after.recorded

    return call


CALLS = {f"outputs, {name}": (outputs(net), weights(net), PAIRS, LABELS, KAPPA) for name, net in NETS.items()}
CALLS |= {f"phases, {name}": (phases(net), weights(net)) for name, net in NETS.items()}
CALLS |= {
    "fourier_power": (lambda e: arithmetic.fourier_power(e, M), weights(NETS["norms"])["embed"][:, :V]),
    "power_share": (lambda p: arithmetic.power_share(p, [1]), torch.rand(2, 3, generator=seeds()[0])),
    "shared_characters": (lambda n: arithmetic.shared_characters(n[:, None], n), torch.tensor([2, 9, 12])),
    "steps_to": (transformer.steps_to, torch.tensor([0, 5]), torch.tensor([[0.1, 0.95], [0.95, 0.3]])),
}
test_same_values_on_every_device, test_nothing_is_made_without_a_device = same_everywhere(CALLS, rtol=1e-7, atol=1e-10)

MADE = {
    "addition": lambda: arithmetic.addition(4, 5),
    "initial": lambda: NETS["two layers"].initial(M, seeds()),
}
test_a_seed_means_the_same_on_every_device, test_what_is_made_has_a_device = made_everywhere(MADE)

ON_THE_CPU = {"split", "streams", "shared_frequencies", "require_modulus", "character_overlaps"}  # no tensor comes in


@pytest.mark.parametrize("module", [arithmetic, transformer])
def test_no_public_function_is_left_out(module):
    code = inspect.getsource(inspect.getmodule(outputs))
    public = [name for name, it in vars(module).items() if inspect.isfunction(it) and it.__module__ == module.__name__]
    for name in public:
        assert name.startswith("_") or name in ON_THE_CPU or name in code, name
