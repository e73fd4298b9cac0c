"""Counts by the rank of a matrix, eigenvalues by sampling, expected errors by experiments, fits by numpy."""

import math

import numpy as np
import pytest
import torch

from labkit import compute
from labkit.recovery import kernel, separation
from labkit.recovery.hermite import lift_dim
from labkit.recovery.separation import (
    degree_power,
    expected_samples,
    fit_exponent,
    kernel_dim,
    kernel_error,
    kernel_spectrum,
    layerwise_error,
    measured_error,
    needed_by_dim,
    samples_with_error,
)
from labkit.recovery.teacher import HierarchicalTeacher
from labkit.sweep import Table

F64 = torch.float64


def on_sphere(n, dim, seed=0):
    x = torch.randn(n, dim, dtype=F64, generator=compute.generator(seed))
    return x * (math.sqrt(dim) / x.norm(dim=1, keepdim=True))


def tensor(*values):
    return torch.tensor(values, dtype=F64)


@pytest.mark.parametrize(("dim", "degree"), [(3, 1), (4, 2), (6, 2), (3, 3), (2, 2)])
def test_kernel_dim_is_the_rank_of_a_gram_matrix(dim, degree):
    x = on_sphere(kernel_dim(dim, degree) + 40, dim)
    assert torch.linalg.matrix_rank(kernel.polynomial_kernel(x, x, degree), rtol=1e-10) == kernel_dim(dim, degree)


@pytest.mark.parametrize(("dim", "degree"), [(5, 1), (6, 2), (4, 3)])
def test_kernel_spectrum_is_that_of_the_kernel(dim, degree):
    """Σ λ N = k(x, x), Σ λ² N = E k(x, x′)², and the largest are those of a sample."""
    value, count = kernel_spectrum(dim, degree)
    assert float(value @ count) == pytest.approx(4**degree)
    assert count.sum() == kernel_dim(dim, degree)
    x = on_sphere(1500, dim)
    gram = kernel.polynomial_kernel(x, x, degree)
    squares = gram.square()
    pairs = (squares.sum() - squares.diagonal().sum()) / (1500 * 1499)
    assert float(pairs / (value**2 @ count)) == pytest.approx(1, abs=0.03)
    eigenvalues = torch.linalg.eigvalsh(gram).flip(0) / len(x)
    assert float(eigenvalues[0] / value[0]) == pytest.approx(1, abs=0.03)
    assert float(eigenvalues[1 : 1 + dim].mean() / value[1]) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("dim", "n_features", "gamma"), [(4, 2, 1.0), (8, 2, 1.0), (8, 5, 0.5)])
def test_degree_power_is_that_of_random_teachers(dim, n_features, gamma):
    """The part of degree 2 is Σ over B of (E u xᵀBx)²/E(xᵀBx)², B a basis of traceless matrices; whatever a_i."""
    teachers, samples, low, total = 60, 20_000, [], []
    for seed in range(teachers):
        generator = compute.generator(seed)
        teacher = HierarchicalTeacher(dim, 2, n_features, gamma, "id", 0.0, generator, inputs="sphere")
        x = teacher.sample_inputs(samples, generator)
        u = teacher.target(x)
        u = u - u.mean()
        moment = (x.mT @ (u[:, None] * x)).cpu() / samples
        moment -= torch.eye(dim, dtype=F64) * moment.trace() / dim
        low.append(float((moment**2).sum() * (dim + 2) / (2 * dim)))
        total.append(float(u.var()))
    share = np.mean(low) / np.mean(total)
    se = np.std(np.array(low) - share * np.array(total), ddof=1) / teachers**0.5 / np.mean(total)
    bias = (lift_dim(dim, 2) - 1) / samples  # noise in the moment
    assert abs(share - bias - float(degree_power(dim)[2])) <= 3 * se
    assert se < 0.03 and float(degree_power(dim).sum()) == pytest.approx(1)


def test_degree_power_tends_to_degree_four_as_4_over_d():
    assert float(degree_power(4000)[2]) * 4000 == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize("n", [60, 200, 320, 400])
