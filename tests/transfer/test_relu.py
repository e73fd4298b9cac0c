import math
from dataclasses import replace
from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from labkit import training
from labkit.training import SGD
from labkit.transfer import relu
from labkit.transfer.protocol import SOURCES, learn, new_readout, sources
from labkit.transfer.relu import (
    Sizes,
    StableRate,
    column,
    contrast,
    drift,
    features,
    fine_tune,
    forward,
    initial,
    initial_norms,
    invariant,
    kernel_norm,
    norms_after,
    pretrain,
    streams,
    teachers,
)
from tests.transfer.conftest import randn

PLACE = {"device": "cpu", "dtype": torch.float64}
SMALL = Sizes(6, 8, 3, 2, n_pt=40, n_test=50, pt_loss=0.02, ft_loss=0.01, pt_steps=1500, ft_steps=400)


def gradient(w, v, x, y, offset=0.0):
    """Of the mean squared error of one net, neuron by neuron and sample by sample."""
    dw, dv = np.zeros_like(w), np.zeros_like(v)
    for xi, yi, oi in zip(x, y, np.broadcast_to(offset, len(x)), strict=True):
        f = sum(v[j] * max(0.0, float(w[j] @ xi)) for j in range(len(v)))
        r = 2 * (f - oi - yi) / len(x)
        for j in range(len(v)):
            h = float(w[j] @ xi)
            if h > 0:
                dv[j] += r * h
                dw[j] += r * v[j] * xi
    return dw, dv


# --- Closed forms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [-1.0, -0.9, 0.0, 0.3, 1.0])
def test_the_norms_solve_their_two_equations(lam):
    b, c = torch.logspace(-3, 3, 13).double()[:, None], torch.logspace(-3, 3, 7).double()
    found = norms_after(b, c, lam)
    torch.testing.assert_close((found.w * found.v).sqrt(), b.expand_as(found.w))
    assert ((found.w - found.v - lam * c).abs() <= 1e-12 * (found.w + found.v)).all()


@pytest.mark.parametrize("lam", ["-0.999999", "0.999999", "-1", "0"])
@pytest.mark.parametrize("b", ["1e-6", "1", "1e6"])
@pytest.mark.parametrize("c", ["1e-6", "1", "1e6"])
def test_no_digits_are_lost_where_one_of_them_is_tiny(b, c, lam):
    getcontext().prec = 60
    delta, product = Decimal(lam) * Decimal(c), Decimal(b)
    root = (delta**2 + 4 * product**2).sqrt()
    found = norms_after(float(b), float(c), float(lam))
    for ours, exact in zip(found, ((root + delta) / 2, (root - delta) / 2), strict=True):
        # c·λ itself is rounded, which the sum of the two norms feels
        assert abs(ours.item() - float(exact)) <= 1e-12 * float(exact) + 1e-16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_norms_at_the_ends_of_what_numbers_can_be(dtype):
    zero, lam = torch.zeros(1, dtype=dtype), torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0], dtype=dtype)
    silent = norms_after(zero, 2.0, lam)
    assert silent.w.tolist() == [0, 0, 0, 1, 2] and silent.v.tolist() == [2, 1, 0, 0, 0]
    assert contrast(zero, 2.0, lam)[:3].tolist() == [0, 0, 0]  # at lam = -1 by agreement
    large = torch.tensor([torch.finfo(dtype).max / 2], dtype=dtype)
    for norm in norms_after(large, 1.0, lam):
        torch.testing.assert_close(norm, large.expand(5))
    with pytest.raises(ValueError, match=rf"product\[0\] = .* has norms that do not fit into {dtype}"):
        norms_after(1.9 * large, large, lam)


def test_limits_of_the_norms():
    lam = torch.tensor([-0.9, 0.0, 0.9]).double()
    torch.testing.assert_close(norms_after(1.0, 1e-6, lam).w, torch.ones(3).double(), rtol=1e-5, atol=0)  # any lambda
    torch.testing.assert_close(norms_after(1e-3, 10.0, lam[:1]).w, torch.tensor([1e-6 / 9]).double(), rtol=1e-5, atol=0)
    torch.testing.assert_close(norms_after(1e-3, 10.0, lam[2:]).w, torch.tensor([9.0]).double(), rtol=1e-5, atol=0)
    start = initial_norms(0.7, lam)
    again = norms_after((start.w * start.v).sqrt(), 0.7, lam)
    torch.testing.assert_close(again.w, start.w)
    torch.testing.assert_close(again.v, start.v)


