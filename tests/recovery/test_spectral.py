"""The moment matrix against forming it, both eigen-solvers against numpy, the cleaning against plain least squares,
the whole fit against the theory on the surrogate; memory that does not grow with n."""

import dataclasses
import math
import sys
import warnings

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from labkit import compute
from labkit.recovery import hermite, spectral, theory
from labkit.recovery.hermite import as_matrix, from_matrix, lift, lift_dim
from labkit.recovery.spectral import (
    clip_labels,
    drop_trace,
    eigenpairs,
    fit,
    low_degree_residual,
    moment_matrix,
    moment_operator,
    overlaps,
    prefers_dense,
    radial_normalize,
    surrogate_error,
)
from labkit.recovery.teacher import HierarchicalTeacher
from tests.recovery.peak import peak_bytes
from tests.recovery.test_hermite import quadrature, randn

F64 = torch.float64


def sample(dim, degree, n, n_features=3, link="id", noise_std=0.0, seed=0, dtype=F64, **more):
    teacher = HierarchicalTeacher(dim, degree, n_features, 1.0, link, noise_std, compute.generator(seed), **more)
    return teacher, *teacher.sample(n, compute.generator(seed + 100), dtype)


def relative_error(model, teacher, n=20_000):
    x = teacher.sample_inputs(n, compute.generator(999))
    truth = teacher.target(x)
    return (((model.predict(x) - truth) ** 2).mean() / truth.var()).item()


# ---- cleaning


def test_radial_normalize_keeps_directions():
    x = randn(50, 7)
    unit = radial_normalize(x)
    torch.testing.assert_close(unit.norm(dim=1), torch.full((50,), math.sqrt(7), dtype=F64))
    torch.testing.assert_close(torch.cosine_similarity(unit, x), torch.ones(50, dtype=F64))


def test_clip_labels_at_multiples_of_the_root_mean_square():
    t = randn(1000)
    size = t.square().mean().sqrt()
    clipped = clip_labels(t, 1.5)
    assert clipped.abs().max().item() == pytest.approx(1.5 * size.item())
    assert torch.equal(clipped[t.abs() < 1.5 * size], t[t.abs() < 1.5 * size])


@pytest.mark.parametrize("ridge", [0.3, None])
def test_low_degree_residual_is_that_of_a_ridge_regression(ridge):
    """scikit-learn, with the lift written out; the radial terms first projected out, so that they go unpunished."""
    x, y = randn(400, 5), randn(400, seed=1)
    z = ((x**2).sum(1) / 5 - 1) * math.sqrt(5 / 2)
    radial = np.linalg.qr(np.stack([z.numpy() ** j for j in range(4)], 1))[0]

    def without_radial(v):
        return v - radial @ (radial.T @ v)

    h, target = (without_radial(v.numpy()) for v in (lift(radial_normalize(x), 2), y))
    model = Ridge(alpha=400 * (15 / 400 if ridge is None else ridge), fit_intercept=False, tol=1e-12).fit(h, target)
    np.testing.assert_allclose(low_degree_residual(x, y, ridge).numpy(), target - model.predict(h), atol=1e-5)


def test_residual_keeps_the_degree_that_matters():
    """Of labels of degree 4, what is left has lost what H_2 says; a label of degree 2 leaves nothing."""
    teacher, x, y = sample(12, 2, 40_000)
    rest = low_degree_residual(x, y, ridge=1e-6)
    assert (lift(radial_normalize(x), 2).mT @ rest / len(x)).abs().max() < 1e-3
    kept = (rest.var() / y.var()).item()
    variance, low = theory.population_variance(teacher.directions, teacher.amplitudes)
    assert kept == pytest.approx(1 - (low / variance).item(), abs=0.05)
    quadratic = lift(radial_normalize(x), 2) @ randn(78, seed=1)
    assert low_degree_residual(x, quadratic, ridge=1e-9).std() < 1e-4 * quadratic.std()


def test_drop_trace_removes_one_direction_only():
    moment, trace = randn(15, 15), from_matrix(torch.eye(5, dtype=F64)) / math.sqrt(5)
    moment = moment + moment.mT
    dropped, v = drop_trace(moment), randn(15, seed=1)
    v = v - trace * (trace @ v)
    assert (dropped @ trace).abs().max() < 1e-14
    torch.testing.assert_close(v @ dropped @ v, v @ moment @ v)
    assert as_matrix(v).trace().abs() < 1e-12


