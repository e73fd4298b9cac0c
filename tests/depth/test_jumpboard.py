"""Gradients against loops and finite differences, directions against brute force, signals against fresh samples."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from labkit import compute
from labkit.depth import jumpboard as room
from labkit.depth.jumpboard import (
    activation_gradient,
    debiased_signal,
    direction,
    direction_from,
    draw_features,
    energy_by_width,
    evaluate,
    explained_energy,
    fall_back,
    features,
    gain_curve,
    insert_direction,
    jumpboard,
    line_curvature,
    line_search,
    margins,
    mean_loss,
    moments,
    observe,
    parameter_step,
    predictable_energy,
    quadratic_bound,
    sample_losses,
    scores,
    slope,
    temperature_gain,
)
from labkit.depth.network import ConvPostNormResNet, PostNormResNet, fit
from labkit.depth.study import students
from labkit.training import SGD
from tests.depth.conftest import generators, randn

F64 = torch.float64
X, Y = randn(60, 5), torch.arange(60) % 3
IMAGES, CLASSES = randn(10, 2, 5, 5, seed=1), torch.arange(10) % 3


def dense(**more):
    return PostNormResNet(5, 8, 3, 6, 3, 1e-2, generators(), **{"activation": "tanh"} | more)


def conv(**more):
    return ConvPostNormResNet(2, 4, 2, 5, 3, 1e-2, generators(), **{"activation": "tanh"} | more)


KINDS = {"dense": (dense, X, Y), "conv": (conv, IMAGES, CLASSES)}
kinds = pytest.mark.parametrize("kind", KINDS)
losses = pytest.mark.parametrize("loss", ["ce", "prob"])


def setting(kind, **more):
    make, x, y = KINDS[kind]
    return make(**more), x, y


# ---- losses and gradients


def test_losses_are_those_of_torch():
    logits, y = randn(2, 30, 4), torch.arange(30) % 4
    for net in range(2):
        expected = nn.functional.cross_entropy(logits[net], y, reduction="none")
        torch.testing.assert_close(sample_losses(logits, y)[net], expected)
        p = logits[net].softmax(-1)[torch.arange(30), y]
        torch.testing.assert_close(sample_losses(logits, y, "prob")[net], 1 - p)
    torch.testing.assert_close(sample_losses(logits, torch.stack([y, y])), sample_losses(logits, y))


@losses
@kinds
def test_activation_gradients_are_those_of_each_sample_alone(kind, loss):
    """A backward pass per net and sample, and a central difference in one coordinate."""
    model, x, y = setting(kind)
    for layer in (0, 1, model.depth):
        g = activation_gradient(model, layer, x, y, loss)
        z = model.bottom(x, layer)
        assert g.shape == z.shape
        for net, i in ((0, 0), (1, 3), (2, 7)):
            one = model.nets([net])
            alone = z[net : net + 1, i : i + 1].clone().requires_grad_()
            sample_losses(one.top(alone, layer), y[i : i + 1], loss).backward()
            torch.testing.assert_close(g[net, i], alone.grad[0, 0], rtol=1e-9, atol=1e-12)
            h, bump = 1e-5, torch.zeros_like(alone)
            bump[0, 0, ..., 2] = h  # of one channel at all positions
            ahead, back = (sample_losses(one.top(alone + s * bump, layer), y[i : i + 1], loss) for s in (1, -1))
            assert ((ahead - back) / (2 * h)).item() == pytest.approx(g[net, i][..., 2].sum().item(), abs=1e-9)


def test_the_last_layer_has_a_closed_form():
    """g = W_outᵀ(p − e_y) for cross-entropy: its rank is below the number of classes."""
    model = dense()
    p = model(X).softmax(-1) - nn.functional.one_hot(Y, 3)
    g = activation_gradient(model, 3, X, Y)
    torch.testing.assert_close(g, p @ model.params["out"])
    assert torch.linalg.matrix_rank(g).tolist() == [2, 2, 2]


def test_relu_without_eps_has_no_gradient_along_the_layer():
    """Euler: f_top is 0-homogeneous."""
    model = PostNormResNet(5, 8, 3, 6, 3, 1e-5, generators())
    g, z = activation_gradient(model, 1, X, Y), model.bottom(X, 1)
    assert (g * z).sum(-1).abs().max() < 1e-4 and (g * z).abs().max() > 1e-2


# ---- slope and directions


@losses
@pytest.mark.parametrize("which", room.KINDS)
@kinds
def test_slope_is_a_central_difference(kind, which, loss):
    """To 1e-7 relative in float64, with a Richardson step; the block is inserted, nothing of the direction reused."""
    model, x, y = setting(kind)
    found = direction(model, 1, x, y, 6, which, activation="tanh", loss=loss)
    found = replace(found, v=found.v / found.v.flatten(1).norm(dim=1)[:, None, None])

    def difference(h):
        ahead, back = (mean_loss(insert_direction(model, found, t), x, y, loss) for t in (h, -h))
        return (ahead - back) / (2 * h)

    h = 2e-3
    numeric = (4 * difference(h) - difference(2 * h)) / 3
    torch.testing.assert_close(slope(model, found, x, y), numeric, rtol=1e-7, atol=0)
    assert (numeric < 0).all()


@kinds
def test_gain_and_energy_are_what_the_sample_says(kind):
    model, x, y = setting(kind)
    w1 = draw_features(model, 6)
    found = direction(model, 1, x, y, w1)
    z, g = model.bottom(x, 1), activation_gradient(model, 1, x, y)
    inserted = insert_direction(model, found, 0.7)
    move = inserted.residual(z, 2)  # 0.7·Vφ, through the network's own convolutions
    torch.testing.assert_close(-(g * move).flatten(2).sum(2).mean(1) / 0.7, found.gain)
    torch.testing.assert_close(move.square().flatten(2).sum(2).mean(1) / 0.49, found.energy)
    same = evaluate(model, found, x, y)
    torch.testing.assert_close(same.gain, found.gain)
    torch.testing.assert_close(same.energy, found.energy)
    s = scores(model, found, x, y)
    torch.testing.assert_close(same.square, s.square().mean(1))
    torch.testing.assert_close(s, (g * move).flatten(2).sum(2) / 0.7)


@kinds
def test_no_direction_gains_more_per_energy_than_the_ridge_direction(kind):
    """λ = 0: G²/S is E‖Π_φ g‖², which least squares of g on φ gives too; 200 other directions have less."""
    model, x, y = setting(kind)
    w1 = draw_features(model, 5)
    z, g = model.bottom(x, 1), activation_gradient(model, 1, x, y)
    phi = features(model, z, w1)
    here = moments(g, phi)
    best = explained_energy(here)
    found = direction(model, 1, x, y, w1, ridge=0.0)
    torch.testing.assert_close(found.gain**2 / found.energy, best)
    torch.testing.assert_close(found.gain, best)  # V = −MΦ⁻¹ is scaled so that G = S
    flat_phi, flat_g = phi.flatten(1, -2), g.flatten(1, -2)
    fitted = flat_phi @ torch.linalg.lstsq(flat_phi, flat_g).solution
    torch.testing.assert_close(fitted.square().sum((1, 2)) / len(x), best)
    assert (best < here.energy).all()
    others = randn(200, 3, model.width, 5, seed=9)
    others = torch.cat([others, found.v + 0.1 * found.v.abs().mean() * others])
    ratio = (others * here.cross).sum((2, 3)) ** 2 / ((others @ here.second) * others).sum((2, 3))
    assert (ratio <= best * (1 + 1e-9)).all() and (ratio.amax(0) > 0.5 * best).all()


@kinds
def test_the_gradient_direction_is_what_descent_does_first(kind):
    """One small step of gradient descent on the block with W_2 = 0 moves W_2 along V = −M."""
    model, x, y = setting(kind)
    w1 = draw_features(model, 6)
    found = direction(model, 1, x, y, w1, "gradient")
    start = insert_direction(model, found, 0.0)
    after = fit(start, x, y, 1, batch=None, optimizer=SGD(1.0), only=["w1.2", "w2.2"]).model
    moved = after.params["w2.2"] - start.params["w2.2"]
    center = moved[..., 1, 1] if kind == "conv" else moved
    torch.testing.assert_close(center, found.v, rtol=1e-9, atol=1e-12)
    assert torch.equal(after.params["w1.2"], start.params["w1.2"])


def test_features_of_a_wider_block_explain_more():
    model = dense()
    w1 = draw_features(model, 12)
    z, g = model.bottom(X, 1), activation_gradient(model, 1, X, Y)
    energy = torch.stack([explained_energy(moments(g, features(model, z, w1[:, :m]))) for m in range(1, 13)])
    assert (energy.diff(dim=0) > -1e-12).all() and (energy[-1] > 2 * energy[0]).all()


@kinds
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_energy_by_width_is_that_of_each_width_alone(kind, ridge):
    """V of the first k features by a solve of their own, judged on other samples."""
    model, x, y = setting(kind)
    w1 = draw_features(model, 5)
    samples = (x, y), (randn(*x.shape, seed=8), y.flip(0))
    chosen, judged = (
        moments(activation_gradient(model, 1, *some), features(model, model.bottom(some[0], 1), w1)) for some in samples
    )
    lam = ridge * chosen.second.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    for here in (chosen, judged):
        found = energy_by_width(chosen, here, ridge)
        for k in range(1, 6):
            v = -torch.linalg.solve(chosen.second[:, :k, :k] + lam * torch.eye(k), chosen.cross[..., :k].mT).mT
            gain, energy = -(here.cross[..., :k] * v).sum((1, 2)), ((v @ here.second[:, :k, :k]) * v).sum((1, 2))
            torch.testing.assert_close(found[:, k - 1], gain * gain.abs() / energy)
    if ridge == 0:
        torch.testing.assert_close(energy_by_width(chosen, chosen)[:, -1], explained_energy(chosen))


@kinds
def test_observed_moments_are_those_of_gradients_and_features(kind):
    model, x, y = setting(kind)
    w1 = draw_features(model, 5)
    found = observe(model, 1, x, y, w1, "tanh", "prob")
    z, g = model.bottom(x, 1), activation_gradient(model, 1, x, y, "prob")
    for ours, expected in zip(found, moments(g, features(model, z, w1, "tanh")), strict=True):
        torch.testing.assert_close(ours, expected)


def test_predictable_energy_is_that_of_the_mean_over_labels(task, trained):
    """Against gradients at each label, weighed; no width of a block explains more, in a sample of 20 000."""
    x, y = task.sample(20_000, compute.generator(8))
    p = task.probabilities(x)
    mean = sum(p[:, k, None] * activation_gradient(trained, 1, x, torch.full_like(y, k)) for k in range(4))
    found = predictable_energy(trained, 1, x, p)
    torch.testing.assert_close(found, mean.square().sum(-1).mean(1))
    assert (explained_energy(observe(trained, 1, x, y, draw_features(trained, 64))) < found).all()
    with pytest.raises(ValueError, match=r"probabilities must be \(20000, 4\), as \(n, class\), got \(3, 4\)"):
        predictable_energy(trained, 1, x, p[:3])


@pytest.mark.parametrize("which", room.KINDS)
def test_moments_of_many_features_give_the_direction_of_few(which):
    model, x, y = setting("dense")
    w1 = draw_features(model, 6)
    all_six = moments(activation_gradient(model, 1, x, y), features(model, model.bottom(x, 1), w1))
    found, expected = direction_from(all_six, 1, w1[:, :4], which), direction(model, 1, x, y, w1[:, :4], which)
    for name in ("v", "gain", "energy"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    with pytest.raises(ValueError, match="w1 must hold 1 to 6 features, as the moments do, got 7"):
        direction_from(all_six, 1, draw_features(model, 7))


def test_ridge_interpolates_between_the_two_directions():
    model = dense()
    w1 = draw_features(model, 6)
    steepest = direction(model, 1, X, Y, w1, "gradient").v
    strong = direction(model, 1, X, Y, w1, ridge=1e4).v
    cosine = nn.functional.cosine_similarity(strong.flatten(1), steepest.flatten(1))
    assert (cosine > 1 - 1e-7).all()
    weak, none = (direction(model, 1, X, Y, w1, ridge=ridge).v for ridge in (1e-9, 0.0))
    torch.testing.assert_close(weak, none, rtol=1e-5, atol=1e-8)


def test_features_that_depend_on_each_other_need_a_ridge():
    model = dense()
    w1 = draw_features(model, 3)
    twice = torch.cat([w1, 2 * w1], 1)
    with pytest.raises(ValueError, match="it is not invertible, raise ridge or take fewer features"):
        direction(model, 1, X, Y, torch.cat([w1, torch.zeros_like(w1)], 1), ridge=0.0)
    ridge, alone = direction(model, 1, X, Y, twice, ridge=1e-6), direction(model, 1, X, Y, w1, ridge=0.0)
    torch.testing.assert_close(ridge.gain, alone.gain, rtol=1e-3, atol=0)


def test_linear_features_at_the_last_layer_find_nothing():
    """Stationarity of W_out: E_S[g zᵀ] = W_outᵀ E_S[(p − e_y) zᵀ] = 0."""
    model = PostNormResNet(5, 8, 1, 6, 3, 1e-2, generators(), activation="tanh")
    for lr in (0.3, 0.1, 0.01):
        model = fit(model, X, Y, 600, lr=lr, batch=None, only=["out"]).model
    z, g = model.bottom(X, 1), activation_gradient(model, 1, X, Y)
    eye = torch.eye(8, dtype=F64).expand(3, 8, 8)
    last = moments(g, features(model, z, eye, "linear")).cross.flatten(1).norm(dim=1)
    z, g = model.bottom(X, 0), activation_gradient(model, 0, X, Y)
    first = moments(g, features(model, z, eye, "linear")).cross.flatten(1).norm(dim=1)
    assert (last < 1e-3 * first).all()


# ---- the step


@kinds
def test_gain_curve_is_the_loss_of_inserted_blocks(kind):
    model, x, y = setting(kind)
    found = direction(model, 1, x, y, 6)
    t = torch.linspace(-1, 4, 9, dtype=F64)
    curve = gain_curve(model, found, x, y, t)
    before = mean_loss(model, x, y)
    expected = torch.stack([before - mean_loss(insert_direction(model, found, s.item()), x, y) for s in t], 1)
    torch.testing.assert_close(curve, expected, rtol=1e-9, atol=1e-13)
    own = t[None] * torch.tensor([[1.0], [0.5], [2.0]], dtype=F64)
    torch.testing.assert_close(gain_curve(model, found, x, y, own)[1], gain_curve(model, found, x, y, t / 2)[1])


def test_a_long_gain_curve_goes_through_in_parts(monkeypatch):
    model, x, y = setting("dense")
    found = direction(model, 1, x, y, 6)
    t = torch.linspace(0, 2, 7, dtype=F64)
    whole = gain_curve(model, found, x, y, t)
    monkeypatch.setattr(room, "CACHED", 2 * 3 * 60 * 8)  # two steps at a time
    torch.testing.assert_close(gain_curve(model, found, x, y, t), whole, rtol=1e-12, atol=1e-15)


@kinds
def test_the_quadratic_bound_holds_and_is_met_for_small_steps(kind):
    model, x, y = setting(kind)
    found = direction(model, 1, x, y, 6)
    t_max = 1.5
    bend = line_curvature(model, found, x, y, t_max, points=50)
    t = torch.linspace(0, t_max, 20, dtype=F64)
    bound = quadratic_bound(found.gain[:, None], bend[:, None], t)
    curve = gain_curve(model, found, x, y, t)
    assert (curve >= bound - 1e-6 * found.gain[:, None]).all()
    assert (curve[:, 1:] <= t[1:] * found.gain[:, None] * (1 + 1e-6)).all() or kind == "conv"
    small = gain_curve(model, found, x, y, t[:1] + 1e-4)[:, 0]
    torch.testing.assert_close(small, 1e-4 * found.gain, rtol=1e-3, atol=0)


def test_curvature_is_that_of_autograd():
    """sup d²L/dt² on a grid, by double backward through the inserted block."""
    model, x, y = setting("dense")
    found = direction(model, 1, x, y, 6)
    expected = []
    for s in torch.linspace(0.01, 1, 50, dtype=F64):
        t = s.expand(3).clone().requires_grad_()
        loss = sample_losses(insert_direction(model, found, t)(x), y).mean(1).sum()
        (first,) = torch.autograd.grad(loss, t, create_graph=True)
        expected.append(torch.autograd.grad(first.sum(), t)[0])
    ours = line_curvature(model, found, x, y, 1.0, points=50)
    torch.testing.assert_close(ours, torch.stack(expected).amax(0), rtol=2e-2, atol=1e-6)


@kinds
def test_line_search_keeps_its_promise(kind):
    model, x, y = setting(kind)
    found = direction(model, 1, x, y, 6)
    step = line_search(model, found, x, y)
    assert step.found.all() and (step.gain >= room.ARMIJO * step.t * found.gain).all()
    torch.testing.assert_close(
        mean_loss(model, x, y) - mean_loss(insert_direction(model, found, step.t), x, y), step.gain
    )
    far = line_search(model, found, x, y, start=1e3 * step.t)
    assert far.found.all() and (far.gain > 0).all() and (far.t <= 1e3 * step.t).all()
    fine = torch.linspace(0, 4, 400, dtype=F64) * step.t[:, None]
    assert (step.gain >= 0.8 * gain_curve(model, found, x, y, fine).amax(1)).all()  # nearly the best step


def test_where_no_step_gains_it_says_so():
    """The second net's direction is turned around: uphill."""
    model, x, y = setting("dense")
    found = direction(model, 1, x, y, 6)
    sign = torch.tensor([1.0, -1.0, 1.0], dtype=F64)
    turned = replace(found, v=sign[:, None, None] * found.v)
    with pytest.warns(UserWarning, match=r"no step along this direction lowers the loss of net \[1\]: their step is 0"):
        step = line_search(model, turned, x, y)
    assert step.found.tolist() == [True, False, True] and step.t[1] == step.gain[1] == 0 < step.t[0]
    start = insert_direction(model, turned, step.t)
    torch.testing.assert_close(mean_loss(start, x, y)[1], mean_loss(model, x, y)[1], rtol=0, atol=0)