def test_contrast_is_the_ratio_of_used_to_unused_norms():
    b, lam = torch.logspace(-3, 3, 13).double()[:, None], torch.tensor([-0.99, -0.5, 0.0, 0.5, 1.0]).double()
    for c in (0.03, 3.0):
        expected = (lam + (lam**2 + 4 * b**2 / c**2).sqrt()) / (1 + lam)
        torch.testing.assert_close(contrast(b, c, lam), expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(contrast(b, c, lam), norms_after(b, c, lam).w / initial_norms(c, lam).w)
        torch.testing.assert_close(contrast(c * (1 - lam**2).sqrt() / 2, c, lam)[:4], torch.ones(4).double())
    assert contrast(1.0, 1.0, -1.0) == math.inf and contrast(0.0, 1.0, -1.0) == 0
    once = contrast(1.0, 1.0, 0.5) * 1.5  # carrying the factor 1 + lambda of the diagonal net over is another number
    assert abs(once - contrast(1.0, 1.0, 0.5)) > 0.5


@pytest.mark.parametrize("function", [initial_norms, norms_after, contrast])
def test_closed_forms_are_differentiable_and_broadcast(function):
    args = [randn(3).abs() + 0.1, (0.8 * randn(3, seed=1).tanh())]
    args = [randn(3, seed=2).abs() + 0.1, *args] if function is not initial_norms else args
    torch.autograd.gradcheck(lambda *a: torch.stack(tuple(function(*a))), [a.requires_grad_() for a in args])
    several = [torch.ones(2, 1), torch.ones(3)] if function is initial_norms else [1.0, torch.ones(2, 1), torch.ones(3)]
    found = function(*several)
    assert (found if function is contrast else found.w).shape == (2, 3)


BAD_SCALES = {
    "c zero": ({"c": 0.0}, "c must be positive and finite, got 0.0"),
    "c negative": ({"c": torch.tensor([1.0, -2.0])}, r"c\[1\] = -2 must be positive and finite"),
    "c infinite": ({"c": math.inf}, "c must be positive and finite, got inf"),
    "lam above": ({"lam": 1.3}, r"lam must lie in \[-1, 1\], got 1.3"),
    "lam below": ({"lam": torch.tensor([0.0, -1.01])}, r"lam\[1\] = -1.01 must lie in \[-1, 1\]"),
    "lam nan": ({"lam": math.nan}, r"lam must lie in \[-1, 1\], got nan"),
}


def call(name, c=1.0, lam=0.0):
    params = initial(4, 3, 1.0, 0.0, training.generators([0, 1]), **PLACE)
    return {
        "initial_norms": lambda: initial_norms(c, lam),
        "norms_after": lambda: norms_after(1.0, c, lam),
        "contrast": lambda: contrast(1.0, c, lam),
        "initial": lambda: initial(4, 3, c, lam, training.generators([0, 1])),
        "drift": lambda: drift(params, c, lam),
        "pretrain": lambda: pretrain(c, lam, range(2), SMALL),
        "column": lambda: column(c, [lam], range(2), sizes=SMALL),
    }[name]()


@pytest.mark.parametrize("bad", BAD_SCALES)
@pytest.mark.parametrize("name", ["initial_norms", "norms_after", "contrast", "initial", "drift", "pretrain", "column"])
def test_scales_out_of_range_are_refused_everywhere(name, bad):
    change, sentence = BAD_SCALES[bad]
    with pytest.raises(ValueError, match=sentence):
        call(name, **change)


def test_other_bad_arguments_of_the_closed_forms():
    with pytest.raises(ValueError, match=r"product must lie in \[0, inf\), got -1.0"):
        norms_after(-1.0, 1.0, 0.0)
    with pytest.raises(ValueError, match=r"do not broadcast: product \(2,\), c \(3,\)"):
        contrast(torch.ones(2), torch.ones(3), 0.0)
    with pytest.raises(
        ValueError, match=r"w must be \(..., hidden, dim\) and v \(..., hidden\), got \(4, 3\) and \(3,\)"
    ):
        invariant(torch.ones(4, 3), torch.ones(3))
    with pytest.raises(TypeError, match="lam must be a number or a torch tensor, got str"):
        contrast(1.0, 1.0, "0")


def flow(w0, v0, x, y, end):
    """Gradient flow of one net by an adaptive Runge-Kutta method."""
    shape = w0.shape

    def speed(_, theta):
        w, v = theta[: w0.size].reshape(shape), theta[w0.size :]
        h = x @ w.T
        r = 2 * (np.maximum(h, 0) @ v - y) / len(x)
        dw = ((r[:, None] * (h > 0)) * v).T @ x
        return -np.concatenate([dw.ravel(), np.maximum(h, 0).T @ r])

    done = solve_ivp(speed, (0, end), np.concatenate([w0.ravel(), v0]), rtol=1e-6, atol=1e-8)
    return done.y[: w0.size, -1].reshape(shape), done.y[w0.size :, -1]


@pytest.mark.parametrize("lam", [-0.9, 0.0, 0.5])
def test_gradient_flow_keeps_the_invariant_and_the_formula_gives_its_norms(lam):
    # orthogonal inputs: with others a neuron may come to rest on a kink, along which no adaptive method gets ahead
    c, x, y = 1.0, 2 * torch.linalg.qr(randn(3, 3))[0].numpy(), np.array([1.0, -0.7, 0.4])
    params = initial(4, 3, c, lam, training.generators([3]), **PLACE)
    w0, v0 = params["w"][0].numpy(), params["v"][0, 0].numpy()
    w, v = flow(w0, v0, x, y, end=6.0)
    assert np.abs(w - w0).max() > 0.1  # it has learned something
    kept = invariant(torch.tensor(w), torch.tensor(v))
    torch.testing.assert_close(kept, torch.full((4,), lam * c).double(), rtol=0, atol=1e-5)
    norms = torch.tensor(w).square().sum(1)
    expected = norms_after(norms.sqrt() * torch.tensor(v).abs(), c, lam).w
    torch.testing.assert_close(norms, expected, rtol=1e-4, atol=0)
    torch.testing.assert_close(
        norms / initial_norms(c, lam).w, contrast(norms.sqrt() * abs(torch.tensor(v)), c, lam), rtol=1e-4, atol=0
    )


# --- The net -------------------------------------------------------------------------------------------------------


def test_the_start_is_mirrored_silent_and_of_the_asked_scales():
    c, lam = torch.tensor([0.5, 3.0]).double(), torch.tensor([-0.9, 1.0]).double()
    params = initial(6, 5, c, lam, training.generators([4, 5]), **PLACE)
    torch.testing.assert_close(params["w"].square().sum(-1), (c * (1 + lam) / 2)[:, None].expand(2, 6))
    torch.testing.assert_close(params["v"][:, 0].square(), (c * (1 - lam) / 2)[:, None].expand(2, 6))
    assert torch.equal(params["w"][:, :3], params["w"][:, 3:]) and torch.equal(
        params["v"][..., :3], -params["v"][..., 3:]
    )
    assert forward(params, randn(7, 5)).abs().max() < 1e-14  # a sum of pairs, in another order
    assert drift(params, c, lam).max() < 1e-15
    other = initial(6, 5, 9.0, 0.3, training.generators([5]), **PLACE)["w"]
    torch.testing.assert_close(
        other[0] / other[0].norm(dim=1)[:, None], params["w"][1] / params["w"][1].norm(dim=1)[:, None]
    )


def test_directions_are_spread_evenly():
    w = initial(2000, 4, 2.0, 0.0, training.generators([0]), **PLACE)["w"][0, :1000]
    torch.testing.assert_close(w.T @ w / 1000, torch.eye(4).double() / 4, rtol=0, atol=0.03)
    assert w.mean(0).norm() < 0.05


BAD_NETS = {
    "odd": ({"hidden": 5}, "hidden must be even, pairs of mirrored neurons, got 5"),
    "none": ({"hidden": 0}, "hidden must be >= 2, got 0"),
    "dim": ({"dim": 0}, "dim must be >= 1, got 0"),
    "dead": ({"lam": -1.0}, "lam must be > -1 of a net that is to learn"),
    "scales": ({"c": torch.ones(3)}, r"c must be a number or \(2,\), one per net, got \(3,\)"),
}


@pytest.mark.parametrize("bad", BAD_NETS)
def test_a_net_that_cannot_be_is_refused(bad):
    change, sentence = BAD_NETS[bad]
    arguments = {"hidden": 4, "dim": 3, "c": 1.0, "lam": 0.0, "generators": training.generators([0, 1])} | change
    with pytest.raises(ValueError, match=sentence):
        initial(**arguments)


def trained(n_nets=2, dim=3, hidden=4):
    """Some nets that are no longer mirrored."""
    return {"w": randn(n_nets, hidden, dim, seed=7), "v": randn(n_nets, 1, hidden, seed=8)}


def test_forward_and_gradient_are_what_a_loop_says():
    params, x, y = trained(), randn(9, 3, seed=1), randn(9, 1, seed=2)
    leaves = {name: value.requires_grad_() for name, value in params.items()}
    out = forward(leaves, x)
    grads = torch.autograd.grad(training.mse(out, y).sum(), list(leaves.values()))
    for i in range(2):
        w, v = params["w"][i].detach().numpy(), params["v"][i, 0].detach().numpy()
        by_loop = [sum(v[j] * max(0.0, float(w[j] @ xi)) for j in range(4)) for xi in x.numpy()]
        np.testing.assert_allclose(out[i, :, 0].detach(), by_loop, rtol=1e-12)
        np.testing.assert_allclose(features(params, x)[i].detach(), np.maximum(x.numpy() @ w.T, 0), rtol=1e-12)
        dw, dv = gradient(w, v, x.numpy(), y[:, 0].numpy())
        np.testing.assert_allclose(grads[0][i], dw, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(grads[1][i, 0], dv, rtol=1e-10, atol=1e-13)


def kernel(params, x, i):
    """JJᵀ of net i from its Jacobian by autograd."""
    w, v = params["w"][i], params["v"][i]
    jac = torch.autograd.functional.jacobian(lambda w, v: ((x @ w.T).relu() @ v.T)[:, 0], (w, v))
    flat = torch.cat([part.flatten(1) for part in jac], 1)
    return flat @ flat.T


def test_the_kernel_norm_is_the_largest_eigenvalue_of_the_tangent_kernel():
    params, x = trained(3), randn(3, 15, 3, seed=1)
    norm, u = kernel_norm(params, x, torch.ones(3, 15).double(), iterations=200)
    for i in range(3):
        exact = torch.linalg.eigvalsh(kernel(params, x[i], i))[-1]
        torch.testing.assert_close(norm[i], exact / 15)
        torch.testing.assert_close(kernel(params, x[i], i) @ u[i], exact * u[i], rtol=1e-6, atol=1e-6)


def test_the_rate_is_a_share_of_the_stability_limit_and_follows_the_net():
    x, params = randn(12, 3, seed=1), trained(2)
    rate = StableRate(x, momentum=0.9, share=0.5, floor=1e-3)
    first = rate(0, params)
    for i in range(2):
        hessian = 2 * torch.linalg.eigvalsh(kernel(params, x, i))[-1] / 12  # of the mean squared error at zero error
        torch.testing.assert_close(first[i], 0.5 * (1 - 0.9) * 2 / hessian, rtol=0.02, atol=0)
    larger = {name: 3 * value for name, value in params.items()}
    assert torch.equal(rate(7, larger), first)  # looked at every 10 steps only
    torch.testing.assert_close(rate(10, larger), first / 9, rtol=0.02, atol=0)
    tiny = {name: 1e-3 * value for name, value in params.items()}
    torch.testing.assert_close(rate(20, tiny), torch.full((2,), 0.5 * 0.1 / 1e-3).double())  # the floor
    broken = {"w": torch.cat([params["w"][:1], params["w"][1:] * torch.nan]), "v": params["v"]}
    assert rate(30, broken)[1] == 0 and rate(30, broken)[0] > 0
    torch.testing.assert_close(rate(40, params), first, rtol=0.02, atol=0)  # and it finds back


# --- Tasks ---------------------------------------------------------------------------------------------------------


def test_teachers_are_orthonormal_share_what_they_should_and_have_unit_like_variance():
    found = teachers(12, 7, 3, training.generators([0, 1]), **PLACE)
    basis = torch.cat([found["pretraining"].directions, found["new"].directions], 1)
    torch.testing.assert_close(basis @ basis.mT, torch.eye(10).double().expand(2, 10, 10), rtol=0, atol=1e-12)
    shared = found["subset"].directions @ found["pretraining"].directions.mT
    torch.testing.assert_close(shared, torch.eye(3, 7).double().expand(2, 3, 7), rtol=0, atol=1e-12)
    for teacher in found.values():
        assert set(teacher.signs.unique().tolist()) <= {-1.0, 1.0}
        x = randn(2, 40_000, 12, seed=3)
        y, m = teacher(x), teacher.signs.shape[1]
        q, s = teacher.directions[1].numpy(), teacher.signs[1].numpy()
        by_loop = [
            math.sqrt(2 / m) * sum(s[k] * max(0.0, float(q[k] @ xi)) for k in range(m)) for xi in x[1, :5].numpy()
        ]
        np.testing.assert_allclose(y[1, :5, 0], by_loop, rtol=1e-12)
        assert (y.var((1, 2)) - (1 - 1 / math.pi)).abs().max() < 0.03


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"ft_units": 8}, r"ft_units must lie in \[1, 7\], the units of pretraining, got 8"),
        ({"units": 10}, "units . ft_units must be <= dim = 12, orthogonal directions, got 10 . 3"),
        ({"units": 0}, "units must be >= 1, got 0"),
        ({"ft_units": 0}, "ft_units must be >= 1, got 0"),
        ({"dim": 2.5}, "dim must be a whole number, got 2.5"),
    ],
)
def test_too_few_units_are_refused(change, sentence):
    arguments = {"dim": 12, "units": 7, "ft_units": 3, "generators": training.generators([0])} | change
    with pytest.raises((ValueError, TypeError), match=sentence):
        teachers(**arguments)