# ---- the moment


def formed(x, t, degree):
    h = lift(x, degree)
    return h.mT @ (t[:, None] * h) / len(x) - t.mean() * torch.eye(h.shape[1], dtype=F64)


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_moment_streamed_as_formed(degree, dtype, tolerance, monkeypatch):
    monkeypatch.setitem(hermite.CHUNK, "cpu", 2000)  # many chunks, the last one shorter, several flushes
    x, t = randn(1900, 5), randn(1900, seed=1)
    expected = formed(x, t, degree)
    x, t, size = x.to(dtype), t.to(dtype), lift_dim(5, degree)
    assert (moment_matrix(x, t, degree) - expected).abs().max() <= tolerance
    by_products = spectral._sum_by_products(x, t, degree, size) / len(x) - t.mean() * torch.eye(size, dtype=F64)
    assert (by_products - expected).abs().max() <= tolerance
    v = randn(size, 3, seed=2)
    assert (moment_operator(x, t, degree)(v) - expected @ v).abs().max() <= 10 * tolerance


@pytest.mark.parametrize("labels", [[1.0, 2.0, 0.0], [-1.0, -2.0, 0.0], [0.0, 0.0, 0.0]])
def test_moment_of_labels_of_one_sign(labels):
    x, t = randn(3, 4), torch.tensor(labels, dtype=F64)
    torch.testing.assert_close(moment_matrix(x, t, 2), formed(x, t, 2))


def test_moment_tends_to_that_of_the_population():
    """Integrated exactly: quadrature nodes as samples, their weights in the labels."""
    teacher = HierarchicalTeacher(4, 2, 2, 1.0, "id", 0.0, compute.generator(0))
    x, mass = quadrature(4, 5)
    moment = moment_matrix(x, len(x) * mass * teacher.latent(x), 2)
    expected = theory.population_moment(teacher.directions, teacher.amplitudes).total
    assert (moment - expected).abs().max() < 1e-10


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dim, degree", [(60, 1), (14, 2), (7, 3)])
def test_matrix_free_finds_what_dense_finds(dim, degree, dtype):
    """Three outliers planted in the labels, t = Σ ⟨v, H⟩²: eigenvalues to 1e-5, cosines ≥ .9999."""
    x = randn(8000, dim).to(dtype)
    planted = torch.linalg.qr(randn(lift_dim(dim, degree), 3, seed=1)).Q
    h = hermite.project(x, planted.to(dtype), degree)
    t = clip_labels((h**2 - 1) @ torch.tensor([1.0, 0.8, 0.6], dtype=dtype))
    dense = eigenpairs(x, t, degree, 3, "dense")
    free = eigenpairs(x, t, degree, 3, "matrix_free")
    numpy = np.linalg.eigh(formed(x.double(), t.double(), degree).numpy())
    np.testing.assert_allclose(dense[0].numpy(), numpy.eigenvalues[::-1][:3], rtol=1e-5)
    torch.testing.assert_close(free[0], dense[0], rtol=1e-5, atol=0)
    assert ((free[1] * dense[1]).sum(0).abs() >= 0.9999).all()
    assert (overlaps(dense[1], torch.tensor(numpy.eigenvectors[:, ::-1][:, :3].copy()))[0] >= 0.9999).all()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_that_of_the_matrix_and_does_not_grow_with_n():
    """D = 595: at most 3·D²·8 bytes and chunks (two of 600 000 float32), for 10 000 and for 40 000 samples."""
    bound = 3 * 595**2 * 8 + 2 * 4 * hermite.CHUNK["cpu"]
    small, large = peak_bytes("streamed", 34, 10_000, 40_000)
    assert 595**2 * 8 < large <= bound and large <= small + 3e6
    small, large = peak_bytes("matrix_free", 34, 10_000, 40_000)
    assert large <= small + 3e6 and large <= 4 * 4 * hermite.CHUNK["cpu"]