@kinds
def test_jumpboard_is_its_parts(kind):
    model, x, y = setting(kind)
    board = jumpboard(model, 1, x, y, 6)
    assert board.model.depth == model.depth + 1
    torch.testing.assert_close(mean_loss(model, x, y) - mean_loss(board.model, x, y), board.step.gain)
    assert (board.step.gain > 0).all()


# ---- the numbers of the notes: a live start gains on a sample that did not choose it


def test_a_population_jumpboard_gains_on_fresh_data(task, trained, sample):
    """Ridge far ahead of the gradient direction, both above zero, below what the slope promises."""
    x, y = task.sample(20_000, compute.generator(1))
    gains = {}
    for kind in room.KINDS:
        board = jumpboard(trained, 1, x, y, 64, kind)
        gains[kind] = gain_curve(trained, board.direction, *sample, board.step.t[:, None])[:, 0]
        assert (gains[kind] > 0).all()
    assert (gains["ridge"] > 2 * gains["gradient"]).all()


def test_out_of_sample_energy_is_less_than_in_sample(trained, task, sample):
    x, y = task.sample(1000, compute.generator(2))
    found = direction(trained, 1, x, y, 64)
    assert (evaluate(trained, found, *sample).explained < 0.7 * evaluate(trained, found, x, y).explained).all()


