"""The flow against an ODE solver on the raw weights; invariants; endpoint; both stages; the naive way."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from labkit.diagonal.flow import (
    Weights,
    initial_weights,
    pretrain_finetune,
    raw_gradient_descent,
    reinitialize,
    train,
)
from labkit.diagonal.interpolate import min_penalty
from labkit.diagonal.penalty import root_k_finetune
from labkit.diagonal.tasks import SUBSET, TaskPair, design

F64 = torch.float64


def problem(n, dim, generator, batch=()):
    x = design(n, dim, generator, batch)
    beta, _ = TaskPair(0.1, 1.0, 0.0).sample(dim, generator, batch)
    return x, (x @ beta[..., None]).squeeze(-1)


def log_times(low, high, n):
    return torch.logspace(low, high, n, dtype=F64)


def raw_flow(x, y, weights, times):
    """β at the times, (time, dim), from ẇ = −v·g, v̇ = −w·g of the four vectors."""
    x, y = x.numpy(), y.numpy()
    dim = x.shape[1]

    def velocity(_t, theta):
        w_plus, v_plus, w_minus, v_minus = theta.reshape(4, dim)
        g = x.T @ (x @ (w_plus * v_plus - w_minus * v_minus) - y)
        return np.concatenate([-g * v_plus, -g * w_plus, g * v_minus, g * w_minus])

    start = np.concatenate([w.numpy() for w in weights])
    options = {"method": "LSODA", "rtol": 1e-10, "atol": 1e-14}
    run = solve_ivp(velocity, (0, times[-1].item()), start, t_eval=times.numpy(), **options)
    w_plus, v_plus, w_minus, v_minus = run.y.reshape(4, dim, -1)
    return torch.from_numpy((w_plus * v_plus - w_minus * v_minus).T)


def worst_error(run, truth):
    return ((run.beta - truth).norm(dim=-1) / truth.norm(dim=-1)).max().item()


@pytest.mark.parametrize("n", [10, 30])
@pytest.mark.parametrize("c", [10.0, 0.1, 1e-3, 1e-6])
def test_trajectory_of_the_raw_flow(n, c, generator):
    x, y = problem(n, 40, generator)
    weights, times = initial_weights(40, c, lam=0.3), log_times(-2, 3, 51)
    assert worst_error(train(x, y, weights, times), raw_flow(x, y, weights, times)) <= 2e-2


@pytest.mark.parametrize(("cap", "explicit"), [(0.25, False), (0.02, True)])
def test_every_step_is_recorded_when_only_the_end_is_given(cap, explicit, generator):
    x, y = problem(10, 40, generator)
    weights = initial_weights(40, 0.1, lam=0.3)
    run = train(x, y, weights, 10.0, cap, explicit)
    assert run.times[-1] == 10 and (run.times.diff() > 0).all()
    assert run.s.diff(dim=0).abs().max() <= 2 * cap  # two stages of at most cap
    assert worst_error(run, raw_flow(x, y, weights, run.times)) <= 2e-2
    at_end_only = train(x, y, weights, torch.tensor([10.0], dtype=F64), cap, explicit)
    assert len(at_end_only.times) == 1 and torch.equal(at_end_only.beta[-1], run.beta[-1])


def test_trajectory_from_an_asymmetric_start(generator):
    x, y = problem(8, 20, generator)
    weights = Weights(*(0.3 * torch.randn(4, 20, dtype=F64, generator=generator)))
    times = log_times(-2, 3, 51)
    truth = raw_flow(x, y, weights, times)
    run = train(x, y, weights, times)
    assert worst_error(run, truth) <= 2e-2
    late = train(x, y, weights, log_times(-1, 8, 61))
    torch.testing.assert_close(
        late.final.beta, min_penalty(x, y, weights.root_k, weights.beta).beta, rtol=1e-7, atol=1e-8
    )


@pytest.mark.parametrize("explicit, order", [(True, 1), (False, 2)])
def test_order_of_convergence(explicit, order, generator):
    """Halving the cap divides the error by 2 (explicit) or 4; one late time, so that only the cap matters."""
    x, y = problem(8, 20, generator)
    weights, times = initial_weights(20, 0.01, 0.0), torch.tensor([3.0], dtype=F64)
    truth = raw_flow(x, y, weights, times)
    errors = [worst_error(train(x, y, weights, times, cap, explicit), truth) for cap in (0.04, 0.02, 0.01)]
    for coarse, fine in zip(errors, errors[1:], strict=False):
        assert 2**order * 0.75 < coarse / fine < 2**order * 1.35
    assert errors[0] < 0.05


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("cap", [0.05, 1.0])
def test_invariants_hold_for_any_step(explicit, cap, generator):
    x, y = problem(8, 20, generator)
    start = Weights(*(0.3 * torch.randn(4, 20, dtype=F64, generator=generator)))
    path = train(x, y, start, log_times(-1, 2, 7), cap, explicit).weights

    def invariants(w):
        return torch.stack(
            [
                w.w_plus**2 - w.v_plus**2,
                w.w_minus**2 - w.v_minus**2,
                w.w_plus * w.w_minus + w.v_plus * w.v_minus,
                w.w_plus * w.v_minus + w.v_plus * w.w_minus,
                w.root_k,
            ],
            dim=-2,
        )

    assert (path.beta[-1] - start.beta).abs().max() > 0.5  # it did move
    torch.testing.assert_close(invariants(path), invariants(start).expand(7, 5, 20), rtol=0, atol=1e-13)


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("lam", [-1.0, -0.7, 0.4, 1.0])
def test_endpoint_is_the_interpolator_of_least_penalty_for_every_lam(explicit, lam, generator):
    x, y = problem(6, 30, generator)
    run = train(x, y, initial_weights(30, 0.1, lam), log_times(0, 3.5, 8), 0.5, explicit)
    end = min_penalty(x, y, root_k=0.2).beta
    assert (run.final.beta - end).norm() <= 1e-6 * end.norm()
    assert run.loss[-1] <= 1e-12 * run.loss[0]


def test_loss_and_shapes_along_the_path(generator):
    x, y = problem(6, 20, generator, batch=(3,))
    c = torch.tensor([[0.01], [1.0]], dtype=F64)
    times = log_times(-1, 4, 11)
    run = train(x, y, initial_weights(20, c, 0.0), times)
    assert run.s.shape == run.beta.shape == run.weights.w_plus.shape == (11, 2, 3, 20)
    assert run.loss.shape == (11, 2, 3) and (run.loss.diff(dim=0) <= 1e-15).all()
    gap = (x @ run.beta[..., None]).squeeze(-1) - y
    torch.testing.assert_close(run.loss, (gap**2).sum(-1) / 2, rtol=1e-6, atol=1e-20)
    alone = train(x[1], y[1], initial_weights(20, 1.0, 0.0), times)
    assert (run.beta[:, 1, 1] - alone.beta).abs().max() < 1e-2  # the batch takes other, smaller steps
    torch.testing.assert_close(run.final.beta[1, 1], alone.final.beta, rtol=1e-6, atol=1e-8)


def test_initial_weights():
    start = initial_weights(4, c=torch.tensor([0.5, 2.0], dtype=F64), lam=-0.6)
    assert start.w_plus.shape == (2, 4)
    torch.testing.assert_close(start.w_plus**2 + start.v_plus**2, torch.tensor([[0.5], [2.0]], dtype=F64).expand(2, 4))
    torch.testing.assert_close(start.w_minus**2 - start.v_minus**2, start.root_k * -0.3)
    assert (start.beta == 0).all()


@pytest.mark.parametrize("c, lam, gamma", [(0.1, 0.5, 0.1), (1e-3, -0.9, 0.01), (1e-2, -1.0, 0.3), (1.0, 1.0, 0.0)])
def test_two_stages_land_on_the_formulas(c, lam, gamma, generator):
    beta_pt, beta_ft = SUBSET.sample(30, generator)
    x_pt, x_ft = design(15, 30, generator), design(8, 30, generator)
    run = pretrain_finetune(x_pt, x_pt @ beta_pt, x_ft, x_ft @ beta_ft, c, lam, gamma)
    formula = root_k_finetune(run.beta_pt, c, lam, gamma)
    assert ((run.root_k - formula).abs() <= 1e-8 * formula).all()
    pretrained = min_penalty(x_pt, x_pt @ beta_pt, 2 * c).beta
    assert (run.beta_pt - pretrained).norm() <= 1e-6 * pretrained.norm()
    finetuned = min_penalty(x_ft, x_ft @ beta_ft, root_k_finetune(pretrained, c, lam, gamma)).beta
    assert (run.beta_ft - finetuned).norm() <= 1e-6 * finetuned.norm()


def test_two_stages_in_a_batch_of_settings(generator):
    beta_pt, beta_ft = SUBSET.sample(20, generator)
    x_pt, x_ft = design(10, 20, generator), design(5, 20, generator)
    lam = torch.tensor([-0.9, 0.0, 0.9], dtype=F64)
    run = pretrain_finetune(x_pt, x_pt @ beta_pt, x_ft, x_ft @ beta_ft, 0.01, lam, 0.1)
    assert run.beta_ft.shape == (3, 20)
    torch.testing.assert_close(
        run.beta_pt, run.beta_pt[:1].expand(3, 20), rtol=1e-6, atol=1e-8
    )  # λ does nothing to one task
    formula = root_k_finetune(run.beta_pt, 0.01, lam[:, None], 0.1)
    torch.testing.assert_close(run.root_k, formula, rtol=1e-8, atol=0)
    assert (run.beta_ft[0] - run.beta_ft[2]).norm() > 0.1  # … but much to the next


def test_reinitialize_takes_a_gamma_for_each_problem(generator):
    w_plus, w_minus, v = torch.randn(3, 2, 10, dtype=F64, generator=generator)
    gamma = torch.tensor([0.1, 2.0], dtype=F64)
    start = reinitialize(Weights(w_plus, v, w_minus, v), gamma)
    torch.testing.assert_close(start.root_k, 2 * (w_plus + w_minus) ** 2 + gamma[:, None] ** 2)
    assert (start.beta == 0).all()


def test_the_fastest_problem_of_a_batch_sets_the_step(generator):
    x, y = problem(8, 20, generator, (2,))
    y = y * torch.tensor([0.01, 10.0], dtype=F64)[:, None]  # the second one is the fast one
    weights, times = initial_weights(20, 0.1, 0.0), log_times(-2, 2, 9)
    together, alone = train(x, y, weights, times), train(x[1], y[1], weights, times)
    torch.testing.assert_close(together.beta[:, 1], alone.beta, rtol=0.02, atol=1e-3)


def test_signed_sum_is_not_the_sum_of_sizes(generator):
    x, y = problem(8, 20, generator)
    end = train(x, y, initial_weights(20, 1e-3, -0.9), log_times(-1, 8, 61)).final
    restarted = reinitialize(end, 0.01)
    assert (end.w_plus * end.w_minus).min() < 0 and (restarted.beta == 0).all()
    torch.testing.assert_close(restarted.root_k, root_k_finetune(end.beta, 1e-3, -0.9, 0.01), rtol=1e-8, atol=0)
    sizes = end.w_plus.abs() + end.w_minus.abs()
    assert ((2 * sizes**2 + 0.01**2) / restarted.root_k).max() > 5


def test_raw_gradient_descent_drifts_in_proportion_to_its_step(generator):
    x, y = problem(8, 30, generator)
    weights, end = initial_weights(30, 0.1, 0.5), min_penalty(x, y, 0.2).beta
    runs = [raw_gradient_descent(x, y, weights, lr, round(300 / lr)) for lr in (0.2, 0.1, 0.05)]
    drifts = [run.drift.item() for run in runs]
    errors = [((run.weights.beta - end).norm() / end.norm()).item() for run in runs]
    for values in (drifts, errors):
        assert all(1.6 < coarse / fine < 2.6 for coarse, fine in zip(values, values[1:], strict=False))
    assert runs[0].loss.shape == (1501,) and errors[0] > 1e-4 and drifts[0] > 1e-4
    assert runs[0].loss[0] == pytest.approx((y**2).sum().item() / 2)


def test_drift_looks_at_both_pathways():
    x, y = torch.ones(1, 1, dtype=F64), torch.full((1,), -3.0, dtype=F64)
    one, zero = torch.ones(1, dtype=F64), torch.zeros(1, dtype=F64)
    run = raw_gradient_descent(x, y, Weights(zero, zero, one, 0.5 * one), 0.1, 50)  # only the minus path moves
    change = (run.weights.w_minus**2 - run.weights.v_minus**2 - 0.75).abs().item()
    assert run.drift.item() == pytest.approx(change) and change > 1e-3


def test_raw_gradient_descent_follows_the_flow_for_small_steps(generator):
    x, y = problem(8, 20, generator)
    weights = initial_weights(20, 0.1, 0.5)
    truth = raw_flow(x, y, weights, torch.tensor([4.0], dtype=F64))[0]
    beta = raw_gradient_descent(x, y, weights, 1e-3, 4000).weights.beta
    assert (beta - truth).norm() <= 5e-3 * truth.norm()


def test_bad_input_is_refused(generator):
    x, y = problem(4, 10, generator)
    start, times = initial_weights(10, 0.1, 0.0), log_times(-1, 1, 3)
    for call, sentence in (
        (lambda: initial_weights(10, 0.0, 0.0), "c must be positive and finite, got 0"),
        (lambda: initial_weights(10, 1.0, 1.3), r"lam must lie in \[-1, 1\], got 1.3"),
        (lambda: initial_weights(0, 1.0, 0.0), "dim must be >= 1, got 0"),
        (lambda: reinitialize(start, -1.0), r"gamma must lie in \[0, inf\), got -1"),
        (lambda: train(x, y[:3], start, times), "shapes do not fit"),
        (lambda: train(x.mT, torch.ones(10, dtype=F64), start, times), "n <= dim"),
        (lambda: train(x, y * math.nan, start, times), r"y\[0\] = nan must be finite"),
        (
            lambda: train(x, y, start, times.flip(0)),
            "times must be a vector of increasing positive numbers, or one number",
        ),
        (lambda: train(x, y, start, times, cap=0.0), "cap must be > 0, got 0"),
        (lambda: pretrain_finetune(x, y, x, y, 0.1, -1.0, 0.0), "lam must be > -1 where gamma = 0"),
        (lambda: raw_gradient_descent(x, y, start, 0.0, 5), "lr must be > 0 and steps a whole number >= 1, got lr = 0"),
        (lambda: raw_gradient_descent(x, y, start, 100.0, 50), "lr = 100.0 is too large: the loss diverged"),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()


def test_too_many_explicit_steps_end_with_advice(generator, monkeypatch):
    monkeypatch.setattr("labkit.diagonal.flow.MAX_STEPS", 50)
    x, y = problem(4, 10, generator)
    with pytest.raises(RuntimeError, match="50 steps reached time .* use explicit=False"):
        train(x, y, initial_weights(10, 0.1, 0.0), log_times(0, 6, 3), explicit=True)


@pytest.mark.parametrize("explicit", [True, False])
def test_a_flow_at_rest_stays(explicit, generator):
    x, _ = problem(4, 10, generator)
    run = train(x, torch.zeros(4, dtype=F64), initial_weights(10, 0.1, 0.0), log_times(0, 3, 3), explicit=explicit)
    assert (run.beta == 0).all() and (run.loss == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_dtype_and_device_follow_the_tensors(dtype, generator):
    x, y = (value.to(dtype) for value in problem(5, 12, generator))
    times = log_times(-1, 3, 9).to(dtype)
    start = Weights(*(value.to(dtype) for value in initial_weights(12, 0.1, 0.2)))
    torch.set_default_device("meta")
    try:
        runs = [train(x, y, start, times, 0.5, explicit) for explicit in (True, False)]
        both = pretrain_finetune(x, y, x, y, 0.1, 0.0, 0.1, times)
        raw = raw_gradient_descent(x, y, start, 0.1, 5)
    finally:
        torch.set_default_device(None)
    for value in (*runs, both.pretraining, both.finetuning):
        assert value.beta.dtype == dtype and value.beta.device.type == "cpu" and value.beta.isfinite().all()
    assert raw.drift.dtype == dtype
    end = min_penalty(x, y, 0.2).beta
    assert all((run.final.beta - end).norm() <= 1e-3 * end.norm() for run in runs)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_rounding_noise_is_not_followed(scale, generator, monkeypatch):
    """After convergence ds/dt is rounding noise: its size must not set the step."""
    monkeypatch.setattr("labkit.diagonal.flow.MAX_STEPS", 2000)
    x, y = (v.float() * scale for v in problem(12, 30, generator))
    both = pretrain_finetune(x, y, x, y, 0.1, 0.0, 0.1)
    expected = min_penalty(x, y, both.root_k).beta
    assert (both.beta_ft - expected).norm() <= 1e-3 * expected.norm()


def test_a_network_that_cannot_fit_stays_finite():
    one, zero = torch.ones(1, dtype=F64), torch.zeros(1, dtype=F64)
    x, y = torch.ones(1, 1, dtype=F64), -one  # one path with w = v: beta stays positive
    for weights in (Weights(one, one, zero, zero), Weights(zero, zero, zero, zero)):
        run = train(x, y, weights, log_times(0, 3, 4))
        assert run.loss.isfinite().all() and run.beta.isfinite().all()
        assert run.loss[-1].item() == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize("weights", [None, (1, 2, 3, 4)])
def test_weights_of_another_kind_are_refused(weights, generator):
    x, y = problem(4, 10, generator)
    with pytest.raises(TypeError, match="weights must be Weights, such as initial_weights"):
        train(x, y, weights, 1.0)
