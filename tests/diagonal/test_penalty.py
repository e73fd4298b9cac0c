"""The penalty and the regimes against quadrature, root finding, finite differences and limits."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq

from labkit.diagonal.penalty import (
    ell_order,
    pretraining_dependence,
    q,
    q_lasso,
    q_prime,
    q_prime_inverse,
    q_ridge,
    regime_name,
    regime_weights,
    root_k_finetune,
    root_k_init,
)

EPS = torch.finfo(torch.float64).eps
INF = float("inf")


def log_uniform(low, high, n, generator):
    u = torch.rand(n, dtype=torch.float64, generator=generator)
    return torch.exp(math.log(low) + u * math.log(high / low))


# --- q and its derivative -----------------------------------------------------------------------------------


@pytest.mark.parametrize("root_k", [1e-3, 0.3, 40.0])
@pytest.mark.parametrize("beta", [-2.0, 1e-4, 0.7, 5.0])
def test_q_is_the_integral_of_its_price(beta, root_k):
    truth, _ = quad(lambda z: math.asinh(2 * z / root_k) / 2, 0, beta, epsabs=0, epsrel=1e-12, limit=200)
    assert q(beta, root_k).item() == pytest.approx(truth, rel=1e-11)


def test_q_prime_is_the_derivative_of_q():
    beta = torch.linspace(-3, 3, 101, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(q(beta, 0.2).sum(), beta)
    torch.testing.assert_close(gradient, q_prime(beta, 0.2), rtol=1e-12, atol=1e-14)


def test_q_keeps_its_digits_where_the_textbook_form_cancels():
    beta = torch.tensor([1e-9, 1e-6, 1e-5], dtype=torch.float64)
    torch.testing.assert_close(q(beta, 1.0), beta**2 / 2 * (1 - beta**2 / 3), rtol=4 * EPS, atol=0)
    u = 2 * beta
    textbook = (1 - torch.sqrt(1 + u**2) + u * torch.asinh(u)) / 4
    assert ((textbook / q(beta, 1.0) - 1).abs() > 1e-7).any()


@pytest.mark.parametrize("root_k", [1e-9, 0.5, 1e3])
@pytest.mark.parametrize("s", [-1.5, 1e-6, 0.3, 6.0])
def test_q_prime_inverse_solves_for_the_coefficient(s, root_k):
    beta = q_prime_inverse(s, root_k).item()
    low, high = sorted((0.0, 2 * beta))
    truth = brentq(lambda z: math.asinh(2 * z / root_k) / 2 - s, low, high, xtol=1e-300, rtol=1e-14)
    assert beta == pytest.approx(truth, rel=1e-12)


def test_q_tends_to_ridge_and_to_lasso():
    u = torch.tensor([1e-4, 1e-3], dtype=torch.float64)
    assert ((q(u / 2, 1.0) / q_ridge(u / 2, 1.0) - 1).abs() <= u**2 / 12 * 1.01).all()  # q = ridge·(1 − u²/12 + …)
    beta = torch.tensor([-1e3, 1e2, 1e3], dtype=torch.float64)
    assert ((q(beta, 1.0) - q_lasso(beta, 1.0)).abs() <= 1 / (32 * beta.abs()) * 1.01).all()  # next term −k/(32|β|)
    assert q_lasso(0.0, 2.0).item() == 0.5


# --- the shape parameter ------------------------------------------------------------------------------------


def test_root_k_init_is_the_conserved_product(generator):
    w_plus, v_plus, w_minus, v_minus = torch.randn(4, 50, dtype=torch.float64, generator=generator)
    norm = w_plus**2 + v_plus**2 + w_minus**2 + v_minus**2
    beta = w_plus * v_plus - w_minus * v_minus
    root_k = root_k_init(w_plus, v_plus, w_minus, v_minus)
    torch.testing.assert_close(root_k**2, norm**2 - 4 * beta**2, rtol=1e-10, atol=0)


@pytest.mark.parametrize("lam", [-1.0, -0.9, 0.0, 0.4, 1.0])
def test_single_task_root_k_does_not_know_lam(lam):
    c = 0.3
    w, v = math.sqrt(c * (1 + lam) / 2), math.sqrt(c * (1 - lam) / 2)
    assert root_k_init(w, v, w, v).item() == pytest.approx(2 * c, rel=1e-15)


@pytest.mark.parametrize("c, lam, gamma, active, unused", [(1e-3, -0.9, 0.01, 0.2003, 5e-4), (0.1, 0, 0.1, 2.22, 0.41)])
def test_root_k_finetune_follows_the_weights_of_the_flow(c, lam, gamma, active, unused):
    w, v = math.sqrt(c * (1 + lam) / 2), math.sqrt(c * (1 - lam) / 2)
    for beta_pt, printed in ((1.0, active), (0.0, unused)):
        s = math.asinh(beta_pt / c) / 2
        w_plus = ((w + v) * math.exp(s) + (w - v) * math.exp(-s)) / 2
        w_minus = ((w + v) * math.exp(-s) + (w - v) * math.exp(s)) / 2
        readout = gamma / math.sqrt(2)
        measured = root_k_init(w_plus + w_minus, readout, w_plus + w_minus, readout)
        formula = root_k_finetune(beta_pt, c, lam, gamma)
        assert measured.item() == pytest.approx(formula.item(), rel=1e-12)
        assert formula.item() == pytest.approx(printed, rel=5e-3)


def test_saddle_is_refused_with_its_reason():
    with pytest.raises(ValueError, match=r"lam must be > -1 where gamma = 0 \(a saddle.*nothing moves\), got -1"):
        root_k_finetune(1.0, 0.1, -1.0, 0.0)
    lam = torch.tensor([[0.0, -1.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"lam\[0, 1\] = -1.0 must be > -1 where gamma = 0"):
        pretraining_dependence(1.0, 1.0, 0.1, lam, 0.0)
    assert root_k_finetune(5.0, 0.1, -1.0, 0.5).item() == 0.25  # complete amnesia: only γ² is left


# --- ℓ-order and pretraining dependence ---------------------------------------------------------------------


def random_settings(n, generator):
    def draw(low, high):
        return log_uniform(low, high, n, generator)

    return draw(1e-2, 1e2), draw(1e-2, 1e2), draw(1e-4, 1e2), draw(1e-3, 2) - 1, draw(1e-3, 3)


def test_ell_and_pd_are_the_elasticities_of_the_price(generator):
    beta_ft, beta_pt, c, lam, gamma = random_settings(200, generator)

    def log_price(log_ft, log_pt):
        return torch.log(q(torch.exp(log_ft), root_k_finetune(torch.exp(log_pt), c, lam, gamma)))

    def central(f, step=1e-3):  # fourth order
        return (8 * (f(step) - f(-step)) - (f(2 * step) - f(-2 * step))) / (12 * step)

    x, y = beta_ft.log(), beta_pt.log()
    ell = central(lambda step: log_price(x + step, y))
    pd = central(lambda step: log_price(x, y + step))
    root_k = root_k_finetune(beta_pt, c, lam, gamma)
    torch.testing.assert_close(ell_order(beta_ft, root_k), ell, rtol=0, atol=1e-9)
    torch.testing.assert_close(pretraining_dependence(beta_ft, beta_pt, c, lam, gamma), pd, rtol=0, atol=1e-9)


def test_ell_and_pd_agree_with_autograd_of_the_price(generator):
    beta_ft, beta_pt, c, lam, gamma = random_settings(200, generator)
    beta_ft.requires_grad_(), beta_pt.requires_grad_()
    price = q(beta_ft, root_k_finetune(beta_pt, c, lam, gamma))
    slope_ft, slope_pt = torch.autograd.grad(price.log().sum(), (beta_ft, beta_pt))
    ell = ell_order(beta_ft, root_k_finetune(beta_pt, c, lam, gamma))
    pd = pretraining_dependence(beta_ft, beta_pt, c, lam, gamma)
    torch.testing.assert_close(beta_ft * slope_ft, ell, rtol=0, atol=1e-12)
    torch.testing.assert_close(beta_pt * slope_pt, pd, rtol=0, atol=1e-12)


def test_ell_limits():
    u = torch.tensor([0.0, 1e-300, 0.9e-8, 1.1e-8, 1e-3, 1e-2], dtype=torch.float64)
    torch.testing.assert_close(ell_order(u / 2, 1.0), 2 - u**2 / 6 + 31 * u**4 / 360, rtol=0, atol=1e-12)
    u = torch.tensor([1e6, 1e12, 1e30], dtype=torch.float64)
    assert ((ell_order(u / 2, 1.0) - 1 - 1 / (torch.log(2 * u) - 1)).abs() <= 1 / u + 4 * EPS).all()
    assert 1.099 < ell_order(1.5e4, 1.0) < 1.101  # ℓ = 1.1 needs u ≈ 3·10⁴


def extreme_settings(n, generator):
    """c, γ over 18 decades and γ = 0, |β| up to 1e6 and exactly 0, λ = ±1 and log-uniform in 1+λ."""

    def draw(low, high):
        return log_uniform(low, high, n, generator)

    def some(share):
        return torch.rand(n, generator=generator) < share

    c, gamma = draw(1e-12, 1e6), draw(1e-12, 1e6)
    beta_ft, beta_pt = draw(1e-12, 1e6), draw(1e-12, 1e6)
    lam = draw(1e-15, 2) - 1
    beta_ft[some(0.05)], beta_pt[some(0.05)], gamma[some(0.1)], lam[some(0.05)] = 0, 0, 0, 1
    lam[some(0.05) & (gamma > 0)] = -1
    sign = torch.where(some(0.5), -1.0, 1.0).double()
    return sign * beta_ft, sign.flip(0) * beta_pt, c, lam, gamma


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ranges_and_trade_off_over_extreme_parameters(dtype, generator):
    settings = [value.to(dtype) for value in extreme_settings(100_000, generator)]
    beta_ft, beta_pt, c, lam, gamma = settings
    lam[gamma == 0] = lam[gamma == 0].clamp_min(-1 + torch.finfo(dtype).eps)  # float32 rounds some λ to −1
    root_k = root_k_finetune(beta_pt, c, lam, gamma)
    ell = ell_order(beta_ft, root_k)
    pd = pretraining_dependence(beta_ft, beta_pt, c, lam, gamma)
    weights = regime_weights(ell, pd)
    slack = 8 * torch.finfo(dtype).eps
    for value in (root_k, ell, pd, weights, q(beta_ft, root_k), q_prime(beta_ft, root_k)):
        assert value.dtype == dtype and value.isfinite().all()
    assert (root_k > 0).all()
    assert (ell >= 1 - slack).all() and (ell <= 2 + slack).all()
    assert (pd >= -1 - slack).all() and (pd <= 0).all()
    assert (ell + pd >= 1 - slack).all() and (ell + pd <= 2 + slack).all()
    assert (weights >= 0).all() and ((weights.sum(-1) - 1).abs() <= slack).all()


def test_gradients_are_finite_over_extreme_parameters(generator):
    settings = [value.requires_grad_() for value in extreme_settings(20_000, generator)]
    beta_ft, beta_pt, c, lam, gamma = settings
    root_k = root_k_finetune(beta_pt, c, lam, gamma)
    for value in (
        q(beta_ft, root_k),
        ell_order(beta_ft, root_k),
        q_prime(beta_ft, root_k),
        q_lasso(beta_ft, root_k),
    ):
        for gradient in torch.autograd.grad(value.sum(), settings, retain_graph=True):
            assert gradient.isfinite().all()
    for gradient in torch.autograd.grad(pretraining_dependence(*settings).sum(), settings):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("scale", [1e-6, 0.37, 2.0, 1e5])
def test_scale_covariance(scale, generator):
    """(β, c, γ²) → (sβ, sc, sγ²): √k and q gain a factor s, ℓ and PD stay."""
    beta_ft, beta_pt, c, lam, gamma = random_settings(1000, generator)
    scaled = (scale * beta_pt, scale * c, lam, math.sqrt(scale) * gamma)
    root_k, root_k_scaled = root_k_finetune(beta_pt, c, lam, gamma), root_k_finetune(*scaled)
    same = {"rtol": 32 * EPS, "atol": 0}
    torch.testing.assert_close(root_k_scaled, scale * root_k, **same)
    torch.testing.assert_close(q(scale * beta_ft, scale * root_k), scale * q(beta_ft, root_k), **same)
    torch.testing.assert_close(ell_order(scale * beta_ft, root_k_scaled), ell_order(beta_ft, root_k), **same)
    pd = pretraining_dependence(beta_ft, beta_pt, c, lam, gamma)
    torch.testing.assert_close(pretraining_dependence(scale * beta_ft, *scaled), pd, **same)


# At |β_PT| = |β_FT| = 1: c, λ, γ, √k active, √k unused, ℓ, PD, weights, regime by the .8 rule.
TABLE = [
    (1e-6, 1, 0, "4.000", "8e-6", "1.963", "-0.963", (0.04, 0.96, 0.00), "II"),
    (1e-3, 0, 0.01, "2.002", "0.0041", "1.887", "-0.886", (0.11, 0.89, 0.00), "II"),
    (1e-3, -0.9, 0.01, "0.2003", "5e-4", "1.433", "-0.432", (0.57, 0.43, 0.00), "IV"),
    (1e-3, -0.99, 0.01, "0.0201", "1.4e-4", "1.230", "-0.229", (0.77, 0.23, 0.00), "IV"),
    (1e-6, -0.999, 0.001, "0.0020", "1e-6", "1.151", "-0.151", (0.85, 0.15, 0.00), "I"),
    (1e-3, -1, 0.01, "1e-4", "1e-4", "1.104", "0", (0.90, 0, 0.10), "I"),
    (1e-6, -1, 1e-4, "1e-8", "1e-8", "1.053", "0", (0.95, 0, 0.05), "I"),
    (0.1, 0, 0.1, "2.22", "0.41", "1.902", "-0.809", (0.10, 0.81, 0.09), "II"),
    (0.1, -0.9, 0.1, "0.231", "0.05", "1.454", "-0.391", (0.55, 0.39, 0.06), "IV"),
    (1, 0, 0, "4.83", "4", "1.974", "-0.285", (0.03, 0.29, 0.69), "between"),
    (10, 0, 0, "40.1", "40", "1.9996", "-0.005", (0, 0.005, 0.995), "III"),
    (1e-3, 0, 30, "902", "900", "2.000", "-0.002", (0, 0, 1), "III"),
]


def printed_like(value, text):
    """Whether value agrees with a printed number to its last printed digit."""
    mantissa = text.split("e")[0]
    decimals = len(mantissa.split(".")[1]) if "." in mantissa else 0
    exponent = int(text.split("e")[1]) if "e" in text else 0
    return abs(value - float(text)) <= 0.5001 * 10.0 ** (exponent - decimals)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"c={row[0]}-lam={row[1]}-gamma={row[2]}")
def test_table_of_regimes(row):
    c, lam, gamma, active, unused, ell_text, pd_text, weights_text, regime = row
    root_k = root_k_finetune(1.0, c, lam, gamma)
    ell = ell_order(1.0, root_k)
    pd = pretraining_dependence(1.0, 1.0, c, lam, gamma)
    weights = regime_weights(ell, pd)
    assert printed_like(root_k.item(), active)
    assert printed_like(root_k_finetune(0.0, c, lam, gamma).item(), unused)
    assert printed_like(ell.item(), ell_text)
    assert printed_like(pd.item(), pd_text)
    assert weights.tolist() == pytest.approx(weights_text, abs=0.0051)
    assert regime_name(weights) == regime


def test_corners():
    lasso = regime_weights(ell_order(1.0, root_k_finetune(1.0, 1e-6, -1, 1e-30)), 0.0)  # I: λ → −1, γ → 0
    root_k = root_k_finetune(1.0, 1e-12, 1, 0)
    reuse = regime_weights(
        ell_order(1e-4, root_k), pretraining_dependence(1e-4, 1.0, 1e-12, 1, 0)
    )  # II: |β_FT| ≪ |β_PT|
    torch.testing.assert_close(q(1e-4, root_k).item(), 1e-8 / 8, rtol=1e-8, atol=0)  # Q → Σ β_FT²/(8|β_PT|)
    root_k = root_k_finetune(1.0, 1e6, 0, 0)
    lazy = regime_weights(ell_order(1.0, root_k), pretraining_dependence(1.0, 1.0, 1e6, 0, 0))  # III: c → ∞
    assert [regime_name(w) for w in (lasso, reuse, lazy)] == ["I", "II", "III"]
    assert min(lasso[0], reuse[1], lazy[2]) > 0.99


# --- regimes ------------------------------------------------------------------------------------------------


def test_regime_name_at_the_edges_of_the_rule():
    weights = torch.tensor(
        [
            [0.8, 0.2, 0.0],
            [0.1, 0.8, 0.1],
            [0.0, 0.2, 0.8],
            [0.5, 0.31, 0.19],
            [0.5, 0.3, 0.2],
            [0.79, 0.21, 0.0],
        ],
        dtype=torch.float64,
    )
    assert regime_name(weights) == ["I", "II", "III", "IV", "between", "IV"]
    assert regime_name(weights.reshape(2, 3, 3)) == [["I", "II", "III"], ["IV", "between", "IV"]]
    assert regime_name(weights[0]) == "I" and type(regime_name(weights[0])) is str
    with pytest.raises(ValueError, match=r"weights must be \(..., 3\) for I, II, III, got \(2,\)"):
        regime_name(torch.ones(2))


def test_points_outside_the_triangle_are_refused():
    for ell, pd, sentence in (
        (2.1, 0.0, r"ell must lie in \[1, 2\], got 2.1"),
        (1.5, 0.2, r"pd must lie in \[-1, 0\], got 0.2"),
        (1.25, -0.5, r"ell \+ pd must lie in \[1, 2\].*got 0.75"),
    ):
        with pytest.raises(ValueError, match=sentence):
            regime_weights(ell, pd)


# --- arguments ----------------------------------------------------------------------------------------------

GOOD = {"beta_ft": 1.0, "beta_pt": 1.0, "c": 0.1, "lam": 0.0, "gamma": 0.1}


@pytest.mark.parametrize(
    "name, value, rule",
    [
        ("lam", 1.3, r"lam must lie in \[-1, 1\], got 1\.3"),
        ("lam", -1.0000001, r"lam must lie in \[-1, 1\]"),
        ("lam", torch.tensor([0.0, 1.5]), r"lam\[1\] = 1\.5 must lie in \[-1, 1\]"),
        ("c", 0.0, "c must be positive and finite, got 0"),
        ("c", -1, "c must be positive and finite, got -1"),
        ("gamma", -0.1, r"gamma must lie in \[0, inf\), got -0\.1"),
        *[(name, math.nan, f"{name} must .*, got nan") for name in GOOD],
        *[(name, INF, f"{name} must .*, got inf") for name in GOOD],
    ],
)
def test_bad_values_are_named(name, value, rule):
    with pytest.raises(ValueError, match=rule):
        pretraining_dependence(**{**GOOD, name: value})


def test_bad_root_k_types_and_shapes_are_named():
    with pytest.raises(ValueError, match="root_k must be positive and finite, got 0"):
        q(1.0, 0)
    with pytest.raises(TypeError, match="beta must be a floating tensor"):
        q_prime(torch.arange(3), 1.0)
    with pytest.raises(ValueError, match=r"beta_ft \(3,\), root_k \(2,\)"):
        ell_order(torch.ones(3), torch.ones(2))
    with pytest.raises(ValueError, match="s is on cpu but root_k is on meta"):
        q_prime_inverse(torch.ones(3), torch.ones(3, device="meta"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_broadcast_dtype_and_device_follow_the_tensors(dtype):
    beta, lam = torch.linspace(-1, 1, 4, dtype=dtype), torch.zeros(3, 1, dtype=dtype)
    torch.set_default_device("meta")  # a tensor made without device= would land there
    try:
        root_k = root_k_finetune(beta, 0.1, lam, 0.1)
        ell = ell_order(beta, root_k)
        weights = regime_weights(ell, pretraining_dependence(beta, beta, 0.1, lam, 0.1))
        names = regime_name(weights)
        values = [
            q(beta, root_k),
            q_prime_inverse(q_prime(beta, root_k), root_k),
            q_ridge(beta, 1.0),
            q_lasso(beta, 1.0),
        ]
        values += [root_k_init(beta, 1, beta, 1)]
    finally:
        torch.set_default_device(None)
    assert root_k.shape == ell.shape == (3, 4) and weights.shape == (3, 4, 3)
    assert np.array(names).shape == (3, 4)
    assert all(value.dtype == dtype and value.device.type == "cpu" for value in [root_k, ell, weights, *values])


def test_root_k_init_has_a_derivative_where_a_coordinate_cannot_move():
    """A or B = 0: √k = |A|·|B| has a kink there, and 0 is its middle slope; a NaN would spoil the whole sum."""
    weights = [torch.tensor([value, 1.0], dtype=torch.float64, requires_grad=True) for value in (1.0, 1.0, 1.0, -1.0)]
    root_k = root_k_init(*weights)
    assert root_k[0] == 0
    root_k.sum().backward()
    assert all(weight.grad.isfinite().all() for weight in weights)
