"""Every public function of the room gives the same values on every device, and forgets `device=` nowhere."""

import inspect

import pytest
import torch

from labkit import compute
from labkit.recovery import hermite, kernel, lifted, reveal, separation, spectral, teacher, theory
from labkit.recovery.teacher import HierarchicalTeacher
from tests.everywhere import made_everywhere, same_everywhere
from tests.recovery.test_hermite import randn

X, Y = randn(300, 4), randn(300, seed=1).clamp(-2, 2)
V, OTHER = torch.linalg.qr(randn(10, 3, seed=2)).Q, torch.linalg.qr(randn(10, 2, seed=3)).Q
A = torch.tensor([0.8, 0.5, 0.3], dtype=torch.float64)
MATRIX = randn(10, 10, seed=4) + randn(10, 10, seed=4).mT
LABELS = theory.draw_labels(1.0, 3, draws=500)
DELTA = torch.tensor([10.0, 100.0], dtype=torch.float64)


def lift_into(x):
    out = x.new_empty(10, len(x))
    hermite.lift_into(out, x.mT.contiguous(), 2)
    return out


def without_sign(pairs):
    return pairs[0], pairs[1].abs()


def fit(x, y, **more):
    model = spectral.fit(x, y, 2, n_features=2, **more)
    return model.eigenvalues, model.directions.abs(), model.predict(x), model.features(x).abs(), model.latent(x)


def layer_one(x, y, truth):
    layer = lifted.layer_one(x, y, 2)
    return layer.moment, layer.eigenvalues, layer.edge, layer.overlaps(truth), layer.noise_edge(truth)


def read_out(x, y):
    model = spectral.read_out(spectral.fit(x, y, 2, n_features=3), x, y, 2)
    return model.predict(x), model.latent(x)


CALLS = {
    "lift": (lambda x: hermite.lift(x, 3), X),
    "lift_into": (lift_into, X),
    "inner": (lambda x: hermite.inner(x, x, 3), X[:9]),
    "as_matrix": (hermite.as_matrix, V.mT),
    "from_matrix": (hermite.from_matrix, MATRIX),
    "project": (lambda x, v: hermite.project(x, v, 2), X, V),
    "project degree 3": (lambda x, v: hermite.project(x, v, 3), X, randn(20, 2)),
    "combine": (lambda x, y: hermite.combine(x, y[:, None], 2), X, Y),
    "combine degree 3": (lambda x, y: hermite.combine(x, y[:, None], 3), X, Y),
    "chunks": (lambda x: [x[rows] for rows in hermite.chunks(x, 10**9)][1], X),
    "bulk_edge": (theory.bulk_edge, Y, DELTA),
    "exact": (theory.exact, LABELS, DELTA),
    "staircase": (theory.staircase, LABELS, DELTA),
    "local_slope": (theory.local_slope, DELTA, 1 / DELTA),
    "fitted_slope": (reveal.fitted_slope, DELTA, 1 / DELTA),
    "population_moment": (theory.population_moment, V, A),
    "population_variance": (theory.population_variance, V, A),
    "scaling_exponent": (theory.scaling_exponent, A + 1),
    "binned": (lambda labels: labels.binned(16), LABELS),
    "radial_normalize": (spectral.radial_normalize, X),
    "low_degree_residual": (spectral.low_degree_residual, X, Y),
    "clip_labels": (lambda y: spectral.clip_labels(y, 1.0), Y),
    "drop_trace": (spectral.drop_trace, MATRIX),
    "moment_matrix": (lambda x, y: spectral.moment_matrix(x, y, 2), X, Y),
    "moment_matrix degree 1": (lambda x, y: spectral.moment_matrix(x, y, 1), X, Y),
    "moment_operator": (lambda x, y, v: spectral.moment_operator(x, y, 2)(v), X, Y, V),
    "eigenpairs": (lambda x, y: without_sign(spectral.eigenpairs(x, y, 2, 2, "dense")), X, Y),
    "eigenpairs matrix-free": (lambda x, y: without_sign(spectral.eigenpairs(x, y, 2, 2, "matrix_free")), X, Y),
    "fit": (fit, X, Y),
    "read_out": (read_out, X, Y),
    "fit matrix-free": (lambda x, y: fit(x, y, method="matrix_free"), X, Y),
    "overlaps": (spectral.overlaps, V, OTHER),
    "surrogate_error": (spectral.surrogate_error, OTHER, V, A),
    "layer_one": (layer_one, X, Y, V),
    "surrogate_labels": (lambda x: lifted.surrogate_labels(x, 1.0, 2, 0.5), X),
    "surrogate_layer": (lambda x: lifted.surrogate_layer(x, 2, 50.0, 1.0, 0.5)[1], X),
    "polynomial_kernel": (lambda x: kernel.polynomial_kernel(x, x, 2), X[:9]),
    "kernel.fit": (lambda x, y: kernel.fit(x[:50], y[:50], 2, x[50:], y[50:]).predict(x), X, Y),
    "kernel_error": (lambda n, power: separation.kernel_error(n, 6, power), DELTA, A),
    "layerwise_error": (lambda n: separation.layerwise_error(n, 4), DELTA),
    "samples_with_error": (separation.samples_with_error, DELTA, torch.stack([20 / DELTA, 30 / DELTA])),
    "fit_exponent": (separation.fit_exponent, A, 1 / A, A),
    "samples_to_reach": (lambda n: kernel.samples_to_reach(n, 20 / n), DELTA),
}
test_same_values_on_every_device, test_nothing_is_made_without_a_device = same_everywhere(CALLS, rtol=1e-6, atol=1e-9)