def test_choice_between_the_two_ways():
    assert prefers_dense(100_000, 24, 2) and not prefers_dense(100_000, 100, 2)
    assert not prefers_dense(10**9, 200, 2)  # D = 20 100: 9.7 GB
    assert prefers_dense(10**6, 400, 1)


# ---- the whole


def test_surrogate_fit_follows_the_theory():
    """D = 300, 80 samples a dimension in layer 1: edge, outliers, overlaps, and the error of the prediction."""
    teacher, x, y = sample(300, 1, 30_000, n_features=4, noise_std=0.5)
    model = fit(x, y, 1)
    law = theory.exact(theory.label_quadrature(1.0, 4, 0.5), 80.0)
    assert model.edge.item() == pytest.approx(law.edge.item(), rel=0.02)
    assert model.eigenvalues[:3].tolist() == pytest.approx(law.outlier[:3].tolist(), abs=0.05)
    assert overlaps(model.directions, teacher.directions)[1].tolist() == pytest.approx(law.overlap.tolist(), abs=0.06)
    assert model.directions.shape[1] == len(model.eigenvalues) >= int((law.overlap > 0.3).sum())
    assert torch.equal(model.spectrum[-len(model.eigenvalues) :].flip(0), model.eigenvalues)
    error = relative_error(model, teacher)
    expected = surrogate_error(model.directions, teacher.directions, teacher.amplitudes).item()
    assert error == pytest.approx(expected, abs=0.02)
    assert expected == pytest.approx(theory.mse_curve(80.0, 1.0, 4, 0.5).item(), abs=0.03)


def test_surrogate_error_is_that_of_least_squares():
    """Directions at random, 200 000 fresh samples: the closed form to 2 %."""
    teacher, x, _ = sample(8, 1, 200_000, n_features=3)
    found = torch.linalg.qr(randn(8, 2, seed=5) + teacher.directions[:, :2]).Q
    z = torch.cat([torch.ones(len(x), 1, dtype=F64), ((x @ found) ** 2 - 1) / math.sqrt(2)], 1)
    u = teacher.latent(x)
    rest = u - z @ torch.linalg.lstsq(z, u[:, None]).solution[:, 0]
    expected = surrogate_error(found, teacher.directions, teacher.amplitudes)
    assert rest.var().item() == pytest.approx(expected.item(), rel=0.02)


@pytest.mark.parametrize("method", ["dense", "matrix_free"])
def test_both_methods_give_one_fit(method):
    teacher, x, y = sample(16, 2, 20_000, dtype=torch.float32)
    model, other = fit(x, y, 2, method=method), fit(x, y, 2, method="dense")
    torch.testing.assert_close(model.eigenvalues, other.eigenvalues, rtol=1e-5, atol=0)
    assert relative_error(model, teacher) == pytest.approx(relative_error(other, teacher), abs=1e-3)
    assert (model.spectrum is None) == (method == "matrix_free")


def test_hygiene_shows_features_that_the_plain_lift_hides():
    """d = 32, D = 528, n/D = 20, three seeds: theory notes, section c, (.50 .09) and (.87 .64 .35), to .12."""
    seen = {True: [], False: []}
    for seed in range(3):
        teacher, x, y = sample(32, 2, round(20 * 528 / 0.8), n_features=12, seed=seed, dtype=torch.float32)
        for hygiene, found in seen.items():
            model = fit(x, y, 2, n_features=12, hygiene=hygiene, method="dense")
            found.append(overlaps(model.directions, teacher.directions)[0][:3])
    plain, clean = (torch.stack(seen[hygiene]).mean(0) for hygiene in (False, True))
    assert plain[:2].tolist() == pytest.approx([0.50, 0.09], abs=0.15)
    assert clean.tolist() == pytest.approx([0.87, 0.64, 0.35], abs=0.15)
    assert clean[1] > plain[1] + 0.3


def test_links():
    """tanh is learned through the readout, better than by a straight line; the even link stays hidden."""
    errors = {}
    for link in ("id", "tanh", "even"):
        teacher, x, y = sample(120, 1, 30_000, link=link, seed=1)
        errors[link] = relative_error(fit(x, y, 1), teacher)
        if link == "tanh":
            straight = relative_error(fit(x, y, 1, readout_degree=1), teacher)
    assert errors["id"] < 0.05 and errors["tanh"] < 0.1 < straight
    assert errors["even"] > 2 * errors["id"]