# ---- the signal


def test_the_debiased_signal_is_the_mean_over_pairs():
    g, phi = randn(2, 7, 3), randn(2, 7, 4, seed=1)
    outer = torch.einsum("sni,snj->snij", g, phi)
    pairs = torch.einsum("snij,smij->snm", outer, outer)
    expected = (pairs.sum((1, 2)) - pairs.diagonal(dim1=1, dim2=2).sum(1)) / (7 * 6)
    found = debiased_signal(g, phi)
    torch.testing.assert_close(found.debiased, expected)
    torch.testing.assert_close(found.raw, outer.mean(1).square().sum((1, 2)))
    torch.testing.assert_close(found.floor, found.raw - found.debiased)


def test_the_debiased_signal_with_positions_is_the_mean_over_pairs():
    g, phi = randn(2, 5, 2, 3, 4), randn(2, 5, 2, 3, 6, seed=1)
    each = torch.einsum("snabi,snabj->snij", g, phi)
    pairs = torch.einsum("snij,smij->snm", each, each)
    expected = (pairs.sum((1, 2)) - pairs.diagonal(dim1=1, dim2=2).sum(1)) / (5 * 4)
    torch.testing.assert_close(debiased_signal(g, phi).debiased, expected)


def test_the_raw_signal_is_biased_up_as_the_formula_says(task, trained):
    """400 samples of size 50 against ‖M‖² of 40 000: raw = ‖M‖² + (E‖gφᵀ‖² − ‖M‖²)/n, debiased = ‖M‖²."""
    x, y = task.sample(40_000, compute.generator(3))
    net = trained.nets([0])
    z, g = net.bottom(x, 1), activation_gradient(net, 1, x, y)
    phi = features(net, z, draw_features(net, 16))
    truth = moments(g, phi).cross.square().sum()
    spread = (g.square().sum(-1) * phi.square().sum(-1)).mean()
    parts = debiased_signal(g[0, :20_000].view(400, 50, -1), phi[0, :20_000].view(400, 50, -1))
    for ours, expected in ((parts.raw, truth + (spread - truth) / 50), (parts.debiased, truth)):
        assert (ours.mean() - expected).abs() <= 4 * ours.std() / math.sqrt(400) + 0.03 * truth
    assert parts.raw.mean() > 2 * parts.debiased.mean()