def made(**more):
    return HierarchicalTeacher(5, 2, 3, 1.0, "tanh", 0.3, compute.generator(0), **more)


def sample(**more):
    one = made(**more)
    x, y = one.sample(20, compute.generator(1))
    return x, y, one.directions, one.amplitudes, one.features(x), one.latent(x), one.matrices


def by_samples():
    task = lifted.teacher(6, 1.0, "sphere", compute.generator(0), 2)
    return lifted.overlaps_by_samples(task, "sphere", (100, 300), compute.generator(1)).round(decimals=4)  # float32


def made_surrogate():
    return HierarchicalTeacher(8, 1, 3, 1.0, "id", 0.3, compute.generator(0))


def layer_one_of(teacher):
    values, vectors, edge = reveal.layer_one(teacher, 200, compute.generator(1))
    return values, vectors.abs(), edge


MADE = {
    "overlaps_by_samples": by_samples,
    "at_infinity": lambda: lifted.at_infinity(lifted.teacher(5, 1.0, "plain", compute.generator(0), 2)),
    "teacher": lambda: lifted.teacher(5, 1.0, "plain", compute.generator(0), 2).directions,
    "sample": sample,
    "sample on the sphere": lambda: sample(inputs="sphere"),
    "amplitudes": lambda: (theory.amplitudes(1.0, 4), theory.amplitudes(1.0, 4, "noise")),
    "recovery_threshold": lambda: theory.recovery_threshold(2, 1.0, 4, 100),
    "overlap": lambda: (theory.overlap(20.0, 1.0, 3), theory.overlap(20.0, 1.0, 3, law="plus")),
    "overlap of draws": lambda: theory.overlap(20.0, 1.0, 3, draws=500, link="tanh"),
    "mse_curve": lambda: theory.mse_curve(20.0, 1.0, 3, tail="noise"),
    "cascade": lambda: (theory.cascade(DELTA, 1.0, 5).learned, theory.cascade(DELTA, 1.0, 80).overlap),
    "mse_power_law": lambda: theory.mse_power_law(20.0, 1.0),
    "mse_parametric": lambda: theory.mse_parametric(20.0, 3),
    "learned_features": lambda: theory.learned_features(20.0, 1.0, 3),
    "label_quadrature": lambda: theory.label_quadrature(1.0, 3),
    "draw_labels": lambda: theory.draw_labels(1.0, 3, draws=50, noise_std=1.0),
    "kernel_spectrum": lambda: separation.kernel_spectrum(5, 2),
    "degree_power": lambda: separation.degree_power(5),
    "expected_samples": lambda: (
        separation.expected_samples(5, "kernel"),
        separation.expected_samples(5, "spectral"),
    ),
    "measured_error": lambda: (
        separation.measured_error(5, 60, "kernel", 0),
        separation.measured_error(5, 60, "spectral", 0),
    ),
    "reveal.layer_one": lambda: layer_one_of(made_surrogate()),
    "reveal": lambda: reveal.reveal(11, 1.0, 500, [0]).lift,
    "lift_errors": lambda: (1e6 * reveal.lift_errors(6, DELTA, True, 0)).round(),  # of float32 samples
    "lift_slope": lambda: (1e6 * reveal.lift_slope(6, DELTA, False, [0, 1])[0]).round(),
    "multi_indices": lambda: hermite.multi_indices(3, 2).to(compute.device()),
}
test_a_seed_means_the_same_on_every_device, test_what_is_made_has_a_device = made_everywhere(
    MADE, rtol=1e-9, atol=1e-12
)


# No tensors in their results, or made of a table on disk
NUMBERS = {"lift_dim", "kernel_dim", "tail_variance", "admit_model", "window", "prefers_dense", "needed_by_dim"}
NUMBERS |= {"count", "revealed"}
ROOM = [hermite, kernel, lifted, reveal, separation, spectral, teacher, theory]


@pytest.mark.parametrize("room", ROOM, ids=lambda room: room.__name__)
def test_every_public_function_is_called_above(room):
    own = inspect.getmembers(room, lambda it: inspect.isfunction(it) and it.__module__ == room.__name__)
    called = {name.split()[0].removeprefix("kernel.").removeprefix("reveal.") for name in CALLS | MADE} | NUMBERS
    assert {name for name, _ in own if not name.startswith("_")} <= called