def test_even_link_of_lesson_10():
    """What its text says: thresholds n_k/D, .12 left with perfect directions, more kept is no help, the bulk passes."""
    a = theory.amplitudes(0.5, 4)
    power = 2 + 12 * (a**4).sum()  # E (u² − 1)², where E z⁴ = 15 of z = (h² − 1)/√2
    h = torch.randn(400_000, 4, generator=compute.generator(0), dtype=F64)
    label = theory.LINKS["even"]((h**2 - 1) @ a.to(h) / 2**0.5)
    assert float(power) == pytest.approx(6, abs=0.1) and float(label.square().mean() / power) == pytest.approx(1, 0.05)
    assert (1 / (2 * a**2)).tolist() == pytest.approx([1.0, 2.1, 3.1, 4.2], abs=0.05)
    assert (power / (16 * a**4)).tolist() == pytest.approx([1.6, 6.4, 14.5, 25.8], abs=0.05)

    def layer_one(link, samples_per_dim):  # as in the notebook
        task = HierarchicalTeacher(16, 2, 4, 0.5, link, 0.0, compute.generator(2), inputs="sphere")
        x, y = task.sample(round(samples_per_dim * 136), compute.generator(3))
        fresh = -round(0.2 * len(x))
        return task, fit(x, y, 2, n_features=8), x[fresh:], y[fresh:]

    task, found, *fresh = layer_one("even", 20)
    few, many = (relative_error(spectral.read_out(found, *fresh, kept), task) for kept in (4, 8))
    assert 0.98 * few < many < 1
    perfect = dataclasses.replace(found, directions=task.directions.to(found.directions))
    perfect = spectral.read_out(perfect, *task.sample(100_000, compute.generator(5)), 4)
    assert relative_error(perfect, task, 50_000) == pytest.approx(0.12, abs=0.01)
    task, found, *_ = layer_one("id", 160)
    assert (found.eigenvalues > found.edge).all()  # all eight, of which four are features
    assert int((overlaps(task.directions, found.directions)[1] > 0.5).sum()) == 4


def test_read_out_of_fewer_features_is_a_fit_of_fewer():
    """Layer 1 does not depend on how many of its directions go on."""
    teacher, x, y = sample(10, 2, 4000, link="tanh", inputs="sphere")
    many, few = fit(x, y, 2, n_features=6), fit(x, y, 2, n_features=2)
    again = spectral.read_out(many, x[-800:], y[-800:], 2)
    torch.testing.assert_close(again.predict(x), few.predict(x))
    torch.testing.assert_close(again.coefficients, few.coefficients)
    assert relative_error(spectral.read_out(many, *teacher.sample(2000, compute.generator(5)), 0), teacher) == (
        pytest.approx(1, abs=0.01)
    )


def test_readout_degree_has_the_least_leave_one_out_error():
    x, noise = randn(60), randn(60, seed=1)
    y = x**2 + 0.3 * noise
    span = torch.stack([x.min(), x.max()])
    coefficients = spectral._readout(spectral._powers(x, span, 6), y)
    z = (2 * x - x.min() - x.max()) / (x.max() - x.min())
    left_out = []
    for r in range(1, 6):
        errors = []
        for i in range(60):
            keep = np.arange(60) != i
            polynomial = np.polynomial.Polynomial.fit(z[keep], y[keep], r, domain=[-1, 1])
            errors.append(float(y[i] - polynomial(z[i])) ** 2)
        left_out.append(np.mean(errors))
    best = 1 + int(np.argmin(left_out))
    expected = np.polynomial.Polynomial.fit(z, y, best, domain=[-1, 1]).coef
    np.testing.assert_allclose(coefficients.numpy(), expected, rtol=1e-6, atol=1e-8)


def test_predictions_stay_inside_what_was_seen():
    _, x, y = sample(20, 1, 4000)
    model = fit(x, y, 1)
    far = model.predict(50 * x)
    assert far.abs().max() <= 3 * y.abs().max()
    assert (model.read(model.span + torch.tensor([-9.0, 9.0])) == model.read(model.span)).all()