# ---- Condition 2


def test_the_fallback_takes_the_better_of_each_pair():
    model, x, y = setting("dense")
    board = jumpboard(model, 1, x, y, 6).model
    wild = replace(board, params={k: v + 5 * randn(*v.shape, seed=i) for i, (k, v) in enumerate(board.params.items())})
    good = fit(board, x, y, 50).model
    mixed = replace(
        good, params={k: torch.stack([good.params[k][0], wild.params[k][1], good.params[k][2]]) for k in good.params}
    )
    chosen = fall_back(mixed, board, x, y)
    assert chosen.fell_back.tolist() == [False, True, False]
    expected = torch.minimum(mean_loss(mixed, x, y), mean_loss(board, x, y))
    torch.testing.assert_close(mean_loss(chosen.model, x, y), expected, rtol=0, atol=0)
    assert (chosen.erm_gain >= 0).all() and chosen.erm_gain[1] == 0
    torch.testing.assert_close(chosen.erm_gain, mean_loss(board, x, y) - expected)


def test_a_net_that_diverged_falls_back():
    model, x, y = setting("dense")
    board = jumpboard(model, 1, x, y, 6).model
    broken = replace(board, params=board.params | {"out": board.params["out"] * math.nan})
    chosen = fall_back(broken, board, x, y)
    assert chosen.fell_back.all() and torch.equal(chosen.model(x), board(x)) and (chosen.erm_gain == 0).all()
    with pytest.raises(ValueError, match="trained and board must have the same blocks"):
        fall_back(model, board, x, y)