def test_kernel_error_is_what_a_kernel_does(n):
    """d = 8: 450 features. Six teachers; the scatter is that of teachers."""
    measured = torch.stack([measured_error(8, n, "kernel", seed) for seed in range(6)])
    expected = kernel_error(float(n), 8, degree_power(8))
    assert abs(float(measured.mean() - expected)) <= 3 * float(measured.std()) / 6**0.5 + 0.01
    assert float(measured.std()) < 0.1


def test_kernel_error_has_its_ends():
    """Nothing is learned from one sample; everything from as many as there are features; a ridge only costs there."""
    power = degree_power(12)
    assert float(kernel_error(1e-3, 12, power)) == pytest.approx(1, abs=0.01)
    enough = kernel_dim(12, 2) + 50.0
    assert float(kernel_error(enough, 12, power)) < 1e-4
    assert float(kernel_error(enough, 12, power, ridges=(1.0,))) > 0.1
    middle = [float(kernel_error(200.0, 12, power, (r,))) for r in kernel.RIDGES]
    assert float(kernel_error(200.0, 12, power)) == min(middle)


def test_kernel_error_learns_degree_by_degree():
    """At d = 300 and N_2 ≪ n ≪ N_4: all of degree 2, nothing of degree 4."""
    dim = 300
    error = kernel_error(dim**3.0, dim, tensor(0, 0, 0.3, 0, 0.7))
    assert float(error) == pytest.approx(0.7, abs=0.03)


def test_exponent_of_the_kernel_tends_to_four():
    """3.3 at the d of a laptop, as measured; 4 in the limit; layer by layer 2, whatever d."""

    def exponent(method, dim):
        low, high = (float(expected_samples(d, method)) for d in (dim, 2 * dim))
        return math.log2(high / low)

    assert exponent("kernel", 9) == pytest.approx(3.3, abs=0.1)
    assert exponent("kernel", 400) == pytest.approx(3.98, abs=0.03)
    assert exponent("spectral", 400) == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize("method", separation.METHODS)
@pytest.mark.parametrize("level", [0.5, 0.1])
def test_expected_samples_give_the_level(method, level):
    n = expected_samples(14, method, level)
    error = layerwise_error(n, 14) if method == "spectral" else kernel_error(n, 14, degree_power(14))
    assert float(error) == pytest.approx(level, rel=0.01)