# --- The experiment ------------------------------------------------------------------------------------------------

BAD_SIZES = {
    "no samples": ({"n_pt": 0}, ValueError, "n_pt must be >= 1, got 0"),
    "one test sample": ({"n_test": 1}, ValueError, "n_test must be >= 2, got 1"),
    "no dim": ({"dim": 0}, ValueError, "dim must be >= 1, got 0"),
    "half a unit": ({"units": 2.5}, TypeError, "units must be a whole number, got 2.5"),
    "steps": ({"pt_steps": -1}, ValueError, "pt_steps must be >= 0, got -1"),
    "text": ({"ft_steps": "9"}, TypeError, "ft_steps must be a whole number, got '9'"),
    "loss": ({"pt_loss": math.nan}, ValueError, "pt_loss must be finite, got nan"),
    "loss as text": ({"ft_loss": "low"}, TypeError, "ft_loss must be a number, got 'low'"),
}


@pytest.mark.parametrize("bad", BAD_SIZES)
def test_sizes_that_cannot_be_are_refused(bad):
    change, error, sentence = BAD_SIZES[bad]
    with pytest.raises(error, match=sentence):
        Sizes(**change)


def test_without_a_step_there_is_no_loss():
    old = pretrain(0.5, -0.5, range(2), replace(SMALL, pt_steps=0, ft_steps=0), **PLACE)
    assert old.phase.loss.isnan().all() and not old.phase.reached.any() and not old.phase.diverged.any()
    assert all(torch.equal(old.phase.params[name], value) for name, value in old.initial.items())
    found = fine_tune(old, 12)
    assert found["steps"].tolist() == [0, 0] and not found["reached"].any()
    torch.testing.assert_close(found["moved"], torch.zeros(2).double())