# ---- controls


def test_the_best_temperature_is_a_stationary_point():
    logits = 3 * randn(3, 60, 3, seed=4)
    factor, gain = temperature_gain(logits, Y, logits, Y)
    free = factor.clone().requires_grad_()
    loss = sample_losses(free[:, None, None] * logits, Y).mean(1)
    (derivative,) = torch.autograd.grad(loss.sum(), free)
    inside = (factor > 0.126) & (factor < 7.9)
    assert (derivative[inside].abs() < 1e-8).all() and (gain >= 0).all()
    torch.testing.assert_close(gain, sample_losses(logits, Y).mean(1) - loss.detach())


def test_margins_are_losses_of_four_models(task):
    """Of an overfitted network: each gain against the loss of the changed model; temperature gains most."""
    x, y = task.sample(60, compute.generator(5))
    start = PostNormResNet(9, 8, 1, 8, 4, generators=generators(n=2))
    old = fit(start, x, y, 150, batch=None).model
    chosen, judged = (task.sample(2000, compute.generator(seed)) for seed in (6, 7))
    found, before = margins(old, 1, chosen, judged, 5), mean_loss(old, *judged)
    factor, _ = temperature_gain(old(chosen[0]), chosen[1], old(chosen[0]), chosen[1])
    cooled = replace(old, params=old.params | {"out": factor[:, None, None] * old.params["out"]})
    changed = {"temperature": cooled, "old weights": parameter_step(old, *chosen)[0]}
    changed |= {kind: jumpboard(old, 1, *chosen, 5, kind).model for kind in ("gradient", "ridge")}
    assert list(found) == list(changed)
    for way, model in changed.items():
        torch.testing.assert_close(found[way], before - mean_loss(model, *judged))
    assert all((found["temperature"] > found[way]).all() for way in ("gradient", "ridge"))


