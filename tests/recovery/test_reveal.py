"""What n samples reveal: against the one-piece computation, the laws, and what finite d hides."""

import math

import numpy as np
import pytest
import torch
from scipy.special import zeta

from labkit import compute
from labkit.recovery import lifted, reveal, spectral, theory
from labkit.recovery.teacher import HierarchicalTeacher


def test_layer_one_is_the_moment_matrix_of_all_samples(monkeypatch):
    monkeypatch.setattr(reveal, "ROWS", 300)
    teacher = HierarchicalTeacher(20, 1, 3, 1.0, "id", 0.5, compute.generator(0))
    values, vectors, edge = reveal.layer_one(teacher, 1000, compute.generator(1))
    generator = compute.generator(1)
    parts = [teacher.sample(n, generator, torch.float32) for n in (300, 300, 300, 100)]
    x, y = (torch.cat(part).double() for part in zip(*parts, strict=True))
    t = y.clamp(-3 * math.sqrt(1.25), 3 * math.sqrt(1.25))
    moment = (x.mT * t) @ x / 1000 - t.mean() * torch.eye(20, dtype=torch.float64)
    torch.testing.assert_close(vectors @ values.diag() @ vectors.mT, moment, rtol=1e-5, atol=1e-5)
    assert edge.item() == pytest.approx(theory.bulk_edge(t, 50.0).item(), rel=1e-5)


def test_the_surrogate_keeps_the_promise_and_the_lift_does_not():
    """d = 24, 40 000 samples: n/D = 133."""
    found = reveal.reveal(24, 1.0, 40_000, seeds=[0, 1])
    law = theory.overlap(40_000 / 300, 1.0, reveal.LISTED, tail="noise")
    torch.testing.assert_close(found.law, law)
    known = law > 0.6
    assert known.sum() == 7 and (found.subspace - law)[known].abs().max() < 0.12
    assert (found.single <= found.subspace + 1e-9).all() and (found.single < found.subspace - 0.1).any()
    assert found.lift[1:].max() > 0.8 and found.lift[6:].max() < 0.5 < law[6]  # hidden on the real lift
    assert (found.limit[:3] > 0.85).all() and found.limit[9:].max() < 0.3  # also of infinitely many samples
    n_1 = theory.window(1.0, 1, tail="noise")[0] * 300
    assert found.sharp == pytest.approx(math.sqrt(40_000 / n_1)) and found.gap == pytest.approx((40_000 / n_1) ** 0.25)
    assert 7 <= found.found <= found.sharp


def test_more_samples_help_the_lift_slowly():
    """As lesson 09 says, of features 4 to 6 at d = 16, γ = 1: 0.27 with 20 000 samples, 0.54 with ten times more."""
    found = []
    for seed in range(4):
        task = HierarchicalTeacher(16, 2, reveal.LISTED, 1.0, "id", 0.0, compute.generator(seed), tail="noise")
        stages = lifted.overlaps_by_samples(task, "hygiene", (20_000, 200_000), compute.generator(100 + seed))
        found.append(stages[:, 3:6].mean(1))
    few, many = torch.stack(found).mean(0).tolist()
    law = theory.overlap(20_000 / 136, 1.0, reveal.LISTED, tail="noise")[3:6].mean().item()
    assert (few, many, law) == (
        pytest.approx(0.27, abs=0.01),
        pytest.approx(0.54, abs=0.01),
        pytest.approx(0.85, abs=5e-3),
    )


def test_remedies_may_beat_the_limit_without_the_second_term():
    """So that limit is not that of the measured overlaps: γ = 2, d = 18, feature 2."""
    found = reveal.reveal(18, 2.0, 100_000, seeds=[0])
    assert found.lift[1] > found.limit[1] + 0.1


def test_the_sum_of_the_simple_law_is_flatter_than_its_integral():
    """By the share 1/(CK), the half of the first term that the sum over k ≥ 1 has less (Euler and Maclaurin)."""
    size = torch.logspace(1.3, 3, 6, dtype=torch.float64, device=compute.device())
    for gamma in (0.75, 1.0, 1.5):
        c, z = 2 - 1 / (2 * gamma + 1) + 1 / (2 * gamma - 1), float(zeta(2 * gamma))
        k = (2 * size / z) ** (1 / (2 * gamma))
        integral = theory.mse_power_law(size, gamma)
        total = theory.mse_curve(size, gamma, reveal.LISTED + 40, law="simple", tail="noise")
        torch.testing.assert_close(total / integral, 1 - 1 / (c * k), rtol=6e-3, atol=0)
        assert theory.scaling_exponent(gamma) < reveal.fitted_slope(size, total)