BAD_PLACES = {
    "integers": ({"dtype": torch.int64}, TypeError, "dtype must be a floating dtype .* got torch.int64"),
    "half": ({"dtype": torch.float16}, TypeError, "must be a float32 or float64 tensor, got torch.float16"),
    "device": ({"device": "xpu:7"}, ValueError, "device must name a device of this computer .* got 'xpu:7'"),
    "no device": ({"device": "cudas"}, ValueError, "device must name a device of this computer .* got 'cudas'"),
    "sizes": ({"sizes": {"dim": 3}}, TypeError, r"sizes must be Sizes\(...\) .* got {'dim': 3}"),
}


@pytest.mark.parametrize("bad", BAD_PLACES)
def test_pretraining_refuses_what_it_cannot_do(bad):
    change, error, sentence = BAD_PLACES[bad]
    with pytest.raises(error, match=sentence):
        pretrain(0.5, -0.5, range(2), **({"sizes": SMALL} | change))


def test_descent_is_a_plain_loop_over_the_nets():
    """Momentum, rate, rounds and stopping against a loop in numpy that knows the exact kernel norm."""
    seeds, sizes = [3, 4], replace(SMALL, pt_loss=1e-9, pt_steps=60)
    old = pretrain(1.0, torch.tensor([-0.5, 0.5]).double(), seeds, sizes, **PLACE)
    x = training.normal((sizes.n_pt, sizes.dim), streams(seeds, relu.SAMPLE), **PLACE)
    y = old.teachers["pretraining"](x)
    for i in range(2):
        w, v = old.initial["w"][i].numpy().copy(), old.initial["v"][i, 0].numpy().copy()
        speed_w, speed_v = np.zeros_like(w), np.zeros_like(v)
        for step in range(60):
            if step % 10 == 0:
                both = {"w": torch.tensor(w)[None], "v": torch.tensor(v)[None, None]}
                norm = torch.linalg.eigvalsh(kernel(both, x[i], 0))[-1].item() / sizes.n_pt
                rate = relu.SHARE * 2 * (1 - relu.MOMENTUM) / (2 * max(norm, relu.FLOOR))
            dw, dv = gradient(w, v, x[i].numpy(), y[i, :, 0].numpy())
            speed_w, speed_v = relu.MOMENTUM * speed_w + dw, relu.MOMENTUM * speed_v + dv
            w, v = w - rate * speed_w, v - rate * speed_v
        np.testing.assert_allclose(old.phase.params["w"][i], w, rtol=0.02, atol=0.01)  # power iterations stop early
        np.testing.assert_allclose(old.phase.params["v"][i, 0], v, rtol=0.02, atol=0.01)
        kept = np.abs((w**2).sum(1) - v**2 - [-0.5, 0.5][i]).max()
        assert abs(old.drift[i] - kept) < 2e-3


