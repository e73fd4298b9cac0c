"""The dual solver against the raw four-vector flow, a general-purpose optimizer, and the ℓ1 and ℓ2 limits."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.optimize import minimize

from labkit.diagonal.interpolate import basis_pursuit, min_norm, min_penalty, recovery_threshold
from labkit.diagonal.penalty import q, q_prime, root_k_init

F64 = torch.float64


def problem(n, dim, generator, batch=(), sparsity=None):
    """Rows x ~ N(0, I/dim) and labels of a sparse or dense teacher."""
    x = torch.randn(*batch, n, dim, dtype=F64, generator=generator) / math.sqrt(dim)
    teacher = torch.randn(*batch, dim, dtype=F64, generator=generator)
    if sparsity:
        teacher[..., int(sparsity * dim) :] = 0
    return x, (x @ teacher[..., None]).squeeze(-1)


def decades(shape, low, high, generator):
    return 10 ** (low + (high - low) * torch.rand(shape, dtype=F64, generator=generator))


def raw_flow_endpoint(x, y, weights, gap=1e-9):
    """Where the flow of w₊, v₊, w₋, v₋ themselves (nothing eliminated) reaches ‖Xβ − y‖ ≤ gap·‖y‖."""
    x, y = x.numpy(), y.numpy()
    dim = x.shape[1]

    def parts(theta):
        w_plus, v_plus, w_minus, v_minus = theta.reshape(4, dim)
        return w_plus, v_plus, w_minus, v_minus, x @ (w_plus * v_plus - w_minus * v_minus) - y

    def velocity(_t, theta):
        w_plus, v_plus, w_minus, v_minus, error = parts(theta)
        g = x.T @ error
        return np.concatenate([-g * v_plus, -g * w_plus, g * v_minus, g * w_minus])

    def arrived(_t, theta):
        return np.linalg.norm(parts(theta)[-1]) - gap * np.linalg.norm(y)

    arrived.terminal = True
    theta = np.concatenate([np.broadcast_to(np.asarray(w, dtype=float), dim) for w in weights])
    run = solve_ivp(velocity, (0, 1e9), theta, method="LSODA", rtol=1e-12, atol=1e-16, events=arrived)
    assert run.status == 1, "the reference did not arrive"
    w_plus, v_plus, w_minus, v_minus, _ = parts(run.y[:, -1])
    return torch.from_numpy(w_plus * v_plus - w_minus * v_minus)


@pytest.mark.parametrize("c", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("lam", [-0.99, -0.5, 0.0, 0.9])
def test_endpoint_of_the_raw_flow(c, lam, generator):
    x, y = problem(8, 30, generator)
    w, v = math.sqrt(c * (1 + lam) / 2), math.sqrt(c * (1 - lam) / 2)
    truth = raw_flow_endpoint(x, y, (w, v, w, v))
    beta = min_penalty(x, y, root_k=2 * c).beta
    assert (beta - truth).norm() <= 1e-7 * truth.norm()


def test_endpoint_of_the_raw_flow_from_an_asymmetric_start(generator):
    x, y = problem(8, 30, generator)
    weights = 0.3 * torch.randn(4, 30, dtype=F64, generator=generator)
    w_plus, v_plus, w_minus, v_minus = weights
    beta0, root_k = w_plus * v_plus - w_minus * v_minus, root_k_init(*weights)
    truth = raw_flow_endpoint(x, y, weights.numpy())
    found = min_penalty(x, y, root_k, beta0)
    assert found.converged and (found.beta - truth).norm() <= 1e-7 * truth.norm()
    without_shift = min_penalty(x, y, root_k).beta
    assert (without_shift - truth).norm() > 1e-2 * truth.norm()


@pytest.mark.parametrize("root_k", [0.05, 1.0])
def test_a_general_optimizer_finds_the_same_minimum(root_k, generator):
    x, y = problem(4, 8, generator)

    def price(beta):
        return q(torch.from_numpy(beta), root_k).sum().item()

    def slope(beta):
        return q_prime(torch.from_numpy(beta), root_k).numpy()

    constraint = {
        "type": "eq",
        "fun": lambda beta: x.numpy() @ beta - y.numpy(),
        "jac": lambda beta: x.numpy(),
    }
    options = {"ftol": 1e-15, "maxiter": 500}
    start = min_norm(x, y).numpy()
    truth = minimize(price, start, jac=slope, constraints=constraint, method="SLSQP", options=options)
    beta = min_penalty(x, y, root_k).beta
    assert price(beta.numpy()) <= truth.fun * (1 + 1e-10)
    assert np.linalg.norm(beta.numpy() - truth.x) <= 1e-5 * np.linalg.norm(truth.x)


def test_limits_are_the_two_classical_interpolators(generator):
    x, y = problem(20, 60, generator, sparsity=0.05)
    ridge, lasso = min_norm(x, y), basis_pursuit(x, y)
    assert (min_penalty(x, y, 1e6).beta - ridge).norm() <= 1e-10 * ridge.norm()
    gaps = torch.stack([(min_penalty(x, y, 10.0**-e).beta - lasso).norm() / lasso.norm() for e in (1, 3, 5, 11)])
    assert (gaps.diff() < 0).all() and gaps[-1] < 1e-3 < 0.1 < gaps[0]


def test_min_norm_against_the_pseudo_inverse(generator):
    x, y = problem(10, 25, generator, batch=(3,))
    torch.testing.assert_close(min_norm(x, y), (torch.linalg.pinv(x) @ y[..., None]).squeeze(-1), rtol=0, atol=1e-12)


def test_basis_pursuit_is_optimal(generator):
    """Duality: |xᵢ·ν| ≤ 1 everywhere and = sign(βᵢ) on the support proves ‖β‖₁ least."""
    x, y = problem(10, 25, generator, batch=(2,))
    beta = basis_pursuit(x, y)
    torch.testing.assert_close((x @ beta[..., None]).squeeze(-1), y, rtol=0, atol=1e-12)
    for matrix, row in zip(x, beta, strict=True):
        support = row.abs() > 1e-12
        nu = torch.linalg.solve(matrix[:, support].T, row[support].sign())
        assert support.sum() == 10 and ((matrix.T @ nu).abs() <= 1 + 1e-10).all()


@pytest.mark.parametrize("c", [10, 1e-2, 1e-3, 1e-6, 1e-10])
def test_few_steps_at_the_size_of_the_lessons(c, generator):
    x, y = problem(120, 400, generator, sparsity=0.1)
    found = min_penalty(x, y, root_k=2 * c)
    assert found.residual <= 1e-10 and found.iterations <= 20 and found.converged
    assert (x @ found.beta - y).norm() <= 1e-10 * y.norm()


@pytest.mark.parametrize("n, dim, batch", [(5, 20, 32), (40, 60, 16), (120, 200, 8)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_root_k_over_twelve_decades_within_one_problem(n, dim, batch, scale, generator):
    """As fine-tuning makes them: coordinates that pretraining used next to coordinates it did not."""
    x, y = problem(n, dim, generator, batch=(batch,))
    found = min_penalty(x, scale * y, decades((batch, dim), -11, 1, generator))
    assert found.converged.all() and found.iterations.max() <= 40


def test_batch_equals_loop_and_broadcasts(generator):
    x, y = problem(12, 30, generator, batch=(2, 3))
    root_k = decades((4, 1, 1, 30), -6, 1, generator)
    found = min_penalty(x, y, root_k)
    assert found.beta.shape == (4, 2, 3, 30)
    assert found.residual.shape == found.iterations.shape == found.converged.shape == (4, 2, 3)
    for i, j, k in np.ndindex(4, 2, 3):
        one = min_penalty(x[j, k], y[j, k], root_k[i, 0, 0])
        torch.testing.assert_close(found.beta[i, j, k], one.beta, rtol=1e-9, atol=1e-12)
        assert one.beta.shape == (30,) and one.iterations == found.iterations[i, j, k]


def test_chunks_do_not_show(generator):
    x, y = problem(60, 400, generator)
    root_k = decades((50, 1), -6, 1, generator)  # 50 × 24 000 numbers: three chunks
    found = min_penalty(x, y, root_k)
    assert found.converged.all()
    torch.testing.assert_close(
        found.beta[[0, 20, 49]], min_penalty(x, y, root_k[[0, 20, 49]]).beta, rtol=1e-8, atol=1e-11
    )


@pytest.mark.parametrize("scale", [1e-5, 3.0, 1e4])
def test_scale_covariance(scale, generator):
    x, y = problem(10, 30, generator)
    beta = min_penalty(x, y, 0.02).beta
    scaled = min_penalty(x, scale * y, 0.02 * scale).beta
    torch.testing.assert_close(scaled, scale * beta, rtol=1e-9, atol=1e-12 * scale)


def test_nothing_to_fit(generator):
    x, y = problem(5, 12, generator)
    found = min_penalty(x, torch.zeros_like(y), 0.1)
    assert (found.beta == 0).all() and found.iterations == 0 and found.converged
    beta0 = torch.randn(12, dtype=F64, generator=generator)
    stays = min_penalty(x, x @ beta0, 0.1, beta0)
    torch.testing.assert_close(stays.beta, beta0, rtol=1e-12, atol=1e-14)
    back = min_penalty(x, torch.zeros_like(y), 0.1, beta0)
    assert back.converged and (x @ back.beta).norm() <= 1e-10 * (x @ beta0).norm() and back.beta.norm() > 0.1


def test_as_many_rows_as_columns(generator):
    x, y = problem(12, 12, generator)
    torch.testing.assert_close(min_penalty(x, y, 0.1).beta, torch.linalg.solve(x, y), rtol=1e-7, atol=1e-9)


def test_dependent_rows(generator):
    x, y = problem(6, 20, generator)
    twice = torch.cat([x, x[:1]])
    fits = min_penalty(twice, torch.cat([y, y[:1]]), 1e-2)
    torch.testing.assert_close(fits.beta, min_penalty(x, y, 1e-2).beta, rtol=1e-6, atol=1e-8)
    assert fits.converged
    contradicts = min_penalty(
        torch.stack([twice, twice]), torch.stack([torch.cat([y, y[:1]]), torch.cat([y, y[:1] + 1])]), 1e-2
    )
    assert contradicts.converged.tolist() == [True, False]
    assert contradicts.beta.isfinite().all() and contradicts.residual[1] > 1e-2
    with pytest.raises(ValueError, match="the rows of x must be linearly independent"):
        min_norm(twice, torch.cat([y, y[:1]]))
    with pytest.raises(ValueError, match="no β with Xβ = y was found"):
        basis_pursuit(twice, torch.cat([y, y[:1] + 1]))


def test_float32_is_as_good_as_its_tolerance(generator):
    x, y = problem(30, 100, generator, batch=(8,))
    root_k = decades((8, 1), -6, 1, generator)
    found = min_penalty(x.float(), y.float(), root_k.float())
    assert found.beta.dtype == torch.float32 and found.converged.all()
    reference = min_penalty(x, y, root_k).beta
    assert ((found.beta - reference).norm(dim=-1) <= 1e-3 * reference.norm(dim=-1)).all()


@pytest.mark.parametrize(
    "x, y, root_k, sentence",
    [
        (
            (3, 5),
            (4,),
            1.0,
            r"got x \(3, 5\), y \(4,\), root_k \(\), expected x \(..., n, dim\), y \(..., n\)",
        ),
        ((5,), (5,), 1.0, r"shapes do not fit: got x \(5,\)"),
        ((0, 5), (0,), 1.0, "there is nothing to solve"),
        ((0, 3, 5), (0, 3), 1.0, "there is nothing to solve"),
        ((5, 3), (5,), 1.0, "n <= dim .*, got n = 5, dim = 3"),
        ((2, 3, 5), (4, 3), 1.0, "leading axes that broadcast"),
        ((3, 5), (3,), (4,), r"root_k \(4,\), expected .* root_k \(..., dim\)"),
    ],
)
def test_misfits_are_refused_with_both_shapes(x, y, root_k, sentence):
    root_k = torch.ones(root_k) if isinstance(root_k, tuple) else root_k
    with pytest.raises(ValueError, match=sentence):
        min_penalty(torch.ones(x), torch.ones(y), root_k)


def test_bad_values_are_refused():
    x, y = torch.eye(2, 4), torch.ones(2)
    with pytest.raises(ValueError, match=r"x\[1, 2\] = nan must be finite"):
        min_penalty(torch.eye(2, 4).index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(math.nan)), y, 1.0)
    with pytest.raises(ValueError, match=r"y\[0\] = inf must be finite"):
        min_penalty(x, torch.tensor([math.inf, 1.0]), 1.0)
    with pytest.raises(ValueError, match="root_k must be positive and finite, got 0"):
        min_penalty(x, y, 0.0)
    with pytest.raises(TypeError, match="x must be a floating tensor"):
        min_penalty(torch.ones(2, 4, dtype=torch.int64), y, 1.0)


def test_half_precision_is_refused():
    with pytest.raises(TypeError, match="x must be float64 or float32, got torch.float16"):
        min_penalty(torch.eye(2, 4).half(), torch.ones(2).half(), 1.0)


@pytest.mark.parametrize(("dtype", "unit"), [(torch.float64, 1e-170), (torch.float64, 1e170), (torch.float32, 1e19)])
def test_residuals_neither_overflow_nor_underflow(dtype, unit, generator):
    x, y = problem(5, 20, generator)
    found = min_penalty(x.to(dtype), y.to(dtype) * unit, 0.1 * unit)
    expected = min_penalty(x, y, 0.1).beta
    assert found.converged and ((found.beta / unit).double() - expected).norm() <= 1e-4 * expected.norm()


def test_recovery_threshold_is_the_curve_in_its_parametric_form_and_where_l1_recovers():
    """arXiv 0907.3574 gives the curve by its optimal threshold: α and ρ/α as functions of t."""
    t = torch.linspace(0.3, 3, 30, dtype=F64)
    density, tail = torch.exp(-(t**2) / 2) / math.sqrt(2 * math.pi), torch.special.ndtr(-t)
    alpha = 2 * density / (t + 2 * (density - t * tail))
    assert torch.allclose(recovery_threshold(alpha * (1 - t * tail / density)), alpha, atol=2e-6, rtol=0)
    assert recovery_threshold(1.0) == 1 and recovery_threshold(0.0) < 1e-9
    generator, dim, rho = torch.Generator().manual_seed(0), 300, 0.1
    for side, recovers in ((-0.1, False), (0.1, True)):
        n = round((recovery_threshold(rho).item() + side) * dim)
        x = torch.randn(6, n, dim, dtype=F64, generator=generator) / math.sqrt(dim)
        star = torch.zeros(dim, dtype=F64)
        star[: round(rho * dim)] = 1
        found = min_penalty(x, x @ star, 1e-8).beta
        assert (((found - star).norm(dim=-1) < 0.3 * star.norm()) == recovers).all()


@pytest.mark.parametrize("rho", [-0.1, 1.1, float("nan")])
def test_recovery_threshold_refuses_what_is_no_share(rho):
    with pytest.raises(ValueError, match="rho must"):
        recovery_threshold(rho)