def test_a_block_beats_the_controls_where_the_old_network_is_good(task, sample):
    """Lesson 11: ridge > old weights > temperature on 4000 samples; temperature above all on 500, overfitted."""
    chosen = task.sample(16_000, compute.generator(101))
    good, tired = (
        margins(students(task, n, steps, range(3)).model.to(dtype=F64), 1, chosen, sample)
        for n, steps in ((4000, 250), (500, 400))
    )
    assert good["ridge"].mean() > 1.5 * good["old weights"].mean() > 3 * good["temperature"].mean() > 0
    assert good["gradient"].mean() < good["old weights"].mean()
    assert all((tired["temperature"] > 2 * tired[way]).all() for way in ("old weights", "gradient", "ridge"))
    assert (tired["ridge"] > 10 * good["ridge"]).all()  # large, and no evidence


def test_an_honest_network_needs_no_other_temperature(task):
    """Labels drawn from the softmax itself: the factor is 1 to the scatter of 40 000 labels."""
    x, y = task.sample(40_000, compute.generator(5))
    logits = task.temperature * task.teacher(x)
    factor, gain = temperature_gain(logits[:, :20_000], y[:20_000], logits[:, 20_000:], y[20_000:])
    assert factor.item() == pytest.approx(1, abs=0.05) and abs(gain.item()) < 1e-3


