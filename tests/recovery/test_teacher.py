"""The teacher: orthonormal features by exact quadrature, the amplitudes, the noise, links, the sphere."""

import math

import pytest
import torch

from labkit import compute
from labkit.recovery.hermite import lift
from labkit.recovery.teacher import HierarchicalTeacher
from tests.recovery.test_hermite import quadrature

F64 = torch.float64


def teacher(dim=6, degree=2, n_features=3, gamma=1.0, link="id", noise_std=0.0, seed=0, **more):
    return HierarchicalTeacher(dim, degree, n_features, gamma, link, noise_std, compute.generator(seed), **more)


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_features_are_orthonormal_at_every_d(degree):
    x, mass = quadrature(4, 5)
    h = teacher(dim=4, degree=degree).features(x)
    torch.testing.assert_close(h.mT @ (mass[:, None] * h), torch.eye(3, dtype=F64), rtol=0, atol=1e-12)
    assert (mass @ h).abs().max() <= 1e-12


def test_latent_and_target_follow_their_definition():
    x = torch.randn(50, 6, dtype=F64, generator=compute.generator(1))
    one = teacher(link="tanh")
    h = lift(x, 2) @ one.directions
    u = sum(a * (h[:, i] ** 2 - 1) / math.sqrt(2) for i, a in enumerate(one.amplitudes))
    torch.testing.assert_close(one.latent(x), u)
    torch.testing.assert_close(one.target(x), torch.tanh(u))
    torch.testing.assert_close(teacher(link="even").target(x), u**2 - 1)
    torch.testing.assert_close(teacher().target(x), u)


def test_excess_kurtosis_of_a_feature():
    """12 tr M⁴: it is what keeps h from being Gaussian at finite d."""
    x, mass = quadrature(4, 5)
    one = teacher(dim=4, n_features=2)
    fourth = mass @ one.features(x) ** 4
    expected = 3 + 12 * torch.stack([(m @ m @ m @ m).trace() for m in one.matrices])
    torch.testing.assert_close(fourth, expected)


@pytest.mark.parametrize("gamma", [0.0, 0.4, 1.5])
def test_amplitudes_are_a_power_law_of_unit_norm(gamma):
    a = teacher(n_features=5, gamma=gamma).amplitudes
    assert (a**2).sum().item() == pytest.approx(1)
    assert (a[1:] / a[0]).tolist() == pytest.approx([k**-gamma for k in range(2, 6)])


def test_a_tail_that_became_noise():
    """Amplitudes of the infinite sum, Σ k^{-2} = π²/6; what is cut off is in the labels as noise."""
    one = teacher(60, 1, 4, noise_std=0.5, tail="noise")
    assert one.amplitudes.tolist() == pytest.approx([math.sqrt(6) / math.pi / k for k in (1, 2, 3, 4)])
    tail = 1 - float((one.amplitudes**2).sum())
    assert one.label_noise_std**2 == pytest.approx(0.25 + tail)
    x, y = one.sample(40_000, compute.generator(1))
    noise = y - one.target(x)
    assert noise.var().item() == pytest.approx(0.25 + tail, abs=4 * (0.25 + tail) * math.sqrt(2 / 40_000))


def test_sphere_is_traceless_and_normalized():
    """All of the degree-2 features lives on the sphere: E h = 0 and E h h' = δ, to 4 standard errors."""
    one = teacher(dim=8, n_features=4, inputs="sphere")
    assert one.matrices.diagonal(dim1=-2, dim2=-1).sum(-1).abs().max() < 1e-12
    x = one.sample_inputs(100_000, compute.generator(1))
    torch.testing.assert_close((x**2).sum(1), torch.full((len(x),), 8.0, dtype=F64))
    h = one.features(x)
    for product, expected in ((h, torch.zeros(4)), ((h[:, :, None] * h[:, None]).flatten(1), torch.eye(4).flatten())):
        error = product.std(0) / math.sqrt(len(x))
        assert ((product.mean(0) - expected).abs() <= 4 * error).all()


def test_directions_and_samples_come_from_their_generators():
    assert torch.equal(teacher(seed=3).directions, teacher(seed=3).directions)
    assert not torch.equal(teacher(seed=3).directions, teacher(seed=4).directions)
    x, y = teacher(noise_std=1.0).sample(7, compute.generator(5))
    again = teacher(noise_std=1.0).sample(7, compute.generator(5))
    assert torch.equal(x, again[0]) and torch.equal(y, again[1])
    assert x.dtype == y.dtype == F64
    x, y = teacher(noise_std=1.0).sample(7, compute.generator(5), dtype=torch.float32)
    assert x.dtype == y.dtype == torch.float32


REFUSED = {
    "n_features must be <= 21, the directions of the lift, got 22": {"n_features": 22},
    "n_features must be <= 20, the directions of the lift, got 21": {"n_features": 21, "inputs": "sphere"},
    "n_features must be >= 1, got 0": {"n_features": 0},
    r"gamma must lie in \[0, inf\), got -1": {"gamma": -1},
    r"gamma must lie in \[0, inf\), got nan": {"gamma": math.nan},
    "gamma must be > 1/2: else Σ": {"gamma": 0.5, "tail": "noise"},
    r"noise_std must lie in \[0, inf\), got -0.1": {"noise_std": -0.1},
    "link must be one of id, tanh, even, got 'relu'": {"link": "relu"},
    'link must be "id" when tail is "noise"': {"link": "tanh", "tail": "noise"},
    "tail must be one of cut, noise, got 'long'": {"tail": "long"},
    "inputs must be gaussian or sphere, got 'cube'": {"inputs": "cube"},
    "degree must be 1 or 2 on the sphere, got 3": {"degree": 3, "inputs": "sphere"},
    "degree must be 1, 2, 3 or 4, got 5": {"degree": 5},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_impossible_teachers_are_refused(sentence):
    with pytest.raises(ValueError, match=sentence):
        teacher(**REFUSED[sentence])


def test_an_empty_sample_is_refused(generator):
    with pytest.raises(ValueError, match="n must be >= 1, got 0"):
        teacher().sample(0, generator)