def test_nets_that_have_ended_leave_the_stack_and_change_nothing_for_the_others(monkeypatch):
    monkeypatch.setattr(relu, "ROUND", 30)
    together = pretrain(0.5, -0.5, range(5), SMALL, **PLACE)
    assert together.phase.steps.max() > 60 > together.phase.steps.min()  # several rounds
    for i in range(5):
        alone = pretrain(0.5, -0.5, [i], SMALL, **PLACE)
        assert alone.phase.steps[0] == together.phase.steps[i]
        for name in ("w", "v"):
            torch.testing.assert_close(
                alone.phase.params[name][0], together.phase.params[name][i], rtol=1e-6, atol=1e-8
            )
    assert together.phase.reached.all() and (together.phase.loss <= SMALL.pt_loss).all()


def test_fine_tuning_is_the_protocol():
    """Against the pieces put together by hand, for one net of each source and task."""
    old = pretrain(0.5, -0.5, range(3), SMALL, **PLACE)
    for source in SOURCES:
        for task in relu.TASKS:
            found = fine_tune(old, 12, task, 0.4, source)
            readout = {"v": new_readout(old.initial["v"], 0.4, streams(range(3), relu.READOUT), "sign")}
            start = sources(old.initial, old.phase.params, readout)[source]
            x = training.normal((12, 6), streams(range(3), relu.FINE_TUNING + relu.TASKS.index(task)), **PLACE)
            y = old.teachers[task](x)
            end = learn(
                forward, start, x, y, SGD(StableRate(x), relu.MOMENTUM), SMALL.ft_loss, 400, per_net=True, center=start
            )
            assert found["steps"].tolist() == end.steps.tolist() and end.reached.all()
            test = training.normal((50, 6), streams(range(3), relu.TEST), **PLACE)
            for i in range(3):
                f, f0, labels = (
                    part[i, :, 0]
                    for part in (forward(end.params, test), forward(start, test), old.teachers[task](test))
                )
                error = ((f - f0 - labels) ** 2).mean() / ((labels - labels.mean()) ** 2).mean()
                torch.testing.assert_close(found["error"][i], error)
                change = (end.params["w"][i] - start["w"][i]).norm() / start["w"][i].norm()
                torch.testing.assert_close(found["moved"][i], change)


