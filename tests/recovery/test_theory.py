"""The laws against closed forms, scipy's root finder, exact quadrature at d = 6, and simulation of the surrogate."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from labkit import compute
from labkit.recovery import theory
from labkit.recovery.hermite import as_matrix, lift
from labkit.recovery.spectral import clip_labels, moment_matrix, overlaps
from labkit.recovery.teacher import HierarchicalTeacher
from labkit.recovery.theory import (
    Labels,
    bulk_edge,
    draw_labels,
    exact,
    label_quadrature,
    mse_curve,
    overlap,
    recovery_threshold,
)
from tests.recovery.test_hermite import quadrature
from tests.verify import recovery as verify

F64 = torch.float64


def tensor(*values):
    return torch.tensor(values, dtype=F64)


# ---- the exact law


def subset(share=0.3, strength=2.5):
    """t = 1 on a share of the samples, on which E h² = strength: Ĉ is a spiked sample covariance there."""
    square = torch.tensor([[strength], [(1 - share * strength) / (1 - share)]], dtype=F64)
    return Labels(tensor(1.0, 0.0), square, tensor(share, 1 - share))


@pytest.mark.parametrize("delta", [2.0, 10.0, 100.0])
def test_edge_of_a_sample_covariance_is_marchenko_pastur(delta):
    labels = subset()
    expected = 0.3 * (1 + 1 / math.sqrt(0.3 * delta)) ** 2 - 0.3
    assert bulk_edge(labels.t, delta, labels.weight).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("delta", [4.0, 10.0, 100.0])
def test_spike_of_a_sample_covariance(delta):
    """A covariance eigenvalue ℓ and c = dim/samples: λ = ℓ(1 + c/(ℓ−1)), ρ = (1 − c/(ℓ−1)²)/(1 + c/(ℓ−1))."""
    found, c, ell = exact(subset(), delta), 1 / (0.3 * delta), 2.5
    assert found.outlier.item() == pytest.approx(0.3 * ell * (1 + c / (ell - 1)) - 0.3, rel=1e-9)
    assert found.overlap.item() == pytest.approx((1 - c / (ell - 1) ** 2) / (1 + c / (ell - 1)), rel=1e-9)


def test_below_its_threshold_a_spike_is_in_the_bulk():
    for delta, out in ((1.48, False), (1.49, True)):  # c = (ℓ−1)² at δ = 1/(.3·2.25) = 1.4815
        found = exact(subset(), delta)
        assert (found.overlap.item() > 0) == (found.outlier.item() > found.edge.item() + 1e-12) == out


def test_roots_agree_with_scipy():
    labels = draw_labels(1.0, 6, noise_std=0.5, draws=3000)
    t, squares = labels.t.numpy(), labels.squares.numpy()
    for delta in (3.0, 20.0, 300.0):
        top = brentq(lambda v, d=delta: np.mean((t / (v - t)) ** 2) - 1 / d, t.max() + 1e-6, 1e4, xtol=1e-13)
        psi = top * (1 / delta + np.mean(t / (top - t))) - t.mean()
        found = exact(labels, delta)
        assert found.edge.item() == pytest.approx(psi, rel=1e-8)
        for k in range(6):

            def pull(v, k=k, d=delta):
                return np.mean(t * (squares[:, k] - 1) / (v - t)) - 1 / d

            if pull(top) <= 0:
                assert found.overlap[k] == 0 and found.outlier[k] == found.edge
                continue
            root = brentq(pull, top, 1e5, xtol=1e-13)
            ratio = t / (root - t)
            slope = 1 / delta - np.mean(ratio**2)
            expected = slope / (slope + np.mean(ratio**2 * squares[:, k]))
            assert found.overlap[k].item() == pytest.approx(expected, abs=1e-8)
            assert found.outlier[k].item() == pytest.approx(root * (1 / delta + np.mean(ratio)) - t.mean(), rel=1e-8)


def test_many_sizes_at_once_are_those_one_by_one():
    labels = draw_labels(1.0, 5, draws=2000)
    deltas = tensor([3.0, 30.0], [10.0, 500.0])
    together = exact(labels, deltas)
    assert together.edge.shape == (2, 2) and together.overlap.shape == together.outlier.shape == (2, 2, 5)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        one = exact(labels, deltas[i, j])
        torch.testing.assert_close(together.overlap[i, j], one.overlap, atol=1e-9, rtol=0)
        torch.testing.assert_close(together.outlier[i, j], one.outlier)


def test_joined_draws_say_the_same():
    labels = draw_labels(1.0, 12, draws=20_000)
    binned = labels.binned()
    assert len(binned.t) == 514  # and two ends, of which +3 is an atom
    assert binned.weight.sum().item() == pytest.approx(1)
    torch.testing.assert_close(binned.weight @ binned.squares, labels.weight @ labels.squares)
    torch.testing.assert_close(binned.t.aminmax(), labels.t.aminmax(), rtol=1e-12, atol=0)
    deltas = tensor(5.0, 20.0, 100.0, 500.0)
    assert (exact(labels, deltas).overlap - exact(binned, deltas).overlap).abs().max() < 3e-3
    assert (exact(labels, deltas).edge / exact(binned, deltas).edge - 1).abs().max() < 1e-3


@pytest.mark.parametrize("n_features, gamma, noise_std", [(12, 1.0, 0.0), (1, 1.0, 0.0), (3, 1.5, 0.3), (5, 0.0, 1.0)])
def test_quadrature_is_the_limit_of_draws(n_features, gamma, noise_std):
    """Moments of t and E t²h² to 4 standard errors of 400 000 draws; overlaps to their scatter."""
    grid = label_quadrature(gamma, n_features, noise_std)
    drawn = draw_labels(gamma, n_features, noise_std, draws=400_000)
    for power in (1, 2, 3):
        for k in (0, n_features - 1):
            sample = drawn.t**power * drawn.squares[:, k]
            error = 4 * sample.std() / math.sqrt(len(sample)) + 1e-3  # the smoothing
            assert abs(grid.weight @ (grid.t**power * grid.squares[:, k]) - sample.mean()) <= error
    torch.testing.assert_close(grid.weight @ grid.squares, torch.ones(n_features, dtype=F64), rtol=1e-6, atol=0)
    deltas = tensor(5.0, 20.0, 100.0)
    difference = exact(grid, deltas).overlap - exact(drawn.binned(2048), deltas).overlap
    assert difference.abs().max() < 0.03 and difference[exact(grid, deltas).overlap > 0.8].abs().max() < 0.004


NOTES = {  # δ: edge and overlaps of the exact law in the theory notes, D = ∞, 12 features, γ = 1, σ = 0, clip 3
    5: (1.209, 0.58),
    10: (0.760, 0.77, 0.49),
    20: (0.494, 0.88, 0.75, 0.51, 0.15),
    50: (0.291, 0.95, 0.90, 0.82, 0.71, 0.54),
    100: (0.199, 0.98, 0.95, 0.91, 0.86, 0.79, 0.69),
    200: (0.138, 0.99, 0.98, 0.96, 0.93, 0.90, 0.85),
}


@pytest.mark.parametrize("delta", NOTES)
def test_the_table_of_the_notes(delta):
    edge, *expected = NOTES[delta]
    found = exact(label_quadrature(1.0, 12), float(delta))
    assert found.edge.item() == pytest.approx(edge, abs=0.005)
    assert found.overlap[: len(expected)].tolist() == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    "gamma, n_features, noise_std", [(1.0, 12, 0.0), (0.0, 40, 0.1), (2.2, 90, 0.0), (0.6, 30, 3.0)]
)
@pytest.mark.parametrize("low, high, points", [(-0.3, 5.0, 30), (2.0, 2.5, 3), (1.0, 1.0, 1)])
def test_staircase_is_the_exact_law(gamma, n_features, noise_std, low, high, points):
    labels = label_quadrature(gamma, n_features, noise_std)
    deltas = torch.logspace(low, high, points, dtype=F64)
    found, expected = theory.staircase(labels.binned(384), deltas), exact(labels, deltas).overlap
    assert found.shape == (points, n_features) and (found - expected).abs().max() < 1e-3


@pytest.mark.parametrize(
    "n_features, gamma, noise_std", [(150, 1.0, 0.0), (200, 0.5, 0.5), (100, 0.6, 3.0), (5, 1.0, 0.0)]
)
def test_cascade_is_the_exact_law_of_every_feature(n_features, gamma, noise_std):
    """Although it solves for 60 of them and counts the weak ones as noise."""
    deltas = torch.logspace(0, 4.5, 12, dtype=F64)
    steps = theory.cascade(deltas, gamma, n_features, noise_std)
    rho = exact(label_quadrature(gamma, n_features, noise_std), deltas).overlap
    assert (steps.overlap - rho).abs().max() < 0.005
    power = theory.amplitudes(gamma, n_features) ** 2
    torch.testing.assert_close(steps.mse, (power * (1 - rho**2)).sum(-1), rtol=3e-3, atol=0)
    unlearned = (power * (steps.overlap == 0)).sum(-1)
    torch.testing.assert_close(steps.unlearned, unlearned)


def test_cascade_with_a_tail_that_is_noise():
    deltas = tensor(20.0, 300.0)
    expected = mse_curve(deltas, 0.75, 100, 1.0, tail="noise")
    torch.testing.assert_close(theory.cascade(deltas, 0.75, 100, 1.0, "noise").mse, expected, rtol=1e-3, atol=0)


def test_local_slope_of_a_power_and_of_a_bend():
    x = torch.logspace(0, 4, 81, dtype=F64)
    torch.testing.assert_close(theory.local_slope(x, 5 * x**-0.7), torch.full_like(x, -0.7))
    bent = theory.local_slope(x, torch.maximum(x**-1.0, x**-0.5 / 10))  # at x = 100
    assert bent[0].item() == pytest.approx(-1) and bent[-1].item() == pytest.approx(-0.5)
    assert bent[40].item() == pytest.approx(-0.75)  # half of the half decade on either side


def test_edge_is_where_pure_noise_ends():
    """Labels shuffled among samples: the largest of 300 eigenvalues, to its scatter of order D^{−2/3}."""
    x = torch.randn(6000, 300, dtype=F64, generator=compute.generator(0))
    t = draw_labels(1.0, 12, draws=6000).t
    top = torch.linalg.eigvalsh(moment_matrix(x, t, 1))[-1]
    assert top.item() == pytest.approx(bulk_edge(t, 20.0).item(), rel=2 * 300 ** (-2 / 3))


@pytest.mark.parametrize("link", ["tanh", "even"])
def test_other_links_against_simulation(link):
    """The even link leaves 4a² of a feature, 2√2·a of the identity: its weak features stay hidden."""
    teacher = HierarchicalTeacher(300, 1, 3, 1.0, link, 0.0, compute.generator(1))
    x, y = teacher.sample(30_000, compute.generator(2))
    values, vectors = torch.linalg.eigh(moment_matrix(x, clip_labels(y), 1))
    found = exact(draw_labels(1.0, 3, link=link, draws=200_000), 100.0)
    assert overlaps(vectors[:, -3:], teacher.directions)[1].tolist() == pytest.approx(found.overlap.tolist(), abs=0.05)
    assert values[-1].item() == pytest.approx(found.outlier[0].item(), rel=0.05)
    assert (found.overlap > 0.9).sum() == {"tanh": 3, "even": 1}[link]


def test_without_clipping_there_is_a_warning():
    with pytest.warns(UserWarning, match="clip=None: the largest of heavy-tailed labels make outliers"):
        draw_labels(1.0, 3, clip=None)


# ---- the simple law and its sums


def test_threshold_is_where_the_simple_overlap_starts():
    for k in (1, 2, 5):
        n = recovery_threshold(k, 0.8, 5, lift_dim=600, noise_std=0.7).item()
        for factor, out in ((0.999, False), (1.001, True)):
            assert (overlap(factor * n / 600, 0.8, 5, 0.7, law="simple")[k - 1] > 0) == out


def test_threshold_in_numbers():
    """γ = 0, four features: a² = 1/4, n = D·Ey²·2; all equal."""
    assert recovery_threshold(torch.arange(1, 5), 0.0, 4, 100).tolist() == [200.0] * 4
    assert recovery_threshold(3, 0.0, 4, 100, noise_std=2.0).item() == 1000


def test_laws_agree_when_noise_is_large():
    """σ = 3: the self-noise is small beside label noise, and the three laws meet far above their thresholds."""
    deltas = tensor(1e3, 1e4)
    simple = overlap(deltas, 1.0, 4, 3.0, law="simple")
    assert (overlap(deltas, 1.0, 4, 3.0, law="plus") - simple).abs().max() < 3e-3
    assert (overlap(deltas, 1.0, 4, 3.0) - simple)[simple > 0.8].abs().max() < 0.02


def test_learned_features_and_window():
    start, end = theory.window(1.0, 12, noise_std=1.0)
    assert theory.learned_features(tensor(0.99 * start, 1.01 * start), 1.0, 12, 1.0).tolist() == [0, 1]
    assert theory.learned_features(tensor(0.99 * end, 1.01 * end), 1.0, 12, 1.0).tolist() == [11, 12]
    assert end / start == pytest.approx(144)


def test_mse_is_the_sum_over_features():
    rho = overlap(50.0, 1.0, 7, law="simple")
    a = theory.amplitudes(1.0, 7)
    assert mse_curve(50.0, 1.0, 7, law="simple").item() == pytest.approx(float(1 - (a**2 * rho**2).sum()))
    tail = theory.tail_variance(1.0, 7, "noise")
    assert tail == pytest.approx(1 - 6 / math.pi**2 * sum(k**-2 for k in range(1, 8)))
    assert mse_curve(1e9, 1.0, 7, law="simple", tail="noise").item() == pytest.approx(tail, abs=1e-6)


@pytest.mark.parametrize("gamma", [0.75, 1.0, 1.5])
def test_power_law_is_the_limit_of_the_steps(gamma):
    """20 000 features, K ≫ 1: value to 1.5 %, local slope to .003 of −1 + 1/(2γ)."""
    deltas = torch.logspace(4.5, 5.5, 9, dtype=F64)
    steps = mse_curve(deltas, gamma, 20_000, law="simple", tail="noise")
    law = theory.mse_power_law(deltas, gamma)
    assert (steps / law - 1).abs().max() < 0.015
    ratio = float((steps[-1] / steps[0]).log10())
    assert ratio == pytest.approx(theory.scaling_exponent(gamma).item(), abs=3e-3)
    assert float((law[-1] / law[0]).log10()) == pytest.approx(theory.scaling_exponent(gamma).item(), abs=1e-9)


def test_far_beyond_the_window_the_error_is_parametric():
    """Where the exact law of clipped labels and (d₁(1 + σ²) + 4)/δ meet: clipping at 6 sd changes little."""
    for delta in (1000.0, 10_000.0):
        error = mse_curve(delta, 1.0, 5, 0.5, clip=6.0).item()
        assert error == pytest.approx(theory.mse_parametric(delta, 5, 0.5).item(), rel=0.06)


def test_values_of_the_notes():
    """γ = 1, σ = 0: MSE at n/D = 50 … 1000, to 1 %."""
    curve = mse_curve(tensor(50.0, 100.0, 200.0, 500.0, 1000.0), 1.0, 100, tail="noise")
    assert curve.tolist() == pytest.approx([0.2541, 0.1691, 0.1147, 0.0698, 0.0476], rel=0.02)


def test_first_slope_of_the_notes():
    """One row of `make verify`: the exact slope, and two sizes of the simulation within 5 % of the curve."""
    gamma, noise_std = 1.5, 0.0
    dim, sizes = verify.WINDOWS[noise_std]
    curve = mse_curve(torch.tensor(sizes), gamma, verify.LISTED, noise_std, tail="noise")
    assert verify.slope(sizes, curve.numpy()) == pytest.approx(verify.SLOPES[gamma, noise_std][0], abs=0.01)
    for i in (0, 2):
        error = torch.stack([verify.scaling_error(gamma, noise_std, dim, sizes[i], seed) for seed in (0, 1)])
        assert error.mean().item() == pytest.approx(curve[i].item(), rel=0.05)


# ---- infinitely many samples at finite d


@pytest.mark.parametrize("dim, n_features", [(2, 1), (3, 2), (4, 3), (6, 3)])
def test_population_moment_is_exact(dim, n_features):
    """Gauss-Hermite with 5 nodes is exact for u·HHᵀ, of degree ≤ 8 in each coordinate."""
    teacher = HierarchicalTeacher(dim, 2, n_features, 1.0, "id", 0.0, compute.generator(dim))
    x, mass = quadrature(dim, 5)
    h, u = lift(x, 2), teacher.latent(x)
    expected = h.mT @ ((mass * u)[:, None] * h) - (mass @ u) * torch.eye(h.shape[1], dtype=F64)
    moment = theory.population_moment(teacher.directions, teacher.amplitudes)
    assert (moment.total - expected).abs().max() <= 1e-10
    variance, low = theory.population_variance(teacher.directions, teacher.amplitudes)
    assert variance.item() == pytest.approx(float(mass @ u**2), abs=1e-10)
    assert low.item() == pytest.approx(float(((mass * u) @ h).square().sum()), abs=1e-10)


def test_population_moment_against_samples():
    """d = 12, 200 000 samples: ⟨v, C v⟩ in the direction of each feature, to 3 standard errors."""
    teacher = HierarchicalTeacher(12, 2, 4, 1.0, "id", 0.0, compute.generator(0))
    x = teacher.sample_inputs(200_000, compute.generator(1))
    samples = teacher.latent(x)[:, None] * (teacher.features(x) ** 2 - 1)
    total = theory.population_moment(teacher.directions, teacher.amplitudes).total
    expected = ((total @ teacher.directions) * teacher.directions).sum(0)
    assert ((samples.mean(0) - expected).abs() <= 3 * samples.std(0) / math.sqrt(len(x))).all()


def test_edge_counts_what_no_sample_sees():
    """n < D and labels of one sign: Ĉ has D − n eigenvalues −E t, above all others."""
    t = -1 - torch.rand(200, dtype=F64, generator=compute.generator(0))
    x = torch.randn(200, 400, dtype=F64, generator=compute.generator(1))
    largest = torch.linalg.eigvalsh(x.mT @ (t[:, None] * x) / 200 - t.mean() * torch.eye(400))[-1]
    assert largest.item() == pytest.approx(bulk_edge(t, 0.5).item(), rel=1e-7)


def test_corrections_are_what_their_names_say():
    """As maps of matrices: low_degree(U) = 2√2(SU + US), crossed(U) = 2√2 Σ a MUM."""
    teacher = HierarchicalTeacher(5, 2, 3, 1.0, "id", 0.0, compute.generator(0))
    moment, a, m = (
        theory.population_moment(teacher.directions, teacher.amplitudes),
        teacher.amplitudes,
        teacher.matrices,
    )
    v = torch.randn(15, dtype=F64, generator=compute.generator(1))
    u, s = as_matrix(v), torch.einsum("i,iab,ibc->ac", a, m, m)
    torch.testing.assert_close(as_matrix(moment.low_degree @ v), 2 * math.sqrt(2) * (s @ u + u @ s))
    torch.testing.assert_close(
        as_matrix(moment.crossed @ v), 2 * math.sqrt(2) * torch.einsum("i,iab,bc,icd->ad", a, m, u, m)
    )


def test_finite_dimension_hides_weak_features():
    """d = 24, γ = 1, 12 features, n = ∞ (theory notes, section a): two or three are seen, more without low degrees."""
    seen = []
    for seed in range(8):
        teacher = HierarchicalTeacher(24, 2, 12, 1.0, "id", 0.0, compute.generator(seed))
        moment = theory.population_moment(teacher.directions, teacher.amplitudes)
        seen.append([])
        for matrix in (moment.total, moment.total - moment.low_degree):
            _, vectors = torch.linalg.eigh(matrix)
            seen[-1].append(overlaps(vectors, teacher.directions)[0][:5])
        values = torch.linalg.eigvalsh(moment.low_degree + moment.crossed)
        assert values.mean().item() == pytest.approx(0.597, abs=0.05)
        assert values.std().item() == pytest.approx(0.208, abs=0.03)
    raw, cleaned = (torch.stack(part).mean(0).tolist() for part in zip(*seen, strict=True))
    assert raw[:3] == pytest.approx([0.94, 0.65, 0.30], abs=0.1)
    assert cleaned[:4] == pytest.approx([0.99, 0.95, 0.84, 0.63], abs=0.12)


# ---- bad input

REFUSED = {
    r"gamma must be > 1/2: else Σ k\^\(-2γ\) diverges, .*, got 0.5": lambda: theory.scaling_exponent(0.5),
    r"gamma\[1\] = 0.2 must be > 1/2": lambda: theory.scaling_exponent(tensor(1.0, 0.2)),
    "gamma must be > 1/2.*, got 0.3": lambda: theory.mse_power_law(10.0, 0.3),
    "gamma must be > 1/2.*, got 0.4": lambda: mse_curve(10.0, 0.4, 3, tail="noise"),
    r"k must lie in \[1, 3\], got 4": lambda: recovery_threshold(4, 1.0, 3, 10),
    "k must be an integer or an integer tensor": lambda: recovery_threshold(1.5, 1.0, 3, 10),
    "lift_dim must be >= n_features = 12, got 10": lambda: recovery_threshold(1, 1.0, 12, 10),
    "samples_per_dim must be positive and finite, got 0.0": lambda: overlap(0.0, 1.0, 3),
    r"samples_per_dim\[1\] = -1.0 must be positive": lambda: mse_curve(tensor(1.0, -1.0), 1.0, 3, law="simple"),
    "samples_per_dim must be positive and finite, got nan": lambda: bulk_edge(tensor(1.0, 2.0), math.nan),
    "law must be one of exact, plus, simple, got 'sharp'": lambda: overlap(1.0, 1.0, 3, law="sharp"),
    "law must be \"exact\" for link 'tanh', got 'plus'": lambda: overlap(1.0, 1.0, 3, law="plus", link="tanh"),
    "clip must be positive and finite, or None, got 0": lambda: draw_labels(1.0, 3, clip=0),
    "clip must be positive and finite, or None, got -1": lambda: overlap(1.0, 1.0, 3, clip=-1),
    "draws must be >= 2, got 1": lambda: draw_labels(1.0, 3, draws=1),
    r"samples_per_dim must be \(points,\), not empty, got \(\)": lambda: theory.cascade(tensor(1.0)[0], 1.0, 3),
    r"x and y must be \(points,\), two or more, got \(1,\) and \(1,\)": lambda: theory.local_slope(
        tensor(1), tensor(1)
    ),
    r"listed\[0\] = 0 must lie in \[1, 3\]": lambda: theory.label_quadrature(1.0, 3, listed=torch.tensor([0])),
    "clip must be a number": lambda: theory.label_quadrature(1.0, 3, clip=None),
    "lift_dim must be a whole number, got nan": lambda: recovery_threshold(1, 1.0, 3, math.nan),
    "decades must be positive and finite, got 0": lambda: theory.local_slope(tensor(1.0, 2.0), tensor(1.0, 1.0), 0),
    "x must rise": lambda: theory.local_slope(tensor(2.0, 1.0), tensor(1.0, 1.0)),
    "t must not be constant: labels that are all 2 tell nothing": lambda: bulk_edge(tensor(2.0, 2.0), 1.0),
    r"t\[1\] = nan must be finite": lambda: bulk_edge(tensor(1.0, math.nan), 1.0),
    r"t must be \(draw,\) with at least two labels, got \(1,\)": lambda: bulk_edge(tensor(1.0), 1.0),
    "noise_std must lie in": lambda: overlap(1.0, 1.0, 3, noise_std=-1.0, law="simple"),
    r"directions must be \(D, n_features\) and amplitudes": lambda: theory.population_moment(torch.eye(3), tensor(1.0)),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_bad_input_is_refused_in_a_sentence(sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        REFUSED[sentence]()
