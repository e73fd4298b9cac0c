"""The lines along which descent leaves a start: against directions, finite differences and training."""

import math

import pytest
import torch

from labkit.depth.jumpboard import direction, draw_features, evaluate, gain_curve, line_curvature, mean_loss
from labkit.depth.network import ConvPostNormResNet, PostNormResNet, block_names, fit, insert_block
from labkit.depth.starts import descend, gain_along, journey, slope_along, steepest
from labkit.training import SGD
from tests.depth.conftest import generators, randn

F64 = torch.float64
X, Y = randn(60, 5), torch.arange(60) % 3
IMAGES, CLASSES = randn(10, 2, 5, 5, seed=1), torch.arange(10) % 3
KINDS = {
    "dense": (lambda: PostNormResNet(5, 8, 3, 6, 3, 1e-2, generators()), X, Y),
    "conv": (lambda: ConvPostNormResNet(2, 4, 2, 5, 3, 1e-2, generators()), IMAGES, CLASSES),
}
kinds = pytest.mark.parametrize("kind", KINDS)
ALIVE = [("zero_out", "relu"), ("zero_out", "tanh"), ("zero_in", "tanh"), ("gate", "relu"), ("zero_both", "sigmoid")]
DEAD = [("zero_both", "relu"), ("zero_both", "tanh"), ("zero_in", "relu")]


def setting(kind):
    make, x, y = KINDS[kind]
    return make(), x, y


@kinds
@pytest.mark.parametrize(("init", "activation"), ALIVE)
def test_slope_and_energy_of_live_starts_are_differences(kind, init, activation):
    model, x, y = setting(kind)
    line = steepest(model, 1, x, y, 4, init, activation)
    h = 1e-4 / line.gain.sqrt()
    ahead, back = (mean_loss(line.at(t), x, y) for t in (h, -h))
    torch.testing.assert_close((back - ahead) / (2 * h), line.gain, rtol=1e-5, atol=0)
    torch.testing.assert_close(slope_along(line, x, y), -line.gain, rtol=1e-12, atol=0)
    z = line.model.bottom(x, 1)
    far, near = (line.at(t).residual(z, 2) for t in (h, -h))
    speed = (far - near).flatten(2).square().sum(2).mean(1) / (2 * h) ** 2
    torch.testing.assert_close(line.energy, speed, rtol=1e-5, atol=0)


@kinds
def test_slope_on_other_samples_is_a_difference_there(kind):
    model, x, y = setting(kind)
    line = steepest(model, 1, x, y, 4)
    h = 1e-4 / line.gain.sqrt()
    other = randn(*x.shape, seed=5)
    ahead, back = (mean_loss(line.at(t), other, y) for t in (h, -h))
    torch.testing.assert_close((ahead - back) / (2 * h), slope_along(line, other, y), rtol=1e-4, atol=1e-9)
    assert ((slope_along(line, other, y) + line.gain).abs() > 1e-3 * line.gain).all()


@kinds
@pytest.mark.parametrize(("init", "activation"), DEAD)
def test_dead_starts_have_no_line(kind, init, activation):
    """Exactly nothing, however far one goes, and gradient descent agrees."""
    model, x, y = setting(kind)
    line = steepest(model, 1, x, y, 4, init, activation)
    assert not line.gain.any() and not line.energy.any()
    assert not gain_along(line, x, y, torch.tensor([1.0, 1e3, -1e3], dtype=F64)).any()
    new = insert_block(model, 1, 4, init, activation=activation)
    after = fit(new, x, y, 5, batch=None, optimizer=SGD(1.0), only=block_names(new, 2)).model
    again = descend(line, x, y, 5, 1.0)
    assert all(torch.equal(again.params[name], after.params[name]) for name in after.params)
    torch.testing.assert_close(mean_loss(after, x, y), mean_loss(model, x, y), rtol=0, atol=0)


@kinds
def test_descent_from_a_live_start_first_follows_its_line(kind):
    model, x, y = setting(kind)
    line = steepest(model, 1, x, y, 4, "zero_in", "tanh")
    one, many = (descend(line, x, y, steps, 0.05) for steps in (1, 40))
    for name, value in line.at(0.05).params.items():
        torch.testing.assert_close(one.params[name], value)
    assert (mean_loss(many, x, y) < mean_loss(one, x, y)).all()