def test_rows_do_not_know_of_each_other():
    old = pretrain(0.5, -0.5, range(2), SMALL, **PLACE)
    tasks, gammas, from_ = ["subset", "new", "subset"], [0.1, 1.0, 0.3], ["reset", "pretrained", "scratch"]
    together = fine_tune(old, 12, tasks, gammas, from_, net=[1, 0, 0])
    for row, net in enumerate([1, 0, 0]):
        alone = fine_tune(old, 12, tasks[row], gammas[row], from_[row], net=[net])
        for name, values in alone.items():
            torch.testing.assert_close(values[0], together[name][row], rtol=1e-5, atol=1e-7)


def test_scratch_does_not_know_gamma_and_reset_does_not_know_pretraining():
    old = pretrain(0.5, -0.5, range(2), SMALL, **PLACE)
    other = replace(old, phase=replace(old.phase, params={k: 2 * v for k, v in old.phase.params.items()}))
    for name in ("error", "ensd", "steps"):
        assert torch.equal(*(fine_tune(old, 12, "new", g, "scratch")[name] for g in (0.1, 1.0)))
        assert torch.equal(*(fine_tune(it, 12, "new", 0.3, "reset")[name] for it in (old, other)))
    assert not torch.equal(*(fine_tune(it, 12, "new", 0.3)["error"] for it in (old, other)))


