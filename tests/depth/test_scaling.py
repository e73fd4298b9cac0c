"""The laws against their recursions, sums and minimizers run in full, and the exponents against slopes."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from labkit.depth.scaling import (
    best_depth,
    data_exponent,
    data_risk,
    deepest_useful,
    dominated_excess,
    dominated_recursion,
    signal,
    signal_excess,
    visible_depth,
)

F64 = torch.float64


def tensor(*values):
    return torch.tensor(values, dtype=F64)


def slope(x, y):
    return float((y[-1] / y[0]).log() / (x[-1] / x[0]).log())


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("initial, gain", [(1.0, 0.3), (0.25, 0.8), (3.0, 0.05)])
def test_recursion_stays_below_the_closed_bound(initial, gain, alpha):
    """E_{D+1} = E_D − k E_D^{1 + 1/α} in plain Python: never above, within 2 % for D = 20 000 (section f)."""
    excess, path = initial, [initial]
    for _ in range(20_000):
        excess = excess - gain * excess ** (1 + 1 / alpha)
        path.append(excess)
    path = torch.tensor(path, dtype=F64)
    limit = dominated_excess(torch.arange(20_001, dtype=F64), initial, gain, alpha)
    assert (path <= limit * (1 + 1e-12)).all()
    assert path[-1] >= 0.98 * limit[-1]
    depths = tensor(10_000.0, 20_000.0)
    assert slope(depths, path[[10_000, 20_000]]) == pytest.approx(-alpha, rel=0.03)
    torch.testing.assert_close(dominated_recursion(300, initial, gain, alpha), path[:301])


def test_more_gain_than_asked_is_allowed():
    """Any sequence that gains at least k E^{1 + 1/α} stays below the bound: random surpluses."""
    generator = torch.Generator().manual_seed(0)
    excess, alpha, gain = torch.ones(100, dtype=F64), 1.3, 0.2
    for depth in range(1, 200):
        least = gain * excess ** (1 + 1 / alpha)
        excess = excess - least - (excess - least) * 0.1 * torch.rand(100, dtype=F64, generator=generator)
        assert (excess <= dominated_excess(depth, 1.0, gain, alpha)).all()


def test_signal_excess_is_the_sum_of_gains():
    """Summed to 10⁶, with the integral of the rest; its two bounds; slope −α."""
    j = np.arange(1, 1_000_001)
    for alpha, c in ((0.7, 0.3), (1.5, 2.0)):
        gains = c * j ** (-1.0 - alpha)
        rest = c / alpha * 1_000_000.5**-alpha  # midpoint rule of the tail
        for depth in (1, 7, 300):
            exact = signal_excess(float(depth), c, alpha).item()
            assert exact == pytest.approx(gains[depth - 1 :].sum() + rest, rel=1e-8)
            assert c / alpha * depth**-alpha <= exact
            assert depth == 1 or exact <= c / alpha * (depth - 1) ** -alpha
        depths = tensor(1e3, 1e4)
        assert slope(depths, signal_excess(depths, c, alpha)) == pytest.approx(-alpha, abs=1e-3)
        slopes = signal(depths, c, alpha, curvature=0.4)
        torch.testing.assert_close(0.4 * slopes**2, c * depths ** -(1 + alpha))
        assert slope(depths, slopes) == pytest.approx(-(1 + alpha) / 2)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_visible_depth_is_where_the_signal_sinks_into_the_noise(gamma):
    """√(n w^γ) G_D/τ = z there; the deepest risk then falls as (n w^γ)^{−α/(1 + α)}."""
    alpha, n, width = 1.2, torch.logspace(4, 9, 6, dtype=F64), 32.0
    depth = visible_depth(n, width, 0.5, alpha, 0.8, gamma, curvature=0.3, z=2.0)
    seen = (n * width**gamma).sqrt() * signal(depth, 0.5, alpha, 0.3) / 0.8
    torch.testing.assert_close(seen, torch.full_like(n, 2.0))
    risk = signal_excess(depth, 0.5, alpha)
    assert slope(n[3:], risk[3:]) == pytest.approx(-alpha / (1 + alpha), abs=0.01)
    wider = visible_depth(n, 2 * width, 0.5, alpha, 0.8, gamma, curvature=0.3, z=2.0)
    torch.testing.assert_close(wider / depth, torch.full_like(n, 2 ** (gamma / (1 + alpha))))


@pytest.mark.parametrize("rate, power", [("slow", 0.5), ("fast", 1.0)])
@pytest.mark.parametrize("alpha", [0.4, 1.0, 2.5])
def test_best_depth_is_the_minimizer(alpha, rate, power):
    """scipy's minimum of A D^{−α} + C w (D/n)^p; the exponents of D* and of the risk in n."""
    n, width, a, cost = torch.logspace(4, 8, 3, dtype=F64), 16.0, 2.0, 0.05
    found = best_depth(n, width, a, alpha, cost, rate)
    for size, depth in zip(n.tolist(), found.tolist(), strict=True):

        def risk(u, size=size):
            return a * math.exp(-alpha * u) + cost * width * (math.exp(u) / size) ** power

        best = minimize_scalar(risk, bounds=(-5, 25), method="bounded", options={"xatol": 1e-9})
        assert depth == pytest.approx(math.exp(best.x), rel=1e-5)
        assert data_risk(depth, size, width, a, alpha, cost, rate).item() == pytest.approx(best.fun, rel=1e-9)
    least = data_risk(found, n, width, a, alpha, cost, rate)
    assert slope(n, least) == pytest.approx(data_exponent(alpha, rate).item())
    assert slope(n, found) == pytest.approx(1 / (2 * alpha + 1) if rate == "slow" else 1 / (1 + alpha))


