"""Bounds and laws give the same values on every device, and forget `device=` nowhere."""

import inspect
from dataclasses import replace

import pytest
import torch

from labkit import compute
from labkit.depth import bounds, scaling
from labkit.depth.bounds import NormClass
from labkit.depth.network import PostNormResNet
from tests.depth.conftest import randn
from tests.everywhere import assert_same, same_everywhere

N = torch.tensor([1e4, 1e7], dtype=torch.float64)
NET = NormClass(
    depth=torch.tensor([2.0, 4.0], dtype=torch.float64), width=8, s_1=torch.tensor([[0.3], [3.0]], dtype=torch.float64),
    s_2=0.5, s_in=1.5, s_out=2, input_norm=3, input_rms=0.5,
)  # fmt: skip
ONE = replace(NET, depth=3, inserted=2, measured_rms=torch.tensor([0.1], dtype=torch.float64))
RISKS = torch.tensor([[0.6, 0.5], [0.58, 0.5], [0.5, 0.6], [0.4, 0.4], [0.3, 0.4]], dtype=torch.float64)
FRESH = {"fresh_sample": True}


def network_class(w_1, w_2, w_out, x):
    params = {"in": w_out.mT, "w1.1": w_1, "w2.1": w_2, "out": w_out}
    return bounds.network_class(PostNormResNet(3, 5, 1, 4, 3, params=params), x)


CALLS = {
    "norm_class": (
        bounds.norm_class,
        randn(5, 3),
        randn(2, 4, 5, seed=1),
        randn(2, 5, 4, seed=2),
        randn(2, 5),
        randn(7, 3),
    ),
    "network_class": (network_class, randn(2, 4, 5, seed=1), randn(2, 5, 4, seed=2), randn(2, 3, 5), randn(7, 3)),
    "lip_chain": (bounds.lip_chain, NET),
    "lip_chain inserted": (bounds.lip_chain, ONE),
    "sensitivities": (bounds.sensitivities, NET),
    "top_lipschitz": (lambda net, r: bounds.top_lipschitz(net, 1, r, 1.0), ONE, N / 1e8),
    "cross_entropy_range": (lambda s: bounds.cross_entropy_range(16, 4, s), N / 1e7),
    "cover_bound": (bounds.cover_bound, N, NET),
    "rademacher_bound": (bounds.rademacher_bound, N, NET),
    "frozen_class_bound": (lambda n: bounds.frozen_class_bound(n, 1.0, 0.5, 16, 3.0, **FRESH, feature_max=4.0), N),
    "path_norm_bound": (lambda n: bounds.path_norm_bound(n, 1.0, 0.5, 16, **FRESH, paired=True), N),
    "directions_bound": (lambda n: bounds.directions_bound(n, 3, 1.0, 0.5, 3.0, **FRESH), N),
    "population_bound": (lambda r: bounds.population_bound(r, 0.1, r, r), RISKS[0]),
    "route_a": (lambda r: bounds.route_a(r, 0.1, r, r), RISKS[0]),
    "route_a_failure": (lambda n: bounds.route_a_failure(0.01, n), N),
    "route_a_free": (lambda n: bounds.route_a_free(0.5, 0.1, 0.0, 0.01, n, 0.05), N),
    "route_b": (lambda r: bounds.route_b(r, r, r, r, 0.1), RISKS[0]),
    "route_b_prime": (lambda n: bounds.route_b_prime(0.5, 0.1, 0.0, 0.01, n, 0.05), N),
    "hoeffding_deviation": (bounds.hoeffding_deviation, N, 0.05),
    "hoeffding_test_size": (bounds.hoeffding_test_size, N / 1e8, 0.05),
    "samples_needed": (lambda t: bounds.samples_needed(lambda n: 2 / n.sqrt(), t), N / 1e8),
    "nested_bounds": (
        lambda net, n: bounds.nested_bounds(net, 1, 0.5, new=net)[1](n[:, None]),
        replace(NET, depth=3),
        N,
    ),
    "promise_from": (lambda m: bounds.promise_from(lambda n: 2 / n.sqrt(), m, 1e6, route="B"), N / 1e8),
    "decompose_test_change": (lambda r: bounds.decompose_test_change(*r), RISKS),
    "require_probability": (lambda p: bounds.require_probability(fail_prob=p), N / 1e8),
    "dominated_excess": (lambda n: scaling.dominated_excess(n, 1.0, 0.5, 1.0), N),
    "dominated_recursion": (lambda e: scaling.dominated_recursion(5, e, 0.5, 1.0), N / 1e7),
    "signal": (lambda n: scaling.signal(n, 1.0, 1.0), N),
    "signal_excess": (lambda n: scaling.signal_excess(n, 1.0, 1.0), N / 1e4),
    "visible_depth": (lambda n: scaling.visible_depth(n, 16.0, 1.0, 1.0, 1.0), N),
    "data_risk": (lambda n: scaling.data_risk(4.0, n, 16.0, 1.0, 1.0, 0.5), N),
    "best_depth": (lambda n: scaling.best_depth(n, 16.0, 1.0, 1.0, 0.5), N),
    "data_exponent": (scaling.data_exponent, N),
    "deepest_useful": (lambda g: scaling.deepest_useful(g, 0.45), RISKS),
}
test_same_values_on_every_device, test_nothing_is_made_without_a_device = same_everywhere(CALLS, rtol=1e-9, atol=1e-12)


def test_numbers_alone_go_to_the_chosen_device(device, monkeypatch):
    net = NormClass(depth=2, width=8, s_1=0.5, s_2=0.5, s_in=1.5, s_out=2, input_norm=3, input_rms=0.5)
    expected = bounds.cover_bound(1e5, net)
    monkeypatch.setenv("LABKIT_DEVICE", str(device.place))
    assert compute.device().type == device.place.type
    assert_same(device.back(bounds.cover_bound(1e5, net)), expected, rtol=1e-9, atol=0)


def test_collapse_reads_from_every_device(device):
    assert bounds.collapse(device.move(NET)) == bounds.collapse(NET) != ""


@pytest.mark.parametrize("room", [bounds, scaling], ids=lambda room: room.__name__)
def test_every_public_function_is_called_above(room):
    own = inspect.getmembers(room, lambda it: inspect.isfunction(it) and it.__module__ == room.__name__)
    called = {name.split()[0] for name in CALLS} | {"collapse"}
    assert {name for name, _ in own if not name.startswith("_")} <= called