def test_a_step_of_the_old_parameters_descends():
    model, x, y = setting("dense")
    moved, step = parameter_step(model, x, y)
    assert step.found.all() and (step.gain > 0).all()
    torch.testing.assert_close(mean_loss(model, x, y) - mean_loss(moved, x, y), step.gain)
    by_descent = fit(model, x, y, 1, batch=None, optimizer=SGD(step.t)).model
    for other in (step.t / 2, 2 * step.t):  # the best of the halvings
        away = fit(model, x, y, 1, batch=None, optimizer=SGD(other)).model
        assert (mean_loss(away, x, y) >= mean_loss(moved, x, y)).all()
    for name in model.params:
        torch.testing.assert_close(moved.params[name], by_descent.params[name])
    stuck = replace(model, params=model.params | {"out": torch.zeros_like(model.params["out"])})
    with pytest.warns(UserWarning, match=r"no step against the gradient lowers the loss of net \[0, 1, 2\]"):
        still = parameter_step(stuck, 0 * x, y)[1]  # all logits 0 whatever the weights
    assert not still.found.any() and (still.t == 0).all() and (still.gain == 0).all()


# ---- bad input

MODEL = dense()
REFUSED = {
    "loss must be one of ce, prob, got 'mse'": lambda: activation_gradient(MODEL, 1, X, Y, "mse"),
    r"layer must lie in \[0, 3\], the depth, got 4": lambda: activation_gradient(MODEL, 4, X, Y),
    r"y\[3\] = 3 must be a class from 0 to 2": lambda: activation_gradient(MODEL, 1, X, torch.arange(60) % 4),
    r"x must be \(n, 5\) or \(3, n, 5\) and not empty, got \(0, 5\)": lambda: activation_gradient(
        MODEL, 1, X[:0], Y[:0]
    ),
    r"y must be int64 of shape \(60,\) or \(3, 60\), got torch.int64 \(59,\)": lambda: activation_gradient(
        MODEL, 1, X, Y[1:]
    ),
    "kind must be one of ridge, gradient, got 'newton'": lambda: direction(MODEL, 1, X, Y, 4, "newton"),
    r"ridge must lie in \[0, inf\), got -1": lambda: direction(MODEL, 1, X, Y, 4, ridge=-1),
    "hidden must be >= 1, got 0": lambda: direction(MODEL, 1, X, Y, 0),
    r"w1 must be \(3, hidden, 8\), got \(3, 4, 7\)": lambda: direction(MODEL, 1, X, Y, randn(3, 4, 7)),
    r"w1 must be \(3, hidden, 4, 3, 3\), got \(3, 4, 4\)": lambda: direction(
        conv(), 1, IMAGES, CLASSES, randn(3, 4, 4)
    ),
    "activation must be one of relu": lambda: direction(MODEL, 1, X, Y, 4, activation="sin"),
    "generators must be 3, one a net, got 1": lambda: draw_features(MODEL, 4, generators(n=1)),
    r"t must be \(step,\) or \(3, step\), got \(\)": lambda: gain_curve(
        MODEL, direction(MODEL, 1, X, Y, 4), X, Y, torch.tensor(1.0, dtype=F64)
    ),
    "start must be positive and finite, got 0": lambda: line_search(MODEL, direction(MODEL, 1, X, Y, 4), X, Y, 0.0),
    "t_max must be positive and finite, got -1": lambda: line_curvature(
        MODEL, direction(MODEL, 1, X, Y, 4), X, Y, -1.0
    ),
    "t must be finite, got nan": lambda: insert_direction(MODEL, direction(MODEL, 1, X, Y, 4), math.nan),
    "g must hold at least 2 samples, got 1": lambda: debiased_signal(randn(1, 1, 3), randn(1, 1, 4)),
    "g and phi must belong to the same samples": lambda: debiased_signal(randn(1, 5, 3), randn(1, 6, 4)),
    r"phi must be \(net, n, ..., channels\) and not empty, got \(6, 4\)": lambda: debiased_signal(
        randn(1, 6, 3), randn(6, 4)
    ),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_is_refused(sentence):
    with pytest.raises(ValueError, match=sentence):
        REFUSED[sentence]()