def test_deepest_useful_is_the_first_crossing():
    generator = torch.Generator().manual_seed(1)
    gain, cost = (
        torch.rand(200, 9, dtype=F64, generator=generator),
        torch.rand(200, 9, dtype=F64, generator=generator) / 2,
    )
    found = deepest_useful(gain, cost)
    for row in range(200):
        expected = 0
        while expected < 9 and gain[row, expected] > cost[row, expected]:
            expected += 1
        assert found[row] == expected
    assert set(found.tolist()) >= {0, 1, 2, 3} and found.dtype == torch.int64
    assert deepest_useful(tensor(1.0, 1.0), 0.0) == 2 and deepest_useful(tensor(0.0, 1.0), 0.0) == 0
    # a data law read as marginal gain and cost crosses at its own best depth
    depth = torch.arange(1, 1000, dtype=F64)
    worth, price = 2.0 * depth**-0.8, 0.05 * 16 * (depth / 1e6).sqrt()
    crossing = 1 + deepest_useful(-worth.diff(), price.diff())
    assert abs(crossing - best_depth(1e6, 16.0, 2.0, 0.8, 0.05)) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_signal_excess_at_the_ends_of_its_exponent(dtype):
    """Between the integrals of the docstring at every exponent; the first gain alone when that is all."""
    alpha = torch.logspace(-8, 1, 40, dtype=dtype)
    for depth in (2.0, 30.0, 1e4, 1e12):
        found = signal_excess(depth, 1.0, alpha).double() * alpha.double()
        low, high = (d ** -alpha.double() for d in (depth, depth - 1))
        slack = 4 * torch.finfo(dtype).eps ** (2 / 3)  # what 1 + α forgets of a small α, or its series leaves out
        within = (found >= low * (1 - slack)) & (found <= high * (1 + slack))
        assert (within | (high < torch.finfo(dtype).tiny)).all()
    assert signal_excess(1.0, 1.0, tensor(1e-3).to(dtype)).item() == pytest.approx(1000.5771430, rel=1e-6)
    assert signal_excess(1.0, 1.0, tensor(1e-7).to(dtype)).item() == pytest.approx(1e7 + 0.5772157, rel=1e-7)
    steep = tensor(1e4, 9e4, 1.1e5, 1e10, 1e25, 1e30).to(dtype)
    assert (signal_excess(2.0, 1.0, steep) == 0).all() and (signal_excess(1.0, 3.0, steep) == 3).all()
    assert signal_excess(2, 1, 1e300) == 0 and signal_excess(1, 1, 1e300) == 1
    assert signal_excess(1 + 1e-6, 1.0, 1e6).item() == pytest.approx(math.exp(-1), rel=1e-5)


LAWS = {  # arguments all broadcast
    "dominated_excess": (dominated_excess, {"depth": 3.0, "initial": 1.0, "gain": 0.1, "risk_exponent": 1.0}),
    "signal": (signal, {"depth": 3.0, "amplitude": 1.0, "risk_exponent": 1.0, "curvature": 1.0}),
    "signal_excess": (signal_excess, {"depth": 3.0, "amplitude": 1.0, "risk_exponent": 1.0}),
    "visible_depth": (
        visible_depth,
        dict.fromkeys(
            ["n", "width", "amplitude", "risk_exponent", "noise_std", "width_exponent", "curvature", "z"], 2.0
        ),
    ),
    "data_risk": (data_risk, dict.fromkeys(["depth", "n", "width", "amplitude", "risk_exponent", "cost"], 2.0)),
    "best_depth": (best_depth, dict.fromkeys(["n", "width", "amplitude", "risk_exponent", "cost"], 2.0)),
    "dominated_recursion": (
        lambda **named: dominated_recursion(2, **named),
        {"initial": 1.0, "gain": 0.1, "risk_exponent": 1.0},
    ),
    "deepest_useful": (deepest_useful, {"marginal_gain": 1.0, "marginal_cost": 0.5}),
}


@pytest.mark.parametrize("name", LAWS)
def test_shapes_that_do_not_broadcast_are_refused_by_name(name):
    """For every pair of arguments."""
    law, values = LAWS[name]
    for one, other in itertools.permutations(values, 2):
        shapes = {one: torch.full((2,), values[one]), other: torch.full((3,), values[other])}
        with pytest.raises(ValueError, match=rf"do not broadcast: (.*{one} \(2,\)|.*{other} \(3,\)){{1,2}}"):
            law(**values | shapes)