@pytest.mark.parametrize(("noise_std", "slope"), [(0.0, -0.541), (3.0, -0.495)])
def test_label_noise_brings_the_slope_nearer_to_the_law(noise_std, slope):
    """As lesson 09 says of n/D = 1000, γ = 1, d₁ = 1000, where the law has −1/2."""
    size = torch.logspace(0, 5, 201, dtype=torch.float64, device=compute.device())
    found = theory.local_slope(size, theory.cascade(size, 1.0, 1000, noise_std).mse)
    assert found[120].item() == pytest.approx(slope, abs=6e-4) and size[120].item() == pytest.approx(1000)


def test_on_the_lift_more_eigenvalues_pass_the_edge_than_features_are_found():
    teacher = HierarchicalTeacher(24, 2, reveal.LISTED, 1.0, "id", 0.0, compute.generator(0), tail="noise")
    model = spectral.fit(*teacher.sample(40_000, compute.generator(1), torch.float32), 2)
    known = (spectral.overlaps(model.directions, teacher.directions)[0] > 0.5).sum()
    assert model.directions.shape[1] >= 2 * known >= 4


def test_gaps_are_what_davis_and_kahan_divide_by():
    """√2 (a_k − a_{k+1}) against the operator norm of the noise, 2 √(E y² D/n): equal at n = 4 k²/γ² n_k, k ≫ 1."""
    gamma, k, size = 1.0, 400, 1000
    a = theory.amplitudes(gamma, 500)
    needed = theory.recovery_threshold(k, gamma, 500, size).item() * 4 * k**2 / gamma**2
    gap = math.sqrt(2) * (a[k - 1] - a[k]).item()
    assert gap == pytest.approx(2 * math.sqrt(size / needed), rel=0.01)


def test_whole_algorithm_on_the_lift_learns_more_when_the_lift_is_cleaned():
    sizes = torch.tensor([20.0, 100.0])
    plain, clean = (reveal.lift_slope(16, sizes, hygiene, range(6)) for hygiene in (False, True))
    assert (clean[0] < plain[0]).all() and clean[1] < plain[1] - 3 * math.hypot(clean[2], plain[2])
    torch.testing.assert_close(reveal.lift_errors(14, sizes, True, 2), reveal.lift_errors(14, sizes, True, 2))


def test_fitted_slope_is_that_of_polyfit():
    x, y = torch.tensor([1.0, 3.0, 7.0, 20.0]).double(), torch.rand(5, 4, generator=compute.generator(0)).double() + 0.1
    expected = np.polyfit(np.log(x.numpy()), np.log(y.numpy()).T, 1)[0]
    np.testing.assert_allclose(reveal.fitted_slope(x, y), expected, rtol=1e-9)


def test_bad_input_is_refused_in_a_sentence():
    teacher = HierarchicalTeacher(5, 1, 2, 1.0, "id", 0.0, compute.generator(0))
    with pytest.raises(ValueError, match="n must be >= 2, got 1"):
        reveal.layer_one(teacher, 1, compute.generator(0))
    with pytest.raises(ValueError, match="seeds must not be empty"):
        reveal.reveal(12, 1.0, 1000, seeds=[])
    with pytest.raises(ValueError, match="gamma must be > 1/2: else"):
        reveal.reveal(12, 0.5, 1000, seeds=[0])
    with pytest.raises(ValueError, match="seeds must be at least two, for a standard error, got 1"):
        reveal.lift_slope(8, torch.tensor([20.0, 40.0]), True, seeds=[0])
    with pytest.raises(ValueError, match="x must hold at least two different values, got"):
        reveal.fitted_slope(torch.ones(2), torch.ones(2))
    with pytest.raises(ValueError, match="x.*must be positive"):
        reveal.fitted_slope(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0]))