def test_a_net_that_diverges_is_reported_and_never_averaged_away():
    old = pretrain(3.0, 0.5, range(3), replace(SMALL, pt_loss=1e-6, pt_steps=200), share=100.0, **PLACE)
    assert old.phase.diverged.all() and "diverged: [0, 1, 2]" in str(old.phase)
    lost, fresh = fine_tune(old, 12), fine_tune(old, 12, source="reset")
    assert lost["diverged"].all() and not fresh["diverged"].any()
    for name in ("error", "pr_before", "pr_after", "ensd", "cka", "moved"):
        assert lost[name].isnan().all() and fresh[name].isfinite().all(), name


def test_one_lost_net_does_not_touch_the_others():
    old = pretrain(0.5, -0.5, range(3), SMALL, **PLACE)
    params = {name: value.clone() for name, value in old.phase.params.items()}
    params["w"][1] = torch.nan
    broken = replace(old, phase=replace(old.phase, params=params, diverged=torch.tensor([False, True, False])))
    found, clean = fine_tune(broken, 12), fine_tune(old, 12)
    assert found["diverged"].tolist() == [False, True, False] and found["error"].isnan().tolist() == [
        False,
        True,
        False,
    ]
    torch.testing.assert_close(found["error"][[0, 2]], clean["error"][[0, 2]])


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"task": "old"}, "task must be one of subset, new, got 'old'"),
        ({"source": "random"}, "source must be one of pretrained, reset, scratch, got 'random'"),
        ({"gamma": -1.0}, r"gamma\[0\] = -1.0 must lie in \[0, inf\)"),
        ({"n": 0}, "n must be >= 1, got 0"),
        ({"task": ["new"]}, "must be one for all or one for each of 2 rows, got 1"),
        ({"net": [0, 2]}, r"net\[1\] = 2 must lie in \[0, 1\]"),
        ({"net": []}, "net must name at least one, got"),
        ({"net": [0.0]}, r"net\[0\] must be a whole number, got 0.0"),
        ({"net": [0, True]}, r"net\[1\] must be a whole number, got True"),
        ({"net": [-1]}, r"net\[0\] must be >= 0, got -1"),
        ({"net": 1}, "net must be a list, got 1"),
        ({"gamma": torch.ones(3)}, "gamma must be one for all or one for each of 2 rows, got 3"),
        ({"gamma": np.ones(1)}, "gamma must be one for all or one for each of 2 rows, got 1"),
        ({"gamma": torch.ones(2, 2)}, r"gamma\[0\] must be a number, got \[1.0, 1.0\]"),
        ({"gamma": [0.3, "1"]}, r"gamma\[1\] must be a number, got '1'"),
        ({"source": np.array(["reset"])}, "source must be one for all or one for each of 2 rows, got 1"),
    ],
)
def test_fine_tuning_refuses_what_it_cannot_do(change, sentence):
    sizes = replace(SMALL, pt_steps=1)
    old = pretrain(0.5, -0.5, range(2), sizes, **PLACE)
    with pytest.raises((ValueError, TypeError), match=sentence):
        fine_tune(old, **({"n": 12} | change))


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["array", "tensor"])
def test_lists_may_come_as_arrays(kind):
    old = pretrain(0.5, -0.5, range(2), replace(SMALL, pt_steps=1, ft_steps=3), **PLACE)
    expected = fine_tune(old, 12, ["new", "subset"], [0.1, 1.0], net=[1, 0])
    gamma = kind(np.array([0.1, 1.0]))
    found = fine_tune(old, 12, np.array(["new", "subset"]), gamma, net=kind([1, 0]))
    for name, values in expected.items():
        assert torch.equal(found[name], values), name
    one = fine_tune(old, 12, gamma=gamma[0])
    assert torch.equal(one["error"], fine_tune(old, 12, gamma=0.1)["error"])