@pytest.mark.parametrize("name", LAWS)
def test_no_law_takes_nan_or_a_list(name):
    law, values = LAWS[name]
    for one in values:
        with pytest.raises(ValueError, match=one):
            law(**values | {one: tensor(1.0, math.nan)})
        with pytest.raises(TypeError, match=f"{one} must be a number or a torch tensor"):
            law(**values | {one: [1.0]})


FAR = (  # of numbers a and b that may be far from 1, by a constructor of tensors
    lambda like, a, b: signal(like(2.0), like(a), like(1.0), like(b)),
    lambda like, a, b: signal(like(2.0), like(a), like(1.0), like(a)),
    lambda like, a, b: visible_depth(like(a), like(4.0), like(a), like(1.0), like(a), curvature=like(b)),
    lambda like, a, b: visible_depth(like(a), like(a), like(b), like(3.0), like(a), like(1.0)),
    lambda like, a, b: best_depth(like(a), like(a**0.5), like(a), like(1.0), like(a)),
    lambda like, a, b: best_depth(like(a), like(a), like(a), like(1.0), like(a), "fast"),
    lambda like, a, b: dominated_excess(like(3.0), like(1e-3), like(0.1 * b / max(a, b)), like(0.05)),
    lambda like, a, b: dominated_excess(like(3.0), like(1e10), like(0.0), like(0.05)),
)


@pytest.mark.parametrize("law", FAR)
def test_laws_in_float32_are_those_in_float64_at_any_scale(law):
    """Where the result is a float32, no step on the way may leave it."""
    for a, b in itertools.product((1e-25, 1.0, 1e25), repeat=2):
        expected = law(lambda v: torch.tensor(v, dtype=F64), a, b)
        if 1e-37 < expected < 1e37:
            torch.testing.assert_close(law(torch.tensor, a, b).double(), expected, rtol=1e-5, atol=0)


def test_laws_broadcast():
    depth, alpha = tensor([1.0], [5.0], [20.0]), tensor(0.5, 1.0)
    for law in (
        lambda d, a: dominated_excess(d, 1.0, 0.1, a),
        lambda d, a: signal(d, 1.0, a),
        lambda d, a: signal_excess(d, 1.0, a),
        lambda d, a: data_risk(d, 1e4, 16.0, 1.0, a, 0.1),
        lambda d, a: best_depth(1e4 * d, 16.0, 1.0, a, 0.1),
        lambda d, a: visible_depth(1e4 * d, 16.0, 1.0, a, 1.0),
    ):
        together = law(depth, alpha)
        assert together.shape == (3, 2)
        torch.testing.assert_close(together[1, 0], law(depth[1, 0], alpha[0]))
    assert dominated_recursion(4, depth / 20, 0.1, alpha).shape == (3, 2, 5)


REFUSED = {
    r"gain must be <= initial\^\(-1/risk_exponent\): no block gains more than the excess, got 1.5": lambda: (
        dominated_excess(1.0, 1.0, 1.5, 1.0)
    ),
    r"gain\[1\] = 0.6 must be <= initial": lambda: dominated_recursion(2, 2.0, tensor(0.4, 0.6), 1.0),
    "initial must be positive and finite, got 0.0": lambda: dominated_excess(1.0, 0.0, 0.1, 1.0),
    "risk_exponent must be positive and finite, got 0.0": lambda: signal(1.0, 1.0, 0.0),
    "risk_exponent must be positive and finite, got -1.0": lambda: data_exponent(-1.0),
    "steps must be a whole number >= 0, got -1": lambda: dominated_recursion(-1, 1.0, 0.1, 1.0),
    r"depth must lie in \[0, inf\), got -1.0": lambda: dominated_excess(-1.0, 1.0, 0.1, 1.0),
    r"depth must lie in \[1, inf\), got 0.5": lambda: signal_excess(0.5, 1.0, 1.0),
    r"depth\[1\] = 0.0 must be positive": lambda: data_risk(tensor(1.0, 0.0), 1e4, 16.0, 1.0, 1.0, 0.1),
    "n must be positive and finite, got nan": lambda: visible_depth(math.nan, 16.0, 1.0, 1.0, 1.0),
    "width_exponent must be finite, got inf": lambda: visible_depth(1.0, 16.0, 1.0, 1.0, 1.0, math.inf),
    "rate must be one of slow, fast, got 'medium'": lambda: best_depth(1e4, 16.0, 1.0, 1.0, 0.1, "medium"),
    "marginal_gain must have a last axis of at least one step": lambda: deepest_useful(tensor(), 0.1),
    r"marginal_gain\[0\] = nan must be finite": lambda: deepest_useful(tensor(math.nan, 1.0), 0.1),
    r"these shapes do not broadcast: n \(2,\), .*risk_exponent \(3,\)": lambda: best_depth(
        tensor(1.0, 2.0), 16.0, 1.0, tensor(1.0, 2.0, 3.0), 0.1
    ),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_bad_input_is_refused_in_a_sentence(sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        REFUSED[sentence]()