def test_nothing_above_the_edge_predicts_the_mean():
    x, y = randn(400, 100), randn(400, seed=1) + 5
    model = fit(x, y, 1, n_features=None)
    assert model.directions.shape[1] <= 1  # noise passes its own edge now and then
    model = fit(x, 0.01 * y.sign() + randn(400, seed=3).clamp(-1, 1), 1)
    assert model.predict(x).isfinite().all()


def test_overlap_of_mixed_vectors():
    """Two features turned by 45°: the best single vector sees half of each, the plane all."""
    truth = torch.eye(4, dtype=F64)[:, :2]
    turned = torch.tensor([[1.0, 1.0], [1.0, -1.0], [0, 0], [0, 0]], dtype=F64) / math.sqrt(2)
    best, plane = overlaps(turned, truth)
    assert best.tolist() == pytest.approx([0.5, 0.5]) and plane.tolist() == pytest.approx([1, 1])
    assert overlaps(turned[:, :0], truth)[0].tolist() == [0, 0]


def test_heavy_labels_without_clipping_warn():
    x, y = randn(2000, 50), randn(2000, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(x, y, 1, clip=None)
    y[7] = 200
    with pytest.warns(UserWarning, match="without clipping, the largest label .* makes an outlier of its own"):
        fit(x, y, 1, clip=None)


X, Y = randn(100, 4), randn(100, seed=1)
REFUSED = {
    r"n_features must lie in \[0, 3\], those found, got 4": lambda: spectral.read_out(fit(X, Y, 1, 3), X, Y, 4),
    "x must have at least 9 samples, got 8": lambda: spectral.read_out(fit(X, Y, 1, 3), X[:8], Y[:8], 2),
    "degree must be 1, 2, 3 or 4, got 5": lambda: fit(X, Y, 5),
    r"n_features must lie in \[1, 10\], the dimension of the lift, got 11": lambda: fit(X, Y, 2, n_features=11),
    r"x must have more samples than features .*, got n = 20 with holdout = 0.2": lambda: fit(X[:20], Y[:20], 1),
    "y must not be constant: labels that are all 1 tell nothing": lambda: fit(X, torch.ones(100, dtype=F64), 1),
    r"x\[2, 1\] = nan must be finite": lambda: fit(
        X.index_put((torch.tensor(2), torch.tensor(1)), Y[0] * math.nan), Y, 1
    ),
    r"y\[3\] = inf must be finite": lambda: fit(X, Y.index_fill(0, torch.tensor(3), math.inf), 1),
    r"x must be \(n, dim\), not empty, and labels \(n,\), got x \(100, 4\), y \(99,\)": lambda: fit(X, Y[1:], 1),
    r"x must be \(n, dim\), not empty, and labels \(n,\), got x \(0, 4\), t \(0,\)": lambda: moment_matrix(
        X[:0], Y[:0], 1
    ),
    r"holdout must lie in \(0, 1\), got 1": lambda: fit(X, Y, 1, holdout=1),
    "readout_degree must be >= 1, got 0": lambda: fit(X, Y, 1, readout_degree=0),
    "method must be one of auto, dense, matrix_free, got 'fast'": lambda: fit(X, Y, 1, method="fast"),
    "at must be positive and finite, got 0": lambda: clip_labels(Y, 0),
    "ridge must be positive and finite, got -1": lambda: low_degree_residual(X, Y, ridge=-1),
    "n must be > 4, the terms fitted without ridge, got 3": lambda: low_degree_residual(X[:3], Y[:3]),
    r"norm of x\[0\] = 0.0 must be > 0": lambda: radial_normalize(0 * X),
    r"k must lie in \[1, 4\], got 5": lambda: eigenpairs(X, Y, 1, 5),
    r"found must be \(D, K\) and truth \(D, d1\)": lambda: overlaps(X, X[1:]),
    r"found must be \(D, K\), truth \(D, d1\), amplitudes \(d1,\)": lambda: surrogate_error(X, X, Y),
    "x must be float64 or float32, got torch.bfloat16": lambda: fit(X.bfloat16(), Y.bfloat16(), 1),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_bad_input_is_refused_in_a_sentence(sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        REFUSED[sentence]()