def test_both_methods_see_the_same_samples(monkeypatch):
    seen = []
    for room in (separation.spectral, separation.kernel):
        monkeypatch.setattr(room, "fit", lambda x, y, *_, **__: seen.append((x, y)) or Constant())
    for method in separation.METHODS:
        measured_error(5, 40, method, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def test_depth_takes_over_between_ten_and_a_hundred_dimensions():
    """The hint of exercise 10.4: at d = 10 for one half, before d = 100 for one percent."""
    for dim, level, ahead in ((9, 0.5, False), (10, 0.5, True), (60, 0.01, False), (100, 0.01, True)):
        layered, shallow = (float(expected_samples(dim, method, level)) for method in separation.METHODS)
        assert (layered < shallow) == ahead


def test_the_layer_wise_method_needs_many_more_samples_for_degree_three():
    """The large task of profile "full", in small: Gaussian inputs and q = 3, where little is found at d = 6."""
    two, three = (float(measured_error(6, 2000, "spectral", 0, degree=q, inputs="gaussian")) for q in (2, 3))
    assert two < 0.8 * three < 1.2


class Constant:
    def predict(self, x):
        return torch.zeros_like(x[:, 0])


def test_error_bar_of_a_crossing_is_its_scatter():
    """Curves c/n with lognormal c: the crossing at level 1 is the mean of c."""
    n = torch.logspace(0, 2, 40, dtype=F64)
    c = 10 * (0.2 * torch.randn(400, 16, dtype=F64, generator=compute.generator(0))).exp()
    found = [samples_with_error(n, part[:, None] / n, level=1.0) for part in c]
    crossing, se = (torch.stack(values) for values in zip(*found, strict=True))
    torch.testing.assert_close(crossing, c.mean(1))
    assert float(se.square().mean().sqrt() / crossing.log().std()) == pytest.approx(1, abs=0.12)


def test_a_curve_that_does_not_cross_has_no_samples():
    n, error = tensor(1, 2, 3), tensor(0.9, 0.8, 0.7).expand(3, 3)
    assert samples_with_error(n, error)[0] == math.inf and samples_with_error(n, error, 0.95)[0].isnan()


def test_needed_by_dim_reads_a_table():
    """Curves c/n with c = d² layer by layer and 2d³ for the kernel, a fixed scatter of seeds."""
    size, factor = [0.5, 1.0, 2.0, 4.0], [0.9, 1.0, 1.1]
    rows = [(d, m, s, seed) for d in (4, 8) for m in separation.METHODS for s in size for seed in range(3)]
    c = {"spectral": lambda d: d**2, "kernel": lambda d: 2 * d**3}
    columns = {"dim": [], "method": [], "n": [], "error": [], "seed": []}
    for d, m, s, seed in rows:
        n = s * 2 * c[m](d)
        for name, value in zip(columns, (d, m, n, factor[seed] * c[m](d) / n, seed), strict=True):
            columns[name].append(value)
    table = Table({name: np.array(column) for name, column in columns.items()})
    for method, expected in (("spectral", tensor(32, 128)), ("kernel", tensor(256, 2048))):
        dim, needed, log_error = needed_by_dim(table, method)
        assert dim.tolist() == [4, 8]
        torch.testing.assert_close(needed, expected)
        torch.testing.assert_close(log_error, torch.full_like(dim, 0.1 / 3**0.5), rtol=0.01, atol=0)


def test_fit_exponent_is_numpys_weighted_fit():
    dim, needed, log_error = tensor(8, 12, 20, 30), tensor(300, 800, 2900, 5000), tensor(0.1, 0.02, 0.3, 0.05)
    slope, se = fit_exponent(dim, needed, log_error)
    (expected, _), covariance = np.polyfit(
        np.log(dim.numpy()), np.log(needed.numpy()), 1, w=1 / log_error.numpy(), cov="unscaled"
    )
    assert float(slope) == pytest.approx(expected) and float(se) == pytest.approx(covariance[0, 0] ** 0.5)


D3 = tensor(8, 12, 16)
REFUSED = {
    "dim must be >= 2, got 1": lambda: kernel_dim(1, 2),
    "degree must be 1, 2, 3 or 4, got 5": lambda: kernel_dim(5, 5),
    "dim must be >= 3, got 2": lambda: kernel_spectrum(2, 2),
    r"power must be \(2q \+ 1,\) with q = 1, 2, 3 or 4, got \(4,\)": lambda: kernel_error(9.0, 5, tensor(0, 0, 0, 1)),
    r"power\[2\] = -1.0 must be >= 0 and finite": lambda: kernel_error(9.0, 5, tensor(0, 0, -1)),
    "n must be positive and finite, got 0": lambda: kernel_error(0.0, 5, tensor(0, 0, 1)),
    "ridges must hold at least one value, got none": lambda: kernel_error(9.0, 5, tensor(0, 0, 1), ()),
    r"ridges\[0\] = 0.0 must be positive": lambda: kernel_error(9.0, 5, tensor(0, 0, 1), (0,)),
    "dim must be a whole number, got 5.5": lambda: degree_power(5.5),
    "method must be spectral or kernel, got 'both'": lambda: expected_samples(5, "both"),
    r"level must lie in \(0, 1\), got 1": lambda: expected_samples(5, "kernel", 1),
    "method must be spectral or kernel, got 'net'": lambda: measured_error(5, 100, "net", 0),
    r"error must be \(seed, size\) with at least two seeds, got \(1, 3\)": lambda: samples_with_error(D3, D3[None]),
    r"dim, needed and log_error must be \(point,\) with at least two points": lambda: fit_exponent(D3, D3[:2], D3),
    r"log_error\[1\] = 0.0 must be positive": lambda: fit_exponent(D3, D3, tensor(1, 0, 1)),
    r"needed\[2\] = inf must be finite": lambda: fit_exponent(D3, tensor(1, 2, math.inf), D3),
    "dim must hold at least two different values": lambda: fit_exponent(tensor(9, 9), D3[:2], D3[:2]),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_bad_input_is_refused_in_a_sentence(sentence):
    with pytest.raises(ValueError if "whole" not in sentence else TypeError, match=sentence):
        REFUSED[sentence]()