@kinds
def test_random_features_leave_along_the_gradient_direction(kind):
    model, x, y = setting(kind)
    w1 = draw_features(model, 4)
    expected, line = direction(model, 1, x, y, w1, "gradient"), steepest(model, 1, x, y, 4)
    t = torch.tensor([0.01, 0.3, 1.0], dtype=F64)
    moved = line.tangent["w2.2"]
    torch.testing.assert_close(moved[..., 1, 1] if kind == "conv" else moved, expected.v)
    assert not line.tangent["w1.2"].any()
    if kind == "dense":  # of images the whole kernel of W_2 learns, V is its middle
        torch.testing.assert_close(gain_along(line, x, y, t), gain_curve(model, expected, x, y, t))
        torch.testing.assert_close(line.energy, expected.energy)
        torch.testing.assert_close(line.gain, expected.gain)


def test_a_gain_is_the_loss_of_the_models():
    model, x, y = setting("dense")
    line = steepest(model, 2, x, y, 4, "zero_in", "tanh")
    t = torch.tensor([[0.1, 2.0], [0.3, 1.0], [0.0, -1.0]], dtype=F64)
    expected = torch.stack([mean_loss(model, x, y) - mean_loss(line.at(s), x, y) for s in t.unbind(1)], 1)
    torch.testing.assert_close(gain_along(line, x, y, t), expected)
    torch.testing.assert_close(gain_along(line, x, y, t[1])[1], expected[1])


@kinds
@pytest.mark.parametrize("which", ["line", "direction"])
def test_a_journey_measures_its_steps_by_what_they_do_to_z(kind, which):
    """Gain, slope and curvature against the functions of t, whose unit is looked up in the inserted block."""
    model, x, y = setting(kind)
    found = steepest(model, 1, x, y, 4) if which == "line" else direction(model, 1, x, y, 4)
    seen = journey(model, found, x, y, 0.2, points=5, grid=6)
    unit = (model.width / found.energy).sqrt()
    torch.testing.assert_close(seen.sizes, torch.linspace(0, 0.2, 5, dtype=F64))
    if which == "line":
        z = model.bottom(x, 1)
        h = found.at(0.2 * unit).residual(z, 2)
        torch.testing.assert_close((h.square().flatten(2).sum(2).mean(1) / model.width).sqrt(), 0.2 + 0 * unit)
        gain, slope = gain_along(found, x, y, seen.sizes * unit[:, None]), found.gain
    else:
        gain, slope = gain_curve(model, found, x, y, seen.sizes * unit[:, None]), evaluate(model, found, x, y).gain
        bend = line_curvature(model, found, x, y, 0.2 * unit, 6) * unit**2
        torch.testing.assert_close(seen.curvature, bend, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(seen.gain, gain)
    torch.testing.assert_close(seen.slope, slope * unit)
    fine = journey(model, found, x, y, 1e-4)
    torch.testing.assert_close(fine.promise[:, -1], fine.gain[:, -1], rtol=1e-2, atol=0)
    peak = seen.slope / seen.curvature
    torch.testing.assert_close(seen.guaranteed, peak * seen.slope - peak**2 * seen.curvature / 2)


def test_a_dead_journey_goes_nowhere():
    model, x, y = setting("dense")
    seen = journey(model, steepest(model, 1, x, y, 4, "zero_both"), x, y, 0.2)
    assert not any(part.any() for part in (seen.gain, seen.slope, seen.curvature, seen.bound, seen.guaranteed))
    with pytest.raises(ValueError, match="reach must be positive and finite, got 0"):
        journey(model, steepest(model, 1, x, y, 4), x, y, 0.0)


def test_what_does_not_fit_is_refused():
    model, x, y = setting("dense")
    line = steepest(model, 1, x, y, 4)
    with pytest.raises(ValueError, match=r"t must be \(step,\) or \(3, step\), got \(\)"):
        gain_along(line, x, y, torch.tensor(1.0))
    with pytest.raises(ValueError, match="t must"):
        line.at(math.nan)
    with pytest.raises(ValueError, match="x must be .* and not empty"):
        steepest(model, 1, x[:0], y[:0])
    with pytest.raises(ValueError, match="init must be one of"):
        steepest(model, 1, x, y, 4, "zero")