@pytest.mark.parametrize(
    "change, error, sentence",
    [
        ({"lams": []}, ValueError, r"lams must name at least one, got \[\]"),
        ({"lams": 0.5}, TypeError, "lams must be a list, got 0.5"),
        ({"among": []}, ValueError, r"among must name at least one, got \[\]"),
        ({"among": "reset"}, TypeError, "among must be a list, got 'reset'"),
        ({"among": ["random"]}, ValueError, "among must be one of pretrained, reset, scratch, got 'random'"),
    ],
)
def test_a_column_refuses_what_it_cannot_do(change, error, sentence):
    with pytest.raises(error, match=sentence):
        column(**({"c": 0.5, "lams": [0.5], "seeds": range(2), "sizes": SMALL} | change))


def test_a_column_has_a_row_for_each_lambda_twice_or_not():
    sizes = replace(SMALL, pt_steps=2, ft_steps=2)
    found = column(0.5, torch.tensor([0.5, 0.0, 0.0]).double(), range(2), among=["reset", "reset"], sizes=sizes)
    for name, values in found.items():
        assert len(values) == 3, name
        assert torch.equal(values[1], values[2]) and values[0].shape == values[1].shape, name
    assert found["error"].shape == (3, 2, 2) and not torch.equal(found["w_norm"][0], found["w_norm"][1])


def test_a_column_is_its_cells_and_shows_progress():
    seen = []

    def progress(items):
        for item in items:
            seen.append(item)
            yield item

    found = column(0.5, [-0.5, 0.5], range(3), n=12, task="new", sizes=SMALL, progress=progress)
    assert len(seen) == 4 and found["error"].shape == (2, 2, 3) and found["v_norm"].shape == (2, 3, 8)
    for i, lam in enumerate([-0.5, 0.5]):
        old = pretrain(0.5, lam, range(3), SMALL)
        torch.testing.assert_close(found["drift"][i], old.drift)
        torch.testing.assert_close(found["w_norm"][i], old.phase.params["w"].square().sum(-1))
        for j, source in enumerate(["pretrained", "reset"]):
            torch.testing.assert_close(found["error"][i, j], fine_tune(old, 12, "new", source=source)["error"])


def test_smaller_steps_drift_less():
    """The invariant belongs to the flow: at a tenth of the rate less than a third of the drift is left."""
    found = []
    for share in (0.6, 0.06):
        start = initial(8, 6, 0.3, -0.9, training.generators([1]), **PLACE)
        x = randn(1, 40, 6, seed=4)
        y = teachers(6, 3, 2, training.generators([2]), **PLACE)["pretraining"](x)
        end = learn(forward, start, x, y, SGD(StableRate(x, share=share), 0.9), 0.02, 20_000, per_net=True)
        assert end.reached.all()
        found.append(drift(end.params, 0.3, -0.9).item())
    assert found[1] < found[0] / 3
