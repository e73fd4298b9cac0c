"""The bounds against adversarial search on small nets, exhaustive suprema, gradient ascent, exact binomial tails,
a second implementation, and the tables of the theory notes."""

import itertools
import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import binom

from labkit import compute, training
from labkit.depth import bounds
from labkit.depth.bounds import (
    NormClass,
    collapse,
    cover_bound,
    decompose_test_change,
    directions_bound,
    frozen_class_bound,
    hoeffding_test_size,
    lip_chain,
    network_class,
    norm_class,
    path_norm_bound,
    rademacher_bound,
    route_a,
    route_a_failure,
    route_a_free,
    route_b,
    route_b_prime,
    samples_needed,
    sensitivities,
    top_lipschitz,
)
from labkit.depth.network import ConvPostNormResNet, PostNormResNet, insert_block
from tests.verify.depth import FLIPS, MARGIN, SPREAD, full_class

F64 = torch.float64
MATRICES = ("w_in", "w_1", "w_2", "w_out")
CLASS = NormClass(
    depth=4, width=8, s_1=0.3**0.5, s_2=0.3**0.5, s_in=1.5, s_out=2, input_norm=8**0.5, input_rms=0.5, in_dim=8
)


def tensor(*values):
    return torch.tensor(values, dtype=F64)


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=compute.generator(seed))


# ---- a net of its own, batched over leading axes of the weights


def normalize(u, eps):
    return u / (u.square().mean(-1, keepdim=True) + eps).sqrt()


def states(weights, x, eps, inserted=None):
    """[u_0, z_0, u_1, z_1, …] for x (..., n, in_dim)."""
    w_in, w_1, w_2, _ = weights
    u = x @ w_in.mT
    found = [u, normalize(u, eps)]
    for block in range(w_1.shape[-3]):
        u = found[-1] + (found[-1] @ w_1[..., block, :, :].mT).relu() @ w_2[..., block, :, :].mT
        found += [u, u if inserted == block + 1 else normalize(u, eps)]
    return found


def loss(logits, y):
    return 1 - logits.softmax(-1).gather(-1, y.expand(logits.shape[:-1])[..., None])[..., 0]


def net_loss(weights, x, y, eps, inserted=None):
    return loss(states(weights, x, eps, inserted)[-1] @ weights[-1].mT, y)  # (..., n)


def draw(many, depth, width, hidden, in_dim, n_classes, radii, seed=0):
    """Weights with spectral norms at the radii (s_in, s_1, s_2, s_out), singular values all equal or spread."""
    shapes = ((width, in_dim), (depth, hidden, width), (depth, width, hidden), (n_classes, width))
    made = []
    for i, (shape, radius) in enumerate(zip(shapes, radii, strict=True)):
        w = randn(many, *shape, seed=10 * seed + i)
        u, s, v = torch.linalg.svd(w, full_matrices=False)
        s = torch.where((torch.arange(many) % 2 == 0).view(-1, *[1] * (s.dim() - 1)), torch.ones_like(s), s)
        made.append(radius * (u * (s / s[..., :1])[..., None, :]) @ v)
    return made


def cancel(weights):
    """The same nets with W_2 = −s_2 · (W_1/s_1)ᵀ: blocks that work against their input, the worst for the chain."""
    w_in, w_1, w_2, w_out = weights
    s_1, s_2 = (torch.linalg.matrix_norm(w, 2)[..., None, None] for w in (w_1, w_2))
    return [w_in, w_1, -s_2 * (w_1 / s_1).mT, w_out]


SETTINGS = {  # radii in, 1, 2, out; eps; the block without N
    "small blocks": ((1.5, 0.6, 0.5, 2.0), 1e-5, None),
    "large blocks": ((1.5, 1.2, 1.1, 2.0), 1e-1, None),
    "inserted": ((1.5, 0.6, 0.5, 2.0), 1e-3, 2),
    "inserted on top": ((1.5, 0.6, 0.9, 2.0), 1e-3, 3),
}


def setting(name, seed=0):
    """(class, weights (200, …), x, y, eps, inserted); half of the nets cancel their input."""
    radii, eps, inserted = SETTINGS[name]
    weights = draw(200, 3, 6, 5, 4, 3, radii, seed)
    weights = [
        torch.cat(part) for part in zip([w[:100] for w in weights], cancel([w[100:] for w in weights]), strict=True)
    ]
    x = randn(64, 4, seed=seed + 5)
    net = norm_class(*weights, x, eps=eps, inserted=inserted)
    net = replace(net, **{k: getattr(net, k).amax(0) for k in ("s_in", "s_1", "s_2", "s_out")})
    net = replace(net, input_rms=net.input_rms.amin(), row_in=None, row_1=None, row_2=None, row_out=None)
    return net, weights, x, torch.randint(3, (64,), generator=compute.generator(seed)), eps, inserted


settings = pytest.mark.parametrize("name", SETTINGS)


# ---- the class and its chain


def test_norm_class_reads_the_norms():
    w_in, w_1, w_2, w_out = weights = draw(3, 2, 6, 5, 4, 3, (1.5, 0.6, 0.5, 2.0))
    x = randn(10, 4)
    net = norm_class(*weights, x, eps=0.1)
    assert net.s_1.shape == net.row_2.shape == (3, 2) and net.s_in.shape == net.input_rms.shape == (3,)
    assert net.s_2[1, 1].item() == pytest.approx(np.linalg.svd(w_2[1, 1].numpy())[1][0])
    assert net.row_1[2, 0].item() == pytest.approx(sum(np.linalg.norm(row) for row in w_1[2, 0].numpy()))
    assert net.input_rms[1].item() == pytest.approx(min(float((w_in[1] @ v).norm()) / 6**0.5 for v in x))
    assert (net.depth, net.width, net.hidden, net.in_dim, net.n_classes, net.eps) == (2, 6, 5, 4, 3, 0.1)
    # what is assumed of the rows without looking is never below
    blind = bounds._admit(replace(net, row_in=None, row_1=None, row_2=None, row_out=None))[0]
    for name in ("row_in", "row_1", "row_2", "row_out"):
        assert (getattr(blind, name) >= getattr(net, name) - 1e-12).all()


def test_network_class_reads_a_model():
    """The same class from a model's weights, with a narrower inserted block; its chain holds on the model's states."""
    model = PostNormResNet(4, 6, 2, 5, 3, eps=1e-3, generators=training.generators(range(3)))
    x = randn(30, 4)
    params = [torch.stack([model.params[f"{name}.{i}"] for i in (1, 2)], 1) for name in ("w1", "w2")]
    expected = norm_class(model.params["in"], *params, model.params["out"], x, eps=1e-3)
    found = network_class(model, x)
    for name in ("s_1", "s_2", "s_in", "s_out", "row_1", "row_out", "input_rms"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    torch.testing.assert_close(cover_bound(1e5, found), cover_bound(1e5, expected))
    torch.testing.assert_close(found.input_rms, model.least_rms(x)[:, 0])
    new = insert_block(model, 1, 3, init="gate")
    new.params["gate.2"] += 0.2
    grown = network_class(new, x)
    assert grown.inserted == 2 and grown.hidden.tolist() == [5, 3, 5] and grown.s_1.shape == (3, 3)
    assert grown.s_2[1, 1].item() == pytest.approx(0.2 * np.linalg.svd(new.params["w2.2"][1].numpy())[1][0])
    chain = lip_chain(grown)
    assert (new.bottom(x, 2).norm(dim=-1).amax(1) <= chain.norm[:, 2]).all()
    assert (chain.scale[:, 0] <= (new.least_rms(x)[:, 0] ** 2 + 1e-3).sqrt() * (1 + 1e-12)).all()
    for bad in (
        PostNormResNet(4, 6, 2, 5, 3, activation="gelu"),
        PostNormResNet(4, 6, 2, 5, 3, norm="layer"),
        ConvPostNormResNet(4, 6, 2, 5, 3),
        insert_block(insert_block(model, 1, 3), 1, 3),
    ):
        with pytest.raises(ValueError, match="model must be a PostNormResNet on vectors with RMSNorm"):
            network_class(bad, x)


@settings
def test_chain_is_never_broken(name):
    """ŝ_l ≤ s(u_l), r_l ≤ rms(z_l), ‖z_l‖ ≤ its bound, and no pair of nearby states moves apart faster than β."""
    net, weights, x, _, eps, inserted = setting(name)
    chain, found = lip_chain(net), states(weights, x, eps, inserted)
    for block in range(4):
        u, z = found[2 * block : 2 * block + 2]
        if block == 0 or block != inserted:
            assert (chain.scale[block] <= (u.square().mean(-1) + eps).sqrt().min() * (1 + 1e-12)).all()
        assert chain.rms[block] <= z.square().mean(-1).sqrt().min() * (1 + 1e-12)
        assert z.norm(dim=-1).max() <= chain.norm[block] * (1 + 1e-12)
    for block in range(1, 4):
        z, after = found[2 * block - 1], found[2 * block + 1]
        ratio = (after[:, 1:] - after[:, :-1]).norm(dim=-1) / (z[:, 1:] - z[:, :-1]).norm(dim=-1)
        assert ratio.max() <= chain.log_gain[block - 1].exp()


def test_chain_is_attained():
    """Positive states, W_1 = √s 1, W_2 = −√s 1: u_l = (1 − s) z_{l−1}, the smallest that norms allow."""
    eye, s, eps = torch.eye(4, dtype=F64), 0.3, 1e-2
    block = s**0.5 * eye.expand(3, 4, 4)
    weights, x = (eye, block, -block, eye), randn(20, 4).abs() + 0.1
    x = x / x.square().mean(-1, keepdim=True).sqrt()  # all of rms 1
    chain = lip_chain(norm_class(*weights, x, eps=eps))
    for index, found in enumerate(states(weights, x, eps)[::2]):
        torch.testing.assert_close((found.square().mean(-1) + eps).sqrt(), chain.scale[index].expand(20))


def test_small_blocks_cost_the_same_at_any_depth():
    """s_l = c/depth: ΠΒ → e^{2c}; s_l ≥ 1: ε^{−depth/2}."""
    c, depth = 0.7, tensor(4.0, 64.0, 512.0)
    net = replace(CLASS, depth=depth, s_1=(c / depth)[:, None], s_2=1.0, eps=0.0, input_rms=1.0)
    product = lip_chain(net).log_tail[:, 0].exp()
    exact = ((1 + c / depth) / (1 - c / depth)) ** depth
    torch.testing.assert_close(product, exact)
    assert product[-1].item() == pytest.approx(math.exp(2 * c), rel=1e-5)
    large = lip_chain(replace(CLASS, s_1=1.0, s_2=1.5, eps=1e-4))
    torch.testing.assert_close(large.log_gain, torch.full((4,), math.log(2.5 / 1e-2), dtype=F64))


@settings
def test_sensitivities_are_never_exceeded(name):
    """Two nets of the class that differ in one matrix, any input: |Δ loss| ≤ C_j ‖ΔW_j‖, for finite changes, and for
    small ones, where the largest change per spectral norm is the nuclear norm of the gradient."""
    net, weights, x, y, eps, inserted = setting(name)
    limit = sensitivities(net)
    before, worst = net_loss(weights, x, y, eps, inserted), {}
    for j, key in enumerate(MATRICES):
        c = getattr(limit, key)
        for block in range(3) if c.dim() else (None,):
            moved = [w.clone() for w in weights]
            if block is None:
                if key == "w_in":  # the class asks for rms(W_in x) ≥ ρ: a rotation keeps it
                    moved[j] = torch.linalg.qr(randn(200, 6, 6, seed=9)).Q @ moved[j]
                else:
                    moved[j] = moved[j].roll(1, 0)
                change = torch.linalg.matrix_norm(moved[j] - weights[j], 2)
            else:
                moved[j][:, block] = moved[j][:, block].roll(1, 0)
                change = torch.linalg.matrix_norm(moved[j][:, block] - weights[j][:, block], 2)
            ratio = (net_loss(moved, x, y, eps, inserted) - before).abs().amax(-1) / change
            bound = c if block is None else c[block]
            worst[key, block] = (ratio / bound).max().item()
            assert worst[key, block] <= 1

    def one(*args):
        return net_loss(args[:4], args[4][None], args[5], eps, inserted)[0]

    gradients = torch.func.vmap(
        torch.func.vmap(torch.func.grad(one, (0, 1, 2, 3)), (None,) * 4 + (0, 0)), (0,) * 4 + (None, None)
    )(*weights, x, y)
    for key, gradient in zip(MATRICES, gradients, strict=True):
        c = getattr(limit, key)
        nuclear = torch.linalg.svdvals(gradient).sum(-1).amax((0, 1))
        worst[key] = (nuclear / c).max().item()
        assert worst[key] <= 1 + 1e-12
    assert worst["w_out"] > 0.3 and min(worst.values()) > 0  # it could have failed


@pytest.mark.parametrize(
    "name", ["small blocks", "large blocks", "inserted"]
)  # above a block without N, no net drawn is near ‖z‖
def test_output_sensitivity_is_nearly_attained_by_search(name):
    """Gradient ascent over inputs and W_out: at least 90 % of C_out, never more."""
    net, weights, x, y, eps, inserted = setting(name)
    z = states(weights, x, eps, inserted)[-1][0].detach()
    out = randn(64, 3, 6, seed=3).requires_grad_()
    optimizer = torch.optim.Adam([out], lr=0.05)
    for _ in range(200):
        w = 2.0 * out / torch.linalg.matrix_norm(out, 2)[:, None, None]
        p = torch.einsum("nkd,nd->nk", w, z).softmax(-1)
        gradient = p.gather(1, y[:, None]) * (torch.nn.functional.one_hot(y, 3) - p)
        size = gradient.norm(dim=-1) * z.norm(dim=-1)
        optimizer.zero_grad()
        (-size.sum()).backward()
        optimizer.step()
    ratio = size.max().item() / sensitivities(net).w_out.item()
    assert 0.9 <= ratio <= 1


def test_loss_constants():
    """√2/4 and √2: the largest gradient of 1 − p_y and of the cross entropy, by search over logits."""
    logits = (
        torch.randn(100_000, 3, dtype=F64, generator=compute.generator(0))
        * tensor(0.1, 1, 10)[torch.arange(100_000) % 3, None]
    )
    p = logits.softmax(-1)
    miss = torch.eye(3, dtype=F64)[0] - p
    for gradient, constant in ((p[:, :1] * miss, bounds.PROBABILITY_LIPSCHITZ), (miss, bounds.CROSS_ENTROPY_LIPSCHITZ)):
        assert 0.97 * constant <= gradient.norm(dim=-1).max().item() <= constant


def test_cross_entropy_range_is_attained():
    """Two classes, w_1 = −w_2 along z, ‖z‖ = √width: the gap of logits is 2 s/√2 · √width = √2 s √width."""
    width, s_out = 9, 1.3
    z = math.sqrt(width) * torch.eye(width, dtype=F64)[0]
    w = s_out / math.sqrt(2) * torch.stack([z, -z]) / z.norm()
    assert torch.linalg.matrix_norm(w, 2).item() == pytest.approx(s_out)
    worst = -(w @ z).log_softmax(-1)[1]
    assert bounds.cross_entropy_range(width, 2, s_out).item() == pytest.approx(worst.item())
    many = bounds.cross_entropy_range(tensor(9.0, 9.0), tensor(2.0, 10.0), s_out)
    assert many[1].item() == pytest.approx(math.log(1 + 9 * math.exp(math.sqrt(18) * s_out)))


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["small blocks", "large blocks"])
def test_top_lipschitz_is_never_exceeded(name, layer):
    """‖∇_z loss(f_top(z))‖ at points of balls around the states, for all nets."""
    net, weights, x, y, eps, _ = setting(name)
    radius, feature_max = 0.3, 1.5
    z = states(weights, x, eps)[2 * layer + 1]
    step = randn(*z.shape, seed=4)
    points = (z + radius * feature_max * step / step.norm(dim=-1, keepdim=True)).requires_grad_()
    state = points
    for block in range(layer, 3):
        w_1, w_2 = (w[:, block] for w in weights[1:3])
        state = normalize(state + (state @ w_1.mT).relu() @ w_2.mT, eps)
    (gradient,) = torch.autograd.grad(loss(state @ weights[3].mT, y).sum(), points)
    found, limit = gradient.norm(dim=-1).max(), top_lipschitz(net, layer, radius, feature_max)
    assert found <= limit
    assert layer < 3 or found > 0.5 * limit
    assert top_lipschitz(net, layer) <= limit
    chain = lip_chain(net)
    expected = bounds.PROBABILITY_LIPSCHITZ * 2.0 * chain.log_tail[layer].exp()
    torch.testing.assert_close(top_lipschitz(net, layer), expected)  # no radius: the chain itself


def test_measured_norms_replace_the_guarantee():
    """With the rms seen on data the collapse is gone, and the constants still hold on these data."""
    net, weights, x, *_ = setting("large blocks")
    eps, found = SETTINGS["large blocks"][1], states(weights, x, SETTINGS["large blocks"][1])
    seen = torch.stack([found[2 * block].square().mean(-1).sqrt().min() for block in (1, 2, 3)])
    helped = lip_chain(replace(net, measured_rms=seen))
    assert (helped.scale[1:] >= (seen**2 + eps).sqrt() * (1 - 1e-12)).all()
    assert helped.log_tail[0] < lip_chain(net).log_tail[0]
    assert collapse(net) and not collapse(replace(net, measured_rms=seen))


# ---- D1


def reference_cover(n, depth, width, hidden, in_dim, n_classes, s_in, s_1, s_2, s_out, norm, rho, eps, delta):
    """D1 once more, in numpy loops and without logarithms of the constants."""
    scale, r, scales, betas, size = math.sqrt(rho**2 + eps), rho / math.sqrt(rho**2 + eps), [], [], s_1 * s_2
    for _ in range(depth):
        a = max(1 - size, 0) * r
        scales.append(math.sqrt(a * a + eps))
        betas.append((1 + size) / scales[-1])
        r = a / scales[-1]
    lam, count, eta = math.sqrt(2) / 4, 2 * depth + 2, np.logspace(-8, 0, 161)
    terms = width * in_dim * np.log1p(2 * count * s_in * lam * s_out * np.prod(betas) * norm / scale / eta)
    terms = terms + n_classes * width * np.log1p(2 * count * s_out * lam * math.sqrt(width) / eta)
    for block in range(depth):
        felt = lam * s_out * np.prod(betas[block + 1 :]) * math.sqrt(width) / scales[block]
        terms = terms + 2 * width * hidden * np.log1p(2 * count * s_1 * s_2 * felt / eta)
    return np.min(2 * eta + np.sqrt((terms + math.log(2 / delta)) / (2 * n)))


@pytest.mark.parametrize(
    "depth, width, hidden, size", [(1, 8, 8, 0.3), (4, 32, 16, 0.3), (3, 8, 64, 1.2), (16, 4, 4, 0.05)]
)
def test_cover_bound_is_the_formula(depth, width, hidden, size):
    net = replace(CLASS, depth=depth, width=width, hidden=hidden, s_1=2 * size, s_2=0.5)
    for n, delta in ((1e4, 0.05), (1e7, 0.001)):
        expected = reference_cover(n, depth, width, hidden, 8, 4, 1.5, 2 * size, 0.5, 2, 8**0.5, 0.5, 1e-5, delta)
        assert cover_bound(n, net, delta).item() == pytest.approx(expected, rel=1e-9)


NOTES = {(1, 8): (0.308, 0.035), (4, 8): (0.53, 0.060), (4, 32): (1.90, 0.216), (16, 32): (4.6, 0.50)}


@pytest.mark.parametrize("depth, width", NOTES)
def test_the_cover_table_of_the_notes(depth, width):
    """Section d, s_l = .3: ε(1e4), ε(1e6). The notes do not say s_in, s_out, X, ρ: 1.5, 2, √8, .5 give all eight."""
    net = replace(CLASS, depth=depth, width=width)
    sizes = tensor(1e4, 1e6)
    assert cover_bound(sizes, net).tolist() == pytest.approx(NOTES[depth, width], rel=0.01)
    ratio = cover_bound(sizes, replace(net, s_1=1.2, s_2=1.0)) / cover_bound(sizes, net)
    assert ((ratio > 1.2) & (ratio < 2.3)).all()  # "about 1.2–2.3× larger"


def test_cover_bound_holds_on_an_exhaustive_class():
    """depth 1, width 2, hidden 1: 4096 networks on a grid, a finite population: the supremum is known exactly."""
    grid = torch.cartesian_prod(*[torch.arange(8)] * 4)
    angle = grid.double() * math.tau / 8
    turn = lambda a: torch.stack([a.cos(), a.sin()], -1)  # noqa: E731
    weights = (
        torch.stack([turn(angle[:, 0]), turn(angle[:, 0] + math.tau / 4)], -2),
        0.5 * turn(angle[:, 1])[:, None, None],
        0.5 * turn(angle[:, 2])[:, None, :, None],
        torch.stack([turn(angle[:, 3]), -turn(angle[:, 3])], -2) / math.sqrt(2),
    )
    x = turn(torch.arange(12).double() * math.tau / 12 + 0.1)
    y = torch.arange(12) % 2
    net = norm_class(*weights, x, eps=1e-3)
    net = replace(
        net, **{k: getattr(net, k).amax(0) for k in ("s_in", "s_1", "s_2", "s_out")}, input_rms=net.input_rms.amin()
    )
    net = replace(net, row_in=None, row_1=None, row_2=None, row_out=None)
    losses = net_loss(weights, x, y, 1e-3)  # (4096, 12)
    for n in (3000, 30_000):
        counts = torch.distributions.Multinomial(n, torch.ones(12, dtype=F64)).sample((200,)).double()
        supremum = (losses @ (counts / n - 1 / 12).mT).abs().amax(0)
        one = ((losses[0] @ (counts / n - 1 / 12).mT).abs() > bounds.hoeffding_deviation(n, 0.025) / 2).double().mean()
        assert supremum.max() <= cover_bound(n, net) < 1
        assert supremum.median() > 0.01 * cover_bound(n, net) and one <= 0.05


def test_directions_bound_holds_and_is_close():
    """One direction, loss steps of all sizes: the supremum over 2001 coefficients exceeds ε in fewer than δ draws, and
    ε is within a factor 6."""
    generator = compute.generator(3)
    g = torch.rand(500, dtype=F64, generator=generator) * 2 - 1  # slope of each point's loss, λφ_max = 1
    a = torch.linspace(-0.5, 0.5, 2001, dtype=F64)
    losses = 0.5 + a[:, None] * g  # (coefficient, point), inside [0, 1]
    n = 400
    rows = torch.randint(500, (300, n), generator=generator)
    supremum = (losses[:, rows].mean(-1) - losses.mean(-1)[:, None]).abs().amax(0)
    for paired, factor in ((False, 8), (True, 8)):
        limit = directions_bound(n, 1, 0.5, 1.0, 1.0, fresh_sample=True, paired=paired)
        changes = supremum
        assert (changes > limit).double().mean() <= 0.05
        assert limit <= factor * changes.quantile(0.95)


# ---- D2


def test_rademacher_bound_is_the_best_split_and_the_best_cut():
    """Its two optimizations redone by scipy: radii per matrix (Lagrange), and where Dudley's integral starts."""
    net = replace(CLASS, depth=2, s_1=0.3, s_2=0.2)
    n, delta = 1e13, 0.05
    c = bounds._admit(net)[0]
    limit = sensitivities(net)
    constants = [limit.w_in.item(), *limit.w_1.tolist(), *limit.w_2.tolist(), limit.w_out.item()]
    rows = [c.row_in.item(), *[c.row_1.item()] * 2, *[c.row_2.item()] * 2, c.row_out.item()]
    # with c_j ε_j = share_j: Σ κ_j/ε_j² = Σ (C_j a_j/share_j)², as C_j holds the input norm that κ_j holds
    pulls = np.array(constants) * np.array(rows)

    def size(free):
        share = np.exp(free) / np.exp(free).sum()
        return np.log(np.sum((pulls / share) ** 2))

    best = minimize(size, np.zeros(6), method="BFGS", options={"gtol": 1e-10}).fun
    root = math.sqrt(8 * math.log(2 * 8**2) * math.exp(best) / n)
    cuts = np.logspace(-12, 0, 200_001)
    complexity = np.min(4 * cuts + 12 * root * np.log(1 / cuts))
    expected = 2 * complexity + math.sqrt(math.log(2 / delta) / (2 * n))
    assert rademacher_bound(n, net, delta).item() == pytest.approx(expected, rel=1e-6)


def test_counting_or_norms():
    """D1 wins at toy size; blocks far wider than their norms are large, D2."""
    small = replace(CLASS, depth=2, s_1=0.2, s_2=0.2)
    assert cover_bound(1e9, small) < rademacher_bound(1e9, small)
    wide = replace(small, hidden=1e9, row_in=2, row_1=1, row_2=1, row_out=2)
    assert rademacher_bound(1e11, wide) < cover_bound(1e11, wide)


# ---- D3


def frozen(n, width=6, hidden=7, n_classes=3):
    """z on the sphere of radius √width, ReLU features, a linear top."""
    z = math.sqrt(width) * torch.nn.functional.normalize(randn(n, width, seed=1), dim=-1)
    phi = (z @ randn(hidden, width, seed=2).mT / math.sqrt(width)).relu()
    top = randn(n_classes, width, seed=3) / 2
    y = torch.randint(n_classes, (n,), generator=compute.generator(4))
    return z, phi, top, y


@pytest.mark.parametrize("n", [200, 2000])
def test_frozen_class_bound_exceeds_gradient_ascent(n):
    """R̂ = E sup (1/n) Σ σ_i loss_i, by projected ascent from 16 sign vectors: below R of D3, not absurdly."""
    z, phi, top, y = frozen(n)
    radius = 1.0
    signs = torch.randint(2, (16, 1, n), generator=compute.generator(5)).double() * 2 - 1
    v = (0.1 * randn(16, 6, 7, seed=6)).requires_grad_()
    optimizer = torch.optim.Adam([v], lr=0.05)
    best, old = torch.zeros(16, dtype=F64), loss(z @ top.mT, y)
    for _ in range(200):
        value = (signs[:, 0] * (loss((z + phi @ v.mT) @ top.mT, y) - old)).mean(-1)  # (16,); old: mean 0, less noise
        best = torch.maximum(best, value.detach())
        optimizer.zero_grad()
        (-value.sum()).backward()
        optimizer.step()
        with torch.no_grad():
            v *= (radius / v.norm(dim=(1, 2), keepdim=True)).clamp_max(1)
    estimate = best.mean().item()
    lam = bounds.PROBABILITY_LIPSCHITZ * torch.linalg.matrix_norm(top, 2)
    mean = phi.square().sum(-1).mean().sqrt()
    rest = frozen_class_bound(n, 0.0, lam, 6, mean, fresh_sample=True)
    complexity = (frozen_class_bound(n, radius, lam, 6, mean, fresh_sample=True) - rest).item() / 2
    assert rest.item() == pytest.approx(math.sqrt(math.log(40) / (2 * n)))
    assert estimate <= complexity <= 20 * estimate


def test_frozen_class_bound_holds_over_samples():
    """Paired, linear loss ⟨g, Vφ⟩: the supremum over ‖V‖_F ≤ b is a norm in closed form."""
    z, phi, _, _ = frozen(4000)
    g = torch.nn.functional.normalize(randn(4000, 6, seed=8), dim=-1)
    products = g[:, :, None] * phi[:, None]  # sup_V |mean difference| = b ‖mean of g φᵀ − its population‖
    rows = torch.randint(4000, (200, 300), generator=compute.generator(9))
    supremum = 0.2 * (products[rows].mean(1) - products.mean(0)).flatten(1).norm(dim=-1)
    mean, largest = phi.square().sum(-1).mean().sqrt(), phi.norm(dim=-1).max()
    limit = frozen_class_bound(300, 0.2, 1.0, 6, mean, fresh_sample=True, feature_max=largest)
    assert (supremum > limit).double().mean() <= 0.05
    assert limit <= 15 * supremum.median()
    twice = frozen_class_bound(300, 0.4, 1.0, 6, mean, fresh_sample=True, feature_max=largest)
    torch.testing.assert_close(twice, 2 * limit)  # all of it ∝ b


@pytest.mark.parametrize("n", [200, 2000])
def test_path_norm_bound_exceeds_gradient_ascent(n):
    """W_1 and W_2 both free, path norm ≤ P, 32 hidden units."""
    z, _, top, y = frozen(n)
    limit = 1.5
    signs = torch.randint(2, (8, 1, n), generator=compute.generator(5)).double() * 2 - 1
    w_1, w_2 = randn(8, 32, 6, seed=6).requires_grad_(), (0.1 * randn(8, 6, 32, seed=7)).requires_grad_()
    optimizer = torch.optim.Adam([w_1, w_2], lr=0.02)
    best, old = torch.zeros(8, dtype=F64), loss(z @ top.mT, y)
    for _ in range(200):
        path = (w_2.abs().sum(1) * w_1.norm(dim=-1)).sum(-1)
        scaled = w_2 * (limit / path).clamp_max(1)[:, None, None]
        value = (signs[:, 0] * (loss((z + (z @ w_1.mT).relu() @ scaled.mT) @ top.mT, y) - old)).mean(-1)
        best = torch.maximum(best, value.detach())
        optimizer.zero_grad()
        (-value.sum()).backward()
        optimizer.step()
    lam = bounds.PROBABILITY_LIPSCHITZ * torch.linalg.matrix_norm(top, 2)
    rest = path_norm_bound(n, 0.0, lam, 6, fresh_sample=True)
    complexity = (path_norm_bound(n, limit, lam, 6, fresh_sample=True) - rest).item() / 2
    assert best.mean().item() <= complexity <= 40 * best.mean().item()
    paired = path_norm_bound(n, limit, lam, 6, fresh_sample=True, paired=True) / limit
    torch.testing.assert_close(paired, path_norm_bound(n, 1.0, lam, 6, fresh_sample=True, paired=True))


def test_a_second_block_without_a_norm_has_no_class_of_its_own():
    old = bounds.NormClass(
        depth=2, width=16, s_1=0.7, s_2=1, s_in=2, s_out=1.5, input_norm=6, input_rms=0.3, inserted=1
    )
    with pytest.raises(ValueError, match="old must have a norm after every block"):
        bounds.nested_bounds(old, 2, 6.0)


def test_nested_bounds_are_the_bounds():
    """Each ε is the least of what holds for its class; the inserted block counts."""
    net, n = replace(CLASS, depth=2), tensor(1e5, 1e8)
    lam = top_lipschitz(net, 1, 1.0, 0.5)
    names, made = bounds.nested_bounds(net, 1, 0.5, 0.4, directions=(1, 5), fail_prob=0.01)
    more = {"fresh_sample": True, "fail_prob": 0.01}
    averages = frozen_class_bound(n, 0.5, lam, 8, 0.4, **more)
    expected = {
        "1 fixed direction": directions_bound(n, 1, 0.5, lam, 1.0, **more).minimum(averages),
        "5 fixed directions": directions_bound(n, 5, 0.5, lam, 1.0, **more).minimum(averages),
        "old network frozen": directions_bound(n, 8 * 8, 0.5, lam, 1.0, **more).minimum(averages),
        "all weights free": cover_bound(n, replace(net, depth=3, inserted=2), 0.01),
    }
    assert names == list(expected)
    torch.testing.assert_close(made(n[:, None]), torch.stack(list(expected.values()), -1))
    torch.testing.assert_close(made(1e8), made(n[:, None])[1])
    wide = replace(net, depth=3, inserted=2, hidden=20)
    assert (bounds.nested_bounds(net, 1, 0.5, new=wide)[1](1e8) > made(1e8))[-1]
    lam = top_lipschitz(net, 1, 1.0, 50.0)  # so large that a net over all 160 entries costs less than averages
    counted = directions_bound(1e8, 160, 50.0, lam, 1.0, fresh_sample=True)
    torch.testing.assert_close(bounds.nested_bounds(net, 1, 50.0, new=wide)[1](1e8)[-2], counted)


@pytest.mark.parametrize("route", bounds.ROUTES)
def test_nested_bounds_promise_together_what_they_promise_alone(route):
    names, made = bounds.nested_bounds(replace(CLASS, depth=2), 1)
    margin, size = tensor(0.05, 0.2)[:, None], tensor(1e5, 1e9)[:, None]
    both = torch.stack(bounds.promise_from(made, margin, size, route=route))
    assert both.shape == (2, 2, 4)
    for place in range(4):
        alone = bounds.promise_from(lambda n, at=place: made(n[..., None])[..., at], margin, size, route=route)
        torch.testing.assert_close(both[..., place], torch.stack(alone)[..., 0])


@pytest.mark.parametrize("depth, width", [(1, 4), (2, 16), (16, 64)])
def test_nested_classes_cost_more_and_more(depth, width):
    """With the block that the norms allow each class holds the one before it: at any w, layer, sample, δ."""
    n = torch.logspace(2, 12, 30, dtype=torch.float64)[:, None]
    for size, fail_prob in itertools.product((0.05, 0.3, 0.99, 1.0, 5.0, 10.0), (1e-4, 0.3)):
        s = size**0.5
        old = NormClass(depth=depth, width=width, s_1=s, s_2=s, s_in=2.2, s_out=1.5, input_norm=6.5, input_rms=0.33)
        for layer in {0, depth // 2, depth}:
            costs = bounds.nested_bounds(old, layer, typical=1.0, fail_prob=fail_prob)[1](n)
            assert (costs.diff(dim=-1) >= 0).all(), (size, fail_prob, layer)


def test_the_block_of_nested_bounds_moves_as_far_as_its_norms_allow():
    old = NormClass(depth=2, width=16, s_1=0.6, s_2=0.9, s_in=2.2, s_out=1.5, input_norm=6.5, input_rms=0.33)
    new = replace(old, depth=3, inserted=2, s_2=tensor(0.9, 1.1, 0.9))  # the block's own s_2
    for given, move in ((None, 0.6 * 0.9 * 4), (new, 0.6 * 1.1 * 4)):
        left, right = (bounds.nested_bounds(old, 1, told, new=given)[1](1e6) for told in (None, move))
        torch.testing.assert_close(left, right)


def test_numbers_of_lesson_12():
    """What its prediction, its summary and the text below its panel say."""
    ends = {"s_in": 2.2, "s_out": 1.5, "input_norm": 6.5, "input_rms": 0.33}

    def needed(w: float, layer: int) -> dict[str, float]:
        names, made = bounds.nested_bounds(NormClass(depth=2, width=16, s_1=w**0.5, s_2=w**0.5, **ends), layer)
        return dict(zip(names, samples_needed(made, 0.05 / 2).tolist(), strict=True))

    top = needed(5, 2)
    assert 8e3 < top["1 fixed direction"] < 1.5e4
    assert 2e7 < top["all weights free"] < 5e7
    weights = 16 * 9 + 3 * 2 * 16 * 16 + 4 * 16
    assert weights == pytest.approx(1700, rel=0.05)
    spent = 2 * top["all weights free"] * 0.025**2 / weights  # nats a weight
    assert spent == pytest.approx(20, rel=0.2)
    weak = needed(0.05, 2)
    assert weak["old network frozen"] == weak["1 fixed direction"] < 1e4
    frozen = {w: needed(w, 1)["old network frozen"] for w in (0.5, 0.9, 1.1)}
    assert frozen[0.5] / needed(0.5, 2)["old network frozen"] == pytest.approx(20, abs=1.5)
    assert frozen[1.1] / frozen[0.9] == pytest.approx(1.1, abs=0.02)


def test_the_test_sets_of_lesson_12():
    """At Δ_R = 0.05 and δ = 0.05 route A refuses below 9600 test samples, with a free deviation below 2400."""

    def promised(route, test_size):
        return math.isfinite(bounds.promise_from(lambda n: 2 / n.sqrt(), 0.05, test_size, 0.05, route)[1])

    assert promised("A", 9600) and not promised("A", 9500)
    assert promised("B'", 2400) and not promised("B'", 2390)


# ---- monotone


def rising(values):
    assert (values.diff(dim=0) >= 0).all() and values[-1] > values[0]


CURVES = {
    "depth": tensor(1.0, 2.0, 4.0, 8.0),
    "width": tensor(4.0, 8.0, 16.0, 64.0),
    "hidden": tensor(4.0, 8.0, 16.0, 64.0)[:, None],
    "in_dim": tensor(2.0, 8.0, 20.0),
    "n_classes": tensor(2.0, 8.0, 20.0),
    "s_in": tensor(0.5, 1.0, 2.0),
    "s_1": tensor(0.0, 0.3, 0.5, 1.5, 3.0)[:, None],
    "s_2": tensor(0.0, 0.3, 0.5, 1.5, 3.0)[:, None],
    "s_out": tensor(0.0, 0.5, 1.0, 2.0),
    "input_norm": tensor(1.0, 2.0, 4.0),
    "loss_range": tensor(1.0, 2.0),
}


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("bound, n", [(cover_bound, 1e7), (rademacher_bound, 1e18)])
def test_more_to_choose_from_costs_more(bound, n, name):
    net = replace(CLASS, depth=2, s_1=0.3, s_2=0.3)
    rising(bound(n, replace(net, **{name: CURVES[name]})))


@pytest.mark.parametrize("bound", [cover_bound, rademacher_bound])
def test_more_samples_larger_inputs_and_risk_cost_less(bound):
    net = replace(CLASS, depth=2, s_1=0.3, s_2=0.3)
    sizes = torch.logspace(2, 20, 50, dtype=F64)
    rising(bound(sizes, net).flip(0))
    rising(bound(1e16, replace(net, input_rms=tensor(1.0, 0.5, 0.1))))
    rising(bound(1e16, net, tensor(0.5, 0.05, 1e-6)))
    rising(bound(1e16, replace(net, s_1=1.5, s_2=1.0, eps=tensor(1e-1, 1e-3, 1e-5))))
    rising(bound(1e16, replace(net, row_in=None, inserted=1, s_2=tensor(0.1, 0.5, 1.5)[:, None])))


def test_frozen_bounds_are_monotone():
    sizes = torch.logspace(2, 10, 50, dtype=F64)
    for paired in (False, True):
        most = 8.0 if paired else None
        rising(frozen_class_bound(sizes, 1.0, 0.5, 16, 3.0, fresh_sample=True, feature_max=most).flip(0))
        rising(path_norm_bound(sizes, 1.0, 0.5, 16, fresh_sample=True, paired=paired).flip(0))
        rising(directions_bound(sizes, 4, 1.0, 0.5, 6.0, fresh_sample=True, paired=paired).flip(0))
    up = tensor(1.0, 2.0, 5.0)
    rising(frozen_class_bound(1e6, up, 0.5, 16, 3.0, fresh_sample=True))
    rising(frozen_class_bound(1e6, 1.0, up, 16, 3.0, fresh_sample=True))
    rising(frozen_class_bound(1e6, 1.0, 0.5, up, 3.0, fresh_sample=True))
    rising(path_norm_bound(1e6, 1.0, 0.5, up, fresh_sample=True))
    rising(directions_bound(1e6, up, 1.0, 0.5, 6.0, fresh_sample=True))
    rising(directions_bound(1e6, 3, up, 0.5, 6.0, fresh_sample=True))
    for function, more in ((frozen_class_bound, (1.0, 0.5, 16, 3.0)), (path_norm_bound, (1.0, 0.5, 16))):
        rising(function(1e6, *more, fresh_sample=True, fail_prob=tensor(0.5, 0.05, 1e-6)))
    for layer in (0, 1):
        rising(top_lipschitz(replace(CLASS, depth=2), layer, tensor(0.0, 0.1, 1.0), 1.0))


# ---- many at once


def test_everything_broadcasts():
    """n (3,1), width (2,) and depth (2,): the same numbers as one by one, depth cut off where a net ends."""
    n, width, depth, size = tensor([1e4], [1e6], [1e9]), tensor(8.0, 16.0), tensor(1.0, 5.0), tensor([0.2], [0.4])
    many = replace(CLASS, width=width, depth=depth, s_1=size)
    for bound in (cover_bound, rademacher_bound):
        together = bound(n, many, tensor(0.05, 0.01))
        assert together.shape == (3, 2)
        for i in range(3):
            for j in range(2):
                one = replace(CLASS, width=width[j].item(), depth=int(depth[j]), s_1=size[j, 0].item())
                torch.testing.assert_close(together[i, j], bound(n[i, 0], one, (0.05, 0.01)[j]))
    found = sensitivities(many)
    assert found.w_1.shape == (2, 5) and found.w_in.shape == (2,)
    assert (found.w_1[0, 1:] == 0).all() and (found.w_2[1] > 0).all()
    assert frozen_class_bound(n, 1.0, width / 16, width, 3.0, fresh_sample=True).shape == (3, 2)
    assert directions_bound(n, width, 1.0, width / 16, 3.0, fresh_sample=True).shape == (3, 2)
    assert path_norm_bound(n, 1.0, width / 16, width, fresh_sample=True).shape == (3, 2)
    assert top_lipschitz(replace(CLASS, s_1=size), 2, width / 100, 1.0).shape == (2,)


def test_blocks_may_differ():
    """Norms per block; a uniform class is the case of equal ones; the worst block alone is worse than the others."""
    sizes = tensor(0.1, 0.5, 0.3, 0.2)
    same = replace(CLASS, s_1=torch.full((4,), 0.3, dtype=F64))
    torch.testing.assert_close(cover_bound(1e6, same), cover_bound(1e6, replace(CLASS, s_1=0.3)))
    mixed = cover_bound(1e6, replace(CLASS, s_1=sizes))
    assert cover_bound(1e6, replace(CLASS, s_1=0.1)) < mixed < cover_bound(1e6, replace(CLASS, s_1=0.5))
    half = replace(CLASS, hidden=tensor(4.0, 8.0, 8.0, 4.0))
    assert cover_bound(1e6, replace(CLASS, hidden=4)) < cover_bound(1e6, half) < cover_bound(1e6, CLASS)


def slow_chain(net, depth):
    """ŝ_l and r_l of one class, block by block in Python numbers."""
    scale, rms = [math.hypot(net.input_rms, net.eps**0.5)], [net.input_rms]
    rms[0] /= scale[0] or 1
    for block in range(depth):
        low = max((1 - net.s_1[block].item() * net.s_2[block].item()) * rms[-1], 0, net.measured_rms[block].item())
        root = math.hypot(low, net.eps**0.5)
        scale.append(1.0 if net.inserted == block + 1 else root)
        rms.append(low if net.inserted == block + 1 else low / (root or 1))
    return scale, rms


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.3])
@pytest.mark.parametrize("depth", [1, 2, 3, 5, 8, 33, 64])
def test_the_chain_is_that_of_a_loop(depth, eps):
    """Blocks small and large, seen and unseen, one without N, an input that may vanish."""
    for seed in range(12):
        u = torch.rand(3, depth, dtype=F64, generator=compute.generator(100 * depth + seed))
        net = replace(
            CLASS,
            depth=depth,
            eps=eps,
            s_1=2 * u[0] if seed % 3 else u[0],
            s_2=torch.ones(depth, dtype=F64),
            measured_rms=torch.where(u[1] < 0.3, u[2], 0) if seed % 2 else torch.zeros(depth, dtype=F64),
            input_rms=0.0 if seed == 5 else 0.5,
            inserted=None if seed % 4 else 1 + seed % depth,
        )
        scale, rms = slow_chain(net, depth)
        found = lip_chain(net)
        torch.testing.assert_close(found.scale, tensor(*scale), rtol=1e-12, atol=0)
        torch.testing.assert_close(found.rms, tensor(*rms), rtol=1e-12, atol=0)


@pytest.mark.parametrize("loss_range", [1.0, 5.0])
def test_the_search_for_the_resolution_misses_nothing(loss_range):
    """All η of the grid, for sizes, norms and samples of all orders at once."""
    reach = torch.linspace(-40, 400, 23, dtype=F64)[:, None, None, None] - tensor(0.0, 3.0, 30.0)
    entries = torch.logspace(0, 7, 8, dtype=F64)[:, None, None].expand(-1, 1, 3)
    n, fail = torch.logspace(0, 15, 16, dtype=F64), tensor(0.05)
    found = bounds._cover(reach, entries, n, fail, tensor(loss_range)[0])
    eta = bounds.RESOLUTIONS
    size = (entries[..., None] * torch.logaddexp(reach[..., None] - eta.log(), tensor(0.0))).sum(-2)
    every = 2 * eta + loss_range * ((size + math.log(2 / 0.05)) / (2 * n[:, None])).sqrt()
    torch.testing.assert_close(found, every.amin(-1), rtol=1e-12, atol=0)
    assert (every.argmin(-1) == 0).any() and (every.argmin(-1) == 160).any()
    for alone in (0, 7, 15):  # and where few of them are looked at together
        one = bounds._cover(reach[5, 0], entries[3], n[alone], fail, tensor(loss_range)[0])
        torch.testing.assert_close(one, every[5, 3, alone].amin(-1, keepdim=True), rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [0.5, 1.01, 1.5])
@pytest.mark.parametrize("field", ["s_1", "eps", "input_rms", "measured_rms", "s_out"])
def test_gradients_are_those_of_differences(field, size):
    """Also where a block may cancel its input, and nothing is infinite."""
    values = {"s_1": size, "eps": 1e-3, "input_rms": 0.3, "measured_rms": 0.2, "s_out": 2.0}
    for bound in (cover_bound, rademacher_bound):

        def at(value, bound=bound):
            return bound(1e12, replace(CLASS, s_2=1.0, **values | {field: value}))

        leaf = torch.tensor(values[field], dtype=F64, requires_grad=True)
        (slope,) = torch.autograd.grad(at(leaf), leaf)
        h = 1e-6 * values[field]
        ahead, back = (at(values[field] + sign * h) for sign in (1, -1))
        assert slope.item() == pytest.approx((ahead - back).item() / (2 * h), rel=2e-3, abs=1e-9)


def test_float32_and_gradients():
    net = replace(CLASS, s_1=torch.tensor(0.3, requires_grad=True))
    value = cover_bound(1e6, net)
    assert value.dtype == torch.float32
    (slope,) = torch.autograd.grad(value, net.s_1)
    step = cover_bound(1e6, replace(CLASS, s_1=0.31)) - cover_bound(1e6, replace(CLASS, s_1=0.29))
    assert slope.item() == pytest.approx(step.item() / 0.02, rel=0.02)


# ---- collapse


def test_collapse_is_infinite_and_says_why():
    assert collapse(CLASS) == ""
    large = replace(CLASS, s_1=tensor(0.5, 2.0, 0.5, 0.5), s_2=0.6)
    sentence = "block 2 has s_1*s_2 = 1.2 >= 1 and may cancel its input: "
    assert collapse(large) == sentence + "only eps bounds its Lipschitz constant"
    assert cover_bound(1e6, large).isfinite() and rademacher_bound(1e6, large).isfinite()
    endless = replace(large, eps=0.0)
    reason = "eps = 0 and nothing bounds its Lipschitz constant, the bounds are infinite"
    assert collapse(endless) == sentence + reason
    found = sensitivities(endless)
    assert found.w_in == found.w_1[0] == found.w_1[1] == math.inf and found.w_1[2] == math.inf
    assert found.w_out.isfinite()
    for value in (cover_bound(1e6, endless), rademacher_bound(1e6, endless), top_lipschitz(endless, 0)):
        assert value == math.inf
    assert top_lipschitz(endless, 4).isfinite()
    assert collapse(replace(endless, input_rms=0.0)).startswith("input_rms = 0: W_in x may vanish: eps = 0 and nothing")
    batch = replace(CLASS, s_1=tensor([0.5], [2.0]), eps=0.0)
    assert collapse(batch).startswith("element [1]: block 1 has s_1*s_2 = 1.095")
    assert cover_bound(1e6, batch).isfinite().tolist() == [True, False]


def test_deep_collapsed_chains_do_not_overflow():
    """depth 200, ε = 1e-5: ΠΒ is about 1e540; D1 sees its logarithm, and a sensitivity is infinite without a word."""
    net = replace(CLASS, depth=200, s_1=1.5, s_2=1.0)
    assert sensitivities(net).w_in == math.inf and lip_chain(net).log_tail[0] > 1200
    expected = 0.5 * cover_bound(1e6, net)
    torch.testing.assert_close(cover_bound(4e6, net), expected, rtol=0.01, atol=0)
    assert cover_bound(1e14, net) < 0.01


def test_a_zero_matrix_beats_an_infinite_chain():
    net = replace(CLASS, s_1=tensor(2.0, 2.0, 2.0, 0.0), s_2=1.0, s_out=0.0, eps=0.0)
    assert sensitivities(net).w_in == 0
    assert cover_bound(1e6, net).isfinite() and top_lipschitz(net, 0) == 0


# ---- the routes


def test_route_a_failure_exceeds_the_exact_tail():
    """Differences ±1 (B = 1) of mean −Δ: P(mean over T > −Δ/2) from the binomial law, and for the free deviation."""
    for size, margin in ((50, 0.3), (400, 0.1), (4000, 0.05), (100, 0.02)):
        tail = binom.sf(math.floor(size * (1 - margin / 2) / 2 + 1e-9), size, (1 - margin) / 2)
        limit = route_a_failure(margin, size).item()
        assert tail <= limit and math.log(limit) >= 0.2 * math.log(tail) - 1
        for delta in (0.2, 0.01):
            u = bounds.hoeffding_deviation(size, delta).item()
            tail = binom.sf(math.floor(size * (1 - margin + u) / 2 + 1e-9), size, (1 - margin) / 2)
            assert tail <= delta


def test_failure_and_size_are_inverse():
    for margin in (0.0726, 0.0374):
        for delta in (0.05, 1e-4):
            size = hoeffding_test_size(margin, delta, 2.0)
            assert route_a_failure(margin, size, 2.0) <= delta < route_a_failure(margin, size - 1, 2.0)
    assert hoeffding_test_size(0.0, 0.05) == math.inf and route_a_failure(0.0, 1e9) == 1


def corners(eps_train, eps_test, seed):
    """Risks at the extremes of what the uniform events allow: (population old, L, L_S, L_T of jumpboard and new)."""
    signs = torch.cartesian_prod(*[tensor(-1.0, 0.0, 1.0)] * 4)
    population = torch.rand(2, dtype=F64, generator=compute.generator(seed))
    train = population + eps_train * signs[:, :2]
    test = population + eps_test * signs[:, 2:]
    return population, train, test


@pytest.mark.parametrize("seed", range(5))
def test_routes_hold_at_every_corner_and_are_attained(seed):
    """Whatever the risks: with |L − L_S| ≤ ε_M and |L − L_T| ≤ ε_K the inequalities hold, with equality somewhere."""
    eps_train, eps_test, old, test_old = 0.03, 0.05, 0.6, 0.58
    population, train, test = corners(eps_train, eps_test, seed)
    erm_gain, margin = train[:, 0] - train[:, 1], old - population[0]
    if margin >= 0:
        slack = bounds.population_bound(old, margin, erm_gain, eps_train) - population[1]
        assert slack.min().item() == pytest.approx(0, abs=1e-12)
    slack = route_b(test_old, test_old - test[:, 0], erm_gain, eps_train, eps_test) - test[:, 1]
    assert slack.min().item() == pytest.approx(0, abs=1e-12)


def test_how_the_routes_relate():
    old, margin, gain, eps, size, delta = 0.5, 0.07, 0.02, 0.01, 1e5, 0.05
    u = math.sqrt(2 * math.log(1 / delta) / size)
    assert route_a_free(old, margin, gain, eps, size, delta).item() == pytest.approx(old - margin - gain + 2 * eps + u)
    assert route_b_prime(old, margin, gain, eps, size, delta).item() == pytest.approx(old - margin - gain + 2 * eps + u)
    # at the test size that route A asks for, the free deviation costs exactly half of the margin
    needed = 8 * math.log(1 / delta) / margin**2
    free = route_a_free(old, margin, gain, eps, needed, delta)
    torch.testing.assert_close(free, route_a(old, margin, gain, eps))


@pytest.mark.parametrize("name", FLIPS)
def test_where_the_bounds_flip_in_the_notes(name):
    """Section e: two numbers that the notes leave out, λbφ_max and bφ̄, give twelve that they state."""
    margin, bound, population, test = FLIPS[name]
    assert samples_needed(bound, margin / 2).item() == pytest.approx(population, rel=0.06)
    found = samples_needed(bound, margin / 4)
    assert found.item() == pytest.approx(test, rel=0.06)
    # route B with K_t = n, Δ^R_test = Δ_R and no ERM gain starts to promise something at the same n
    for factor, better in ((1.01, True), (0.99, False)):
        eps = bound(found * factor)
        assert (route_b(0.5, margin, 0.0, eps, eps) < 0.5) == (route_a(0.5, margin, 0.0, eps) < 0.5) == better


@pytest.mark.parametrize("layer, expected", [(2, 3.0e7), (1, 1.3e8)])
def test_where_the_full_class_flips_for_a_trained_network(layer, expected):
    """Section e, D = 2, d = 16, full class: trained norms, the largest margin along a ridge direction; to a factor 2
    (other draws of teacher and students).
    """
    found = full_class(layer, 0)
    assert expected / 2 < found["n"] < 2 * expected
    assert found["large"]  # trained blocks have s > 1


@pytest.mark.parametrize("route", bounds.ROUTES)
def test_promise_from_is_where_the_routes_cross_zero(route):
    """Just above the n, the right-hand side of the route lies below the old risk; just below, not."""
    size, margin, delta = tensor(1e2, 1e5, 1e7), 0.07, 0.02

    def bound(n):
        return directions_bound(n, 4, 1.0, 1.0, 3.0, fresh_sample=True, fail_prob=delta)

    def promised(n):
        eps = bound(n)
        if route == "A":
            return torch.where(route_a_failure(margin, size) <= delta, route_a(0.0, margin, 0.0, eps), math.inf)
        if route == "B":
            return route_b(0.0, margin, 0.0, eps, bound(size))
        return route_a_free(0.0, margin, 0.0, eps, size, delta)

    population, test = bounds.promise_from(bound, margin, size, delta, route)
    assert population.tolist() == pytest.approx([samples_needed(bound, margin / 2).item()] * 3)
    assert test[0] == math.inf and test[1:].isfinite().any() and (test >= population).all()
    for factor, holds in ((1.001, True), (0.999, False)):
        at = torch.where(test.isfinite(), factor * test, 1e15)
        assert ((promised(at) < 0) == (test.isfinite() & holds)).all()


def test_b_prime_in_the_notes():
    """Frozen class, K_t = n: 3.2e5 instead of route B's 1.1e6."""

    def spent(n):
        eps = frozen_class_bound(n, 1.0, 0.49, 16, SPREAD, fresh_sample=True)
        return route_b_prime(0.0, 0.0, 0.0, eps, n, 0.05)

    assert samples_needed(spent, MARGIN).item() == pytest.approx(3.2e5, rel=0.03)


def test_hoeffding_numbers_of_the_notes():
    assert hoeffding_test_size(tensor(0.0726, 0.0374), 0.05).tolist() == [4547, 17134]
    assert route_a_failure(tensor(0.0726, 0.0374), 1e4).tolist() == pytest.approx([0.0014, 0.17], rel=0.03)


def test_samples_needed_against_closed_forms():
    target = tensor([0.3, 0.01], [1e-3, 1e-9])
    found = samples_needed(lambda n: 2 / n.sqrt(), target, high=1e16)
    assert found.flatten().tolist()[:3] == pytest.approx([44.444, 4e4, 4e6], rel=1e-4)
    assert found[1, 1] == math.inf
    assert samples_needed(lambda n: 0 * n, 0.1, low=7.0) == pytest.approx(7.0)
    size = tensor(1.0, 3.0)
    found = samples_needed(lambda n: size / n, 0.5)
    assert found.tolist() == pytest.approx([2, 6], rel=1e-4)
    net = replace(CLASS, s_1=tensor([0.2], [2.0]), eps=0.0)
    found = samples_needed(lambda n: cover_bound(n, net), 0.1)
    assert found[0].isfinite() and found[1] == math.inf
    for factor, holds in ((1.001, True), (0.999, False)):
        assert (cover_bound(factor * found[0], replace(net, s_1=0.2)) <= 0.1) == holds


# ---- the identity


def test_decomposition_is_exact():
    risks = torch.rand(5, 1000, dtype=F64, generator=compute.generator(0))
    change = decompose_test_change(*risks)
    old, jump, new, train_jump, train_new = risks
    assert (change.jumpboard + change.training + change.gap - change.total).abs().max() <= 1e-15
    assert torch.equal(change.total, new - old) and torch.equal(change.jumpboard, jump - old)
    # in the notes: (8000, 60) and (500, 60)
    for parts, total in (((-0.0139, -0.0744, 0.0157), -0.0726), ((0.010, -0.423, 0.886), 0.473)):
        jump = 0.6 + parts[0]
        new = jump + parts[1] + parts[2]
        change = decompose_test_change(0.6, jump, new, 0.5, 0.5 + parts[1])
        assert change.total.item() == pytest.approx(total, abs=1e-9)
        assert change.gap.item() == pytest.approx(parts[2], abs=1e-9)


# ---- bad input

FRESH = {"fresh_sample": True}
ELEMENTWISE = {  # every function of numbers that broadcast, with a value for each argument
    "cross_entropy_range": (bounds.cross_entropy_range, {"width": 4.0, "n_classes": 3.0, "s_out": 1.0}),
    "frozen_class_bound": (
        lambda **named: frozen_class_bound(**named, fresh_sample=True),
        {"n": 1e4, "radius": 1.0, "lipschitz": 0.5, "width": 16.0, "feature_rms": 3.0, "feature_max": 4.0}
        | {"fail_prob": 0.05},
    ),
    "path_norm_bound": (
        lambda **named: path_norm_bound(**named, fresh_sample=True),
        {"n": 1e4, "path_norm": 1.0, "lipschitz": 0.5, "width": 16.0, "fail_prob": 0.05, "loss_range": 1.0},
    ),
    "directions_bound": (
        lambda **named: directions_bound(**named, fresh_sample=True),
        {"n": 1e4, "directions": 2.0, "radius": 1.0, "lipschitz": 0.5, "feature_max": 4.0, "fail_prob": 0.05}
        | {"loss_range": 1.0},
    ),
    "population_bound": (
        bounds.population_bound,
        {"old": 0.5, "margin": 0.1, "erm_gain": 0.0, "eps_train": 0.1},
    ),
    "route_a": (route_a, {"test_old": 0.5, "margin": 0.1, "erm_gain": 0.0, "eps_train": 0.1}),
    "route_a_failure": (route_a_failure, {"margin": 0.1, "test_size": 100.0, "loss_range": 1.0}),
    "route_a_free": (
        route_a_free,
        {"test_old": 0.5, "margin": 0.1, "erm_gain": 0.0, "eps_train": 0.1, "test_size": 9.0, "fail_prob": 0.1}
        | {"loss_range": 1.0},
    ),
    "route_b": (
        route_b,
        {"test_old": 0.5, "test_margin": 0.1, "erm_gain": 0.0, "eps_train": 0.1, "eps_test": 0.1},
    ),
    "route_b_prime": (
        route_b_prime,
        {"test_old": 0.5, "test_margin": 0.1, "erm_gain": 0.0, "eps_train": 0.1, "test_size": 9.0, "fail_prob": 0.1}
        | {"loss_range": 1.0},
    ),
    "hoeffding_deviation": (bounds.hoeffding_deviation, {"test_size": 9.0, "fail_prob": 0.1, "loss_range": 1.0}),
    "hoeffding_test_size": (hoeffding_test_size, {"margin": 0.1, "delta": 0.1, "loss_range": 1.0}),
    "promise_from": (
        lambda **named: bounds.promise_from(lambda n: 2 / n.sqrt(), **named)[1],
        {"margin": 0.05, "test_size": 1e6, "fail_prob": 0.05, "loss_range": 1.0},
    ),
    "decompose_test_change": (
        lambda **named: decompose_test_change(**named).gap,
        dict.fromkeys(["test_old", "test_jump", "test_new", "train_jump", "train_new"], 0.5),
    ),
    "top_lipschitz": (lambda **named: top_lipschitz(CLASS, 2, **named), {"radius": 1.0, "feature_max": 0.1}),
    "cover_bound": (lambda n, fail_prob: cover_bound(n, CLASS, fail_prob), {"n": 1e4, "fail_prob": 0.05}),
    "rademacher_bound": (lambda n, fail_prob: rademacher_bound(n, CLASS, fail_prob), {"n": 1e4, "fail_prob": 0.05}),
}
elementwise = pytest.mark.parametrize("name", ELEMENTWISE)


@elementwise
def test_every_argument_broadcasts(name):
    """Each in turn as (2, 1) beside all others as (3,): each place has the value of numbers alone."""
    function, values = ELEMENTWISE[name]
    alone = function(**values)
    for one in values:
        mixed = {key: torch.full((2, 1) if key == one else (3,), value, dtype=F64) for key, value in values.items()}
        found = function(**mixed)
        assert found.shape == ((2, 3) if len(values) > 1 else (2, 1))
        torch.testing.assert_close(found, alone.expand(2, 3), rtol=1e-4 if name == "promise_from" else 1e-9, atol=0)


@elementwise
def test_shapes_that_do_not_broadcast_are_refused_by_name(name):
    function, values = ELEMENTWISE[name]
    for one, other in itertools.permutations(values, 2):
        shapes = {one: torch.full((2,), values[one]), other: torch.full((3,), values[other])}
        with pytest.raises(ValueError, match="these shapes do not broadcast: ") as refused:
            function(**values | shapes)
        assert f"{one} (2,)" in str(refused.value) and f"{other} (3,)" in str(refused.value)


@elementwise
def test_no_number_may_be_nan_or_a_list(name):
    function, values = ELEMENTWISE[name]
    for one in values:
        with pytest.raises(ValueError, match=rf"{one}\[1\] = nan"):
            function(**values | {one: tensor(values[one], math.nan)})
        with pytest.raises(TypeError, match=f"{one} must be a number or a torch tensor"):
            function(**values | {one: [values[one]]})


@pytest.mark.parametrize("field", [f.name for f in fields(NormClass) if f.name not in ("inserted",)])
def test_every_field_of_a_class_is_admitted_by_name(field):
    """A wrong shape, an empty batch, NaN and a list, for both bounds."""
    value = getattr(CLASS, field) or 1.0
    own = (5, 1) if field in bounds.PER_BLOCK else (5,)
    for bound in (cover_bound, rademacher_bound):
        with pytest.raises(ValueError, match=rf"do not broadcast: .*{field} \(5,\).*n \(3,\)"):
            bound(torch.full((3,), 1e4, dtype=F64), replace(CLASS, **{field: torch.full(own, value, dtype=F64)}))
        with pytest.raises(ValueError, match=rf"{field} must not be empty, got shape \(0,.*\)"):
            bound(1e4, replace(CLASS, **{field: torch.ones(0, *own[1:], dtype=F64)}))
        with pytest.raises(ValueError, match=rf"{field}.* nan"):
            bound(1e4, replace(CLASS, **{field: math.nan}))
        with pytest.raises(TypeError, match=f"{field} must be a number or a torch tensor"):
            bound(1e4, replace(CLASS, **{field: [1.0]}))


def test_hoeffding_in_float32_is_that_in_float64():
    for scale in (1e-25, 1e25):  # a margin and a range in any unit
        margin, b = torch.tensor(0.0726 * scale), torch.tensor(scale)
        assert hoeffding_test_size(margin, 0.05, b).item() == pytest.approx(4547, rel=1e-3)
        assert route_a_failure(margin, 1e4, b).item() == pytest.approx(0.00138, rel=1e-2)


REFUSED = {
    "fresh_sample must be True: a sample that trained the old model also chose the class around it, and a bound for a "
    "fixed class does not apply; use cover_bound over the full class, or split the sample": lambda: frozen_class_bound(
        1e4, 1.0, 0.5, 16, 3.0, fresh_sample=False
    ),
    "fresh_sample must be True: a sample that trained": lambda: path_norm_bound(1e4, 1.0, 0.5, 16, fresh_sample=False),
    "fresh_sample must be True: .* split the": lambda: directions_bound(1e4, 1, 1.0, 0.5, 16, fresh_sample=False),
    "fresh_sample must be True or False, got 1": lambda: frozen_class_bound(1e4, 1.0, 0.5, 16, 3.0, fresh_sample=1),
    "n must be positive and finite, got 0.0": lambda: cover_bound(0.0, CLASS),
    r"n\[1\] = nan must be positive": lambda: rademacher_bound(tensor(1.0, math.nan), CLASS),
    r"fail_prob must lie in \(0, 1\), got 0.0": lambda: cover_bound(10.0, CLASS, 0.0),
    r"fail_prob\[1\] = 1.0 must lie in \(0, 1\)": lambda: bounds.hoeffding_deviation(10.0, tensor(0.5, 1.0)),
    r"delta must lie in \(0, 1\), got 1.5": lambda: hoeffding_test_size(0.1, 1.5),
    "depth must be a whole number >= 1, got 0.0": lambda: cover_bound(10.0, replace(CLASS, depth=0)),
    "width must be a whole number >= 1, got 2.5": lambda: lip_chain(replace(CLASS, width=2.5)),
    r"hidden\[0\] = 0.0 must be a whole number >= 1|hidden must be .*, got 0.0": lambda: lip_chain(
        replace(CLASS, hidden=0)
    ),
    "input_norm must be positive and finite, got 0": lambda: lip_chain(replace(CLASS, input_norm=torch.tensor(0.0))),
    r"s_out must lie in \[0, inf\), got nan": lambda: lip_chain(replace(CLASS, s_out=math.nan)),
    "n_classes must be a whole number >= 2, got 1.0": lambda: sensitivities(replace(CLASS, n_classes=1)),
    r"s_1 must lie in \[0, inf\), got -1.0": lambda: lip_chain(replace(CLASS, s_1=-1.0)),
    r"eps must lie in \[0, inf\), got -1e-05": lambda: lip_chain(replace(CLASS, eps=-1e-5)),
    "input_norm must be positive and finite, got 0.0": lambda: lip_chain(replace(CLASS, input_norm=0.0)),
    "the last axis of s_1 is that of the blocks and must be 1 or depth = 4, got 3": lambda: lip_chain(
        replace(CLASS, s_1=tensor(0.1, 0.2, 0.3))
    ),
    "the last axis of s_2 .* must be 1, because depth varies, got 4": lambda: lip_chain(
        replace(CLASS, depth=tensor(2.0, 4.0), s_2=tensor(0.1, 0.2, 0.3, 0.4))
    ),
    r"inserted must be None or, at one depth, a block in \[1, 4\], got 5": lambda: lip_chain(
        replace(CLASS, inserted=5)
    ),
    r"inserted must be .*, got 1": lambda: lip_chain(replace(CLASS, depth=tensor(2.0, 4.0), inserted=1)),
    r"these shapes do not broadcast: .*width \(2,\)": lambda: lip_chain(
        replace(CLASS, width=tensor(1.0, 2.0), s_in=tensor(1.0, 2.0, 3.0))
    ),
    "net must be a NormClass, got float": lambda: cover_bound(10.0, 1.0),
    r"w_1 must have at least 3 axes and one entry, got \(3, 3\)": lambda: norm_class(
        torch.eye(3), torch.eye(3), torch.eye(3)[None], torch.eye(3), torch.ones(2, 3)
    ),
    r"w_2 must end in \(1, 3, 4\) to fit w_in \(3, 2\) and w_1 \(1, 4, 3\), got \(1, 3, 3\)": lambda: norm_class(
        torch.ones(3, 2), torch.ones(1, 4, 3), torch.ones(1, 3, 3), torch.ones(2, 3), torch.ones(5, 2)
    ),
    r"x must have at least 2 axes and one entry, got \(0, 3\)": lambda: norm_class(
        torch.eye(3), torch.eye(3)[None], torch.eye(3)[None], torch.eye(3), torch.ones(0, 3)
    ),
    r"layer must be a block in \[0, depth = 4\], got 5": lambda: top_lipschitz(CLASS, 5),
    "depth must be the same for the whole batch": lambda: top_lipschitz(replace(CLASS, depth=tensor(2.0, 4.0)), 1),
    r"radius must lie in \[0, inf\), got -1.0": lambda: frozen_class_bound(10.0, -1.0, 0.5, 16, 3.0, **FRESH),
    "feature_max must be >= feature_rms, got 1.0": lambda: frozen_class_bound(
        10.0, 1.0, 0.5, 16, 3.0, **FRESH, feature_max=1.0
    ),
    "directions must be a whole number >= 1, got 0.0": lambda: directions_bound(10.0, 0, 1.0, 0.5, 3.0, **FRESH),
    r"margin must lie in \[0, inf\), got -0.1": lambda: route_a(0.5, -0.1, 0.0, 0.1),
    "test_size must be positive and finite, got 0.0": lambda: route_a_failure(0.1, 0),
    "eps_train must be >= 0, got -0.1": lambda: route_a(0.5, 0.1, 0.0, -0.1),
    "test_margin must be finite, got nan": lambda: route_b(0.5, math.nan, 0.0, 0.1, 0.1),
    "target must be positive and finite, got 0.0": lambda: samples_needed(lambda n: 1 / n, 0.0),
    "old must be a NormClass, got float": lambda: bounds.nested_bounds(1.0, 1, 1.0),
    "new must be a NormClass, got float": lambda: bounds.nested_bounds(CLASS, 1, 1.0, new=1.0),
    "layer must be a whole number, got '1'": lambda: bounds.nested_bounds(CLASS, "1", 1.0),
    "directions must be several whole numbers, .*, got 3": lambda: bounds.nested_bounds(CLASS, 1, 1.0, directions=3),
    "directions must hold at least one": lambda: bounds.nested_bounds(CLASS, 1, 1.0, directions=()),
    r"x must have at least 2 axes and one entry, got \(\)": lambda: norm_class(
        torch.eye(3), torch.eye(3)[None], torch.eye(3)[None], torch.eye(3), 1.0
    ),
    "target must not be empty": lambda: samples_needed(lambda n: 1 / n, torch.ones(0)),
    r"bound\(n\).* = nan must be a number|bound\(n\) must be a number, got nan": lambda: samples_needed(
        lambda n: (n - 10).sqrt(), 0.1
    ),
    "bound must be a function of n, got float": lambda: samples_needed(0.5, 0.1),
    r"bound\(n\) must be a tensor for a tensor n, got float": lambda: samples_needed(lambda n: 0.5, 0.1),
    r"do not broadcast: bound\(n\) \(2,\), target \(3,\)": lambda: samples_needed(
        lambda n: tensor(1.0, 2.0) / n, tensor(0.1, 0.2, 0.3)
    ),
    "low must be a number or a torch tensor, got str": lambda: samples_needed(lambda n: 1 / n, 0.1, low="1"),
    r"move must lie in \[0, inf\), got nan": lambda: bounds.nested_bounds(CLASS, 1, math.nan),
    r"directions\[1\] must be >= 1, got 0": lambda: bounds.nested_bounds(CLASS, 1, 1.0, directions=(1, 0)),
    r"feature_max\[1\] = 2.0 must be >= feature_rms": lambda: frozen_class_bound(
        10.0, 1.0, 0.5, 16, 3.0, **FRESH, feature_max=tensor(4.0, 2.0)
    ),
    "route must be one of A, B, B', got 'C'": lambda: bounds.promise_from(lambda n: 1 / n, 0.1, 10, route="C"),
    "margin must be positive and finite, got 0.0": lambda: bounds.promise_from(lambda n: 1 / n, 0.0, 10),
    r"typical must lie in \(0, 1\], got 0.0": lambda: bounds.nested_bounds(CLASS, 1, 1.0, 0.0),
    "low and high must be numbers with 0 < low < high": lambda: samples_needed(lambda n: 1 / n, 0.1, low=10, high=2),
    "test_new must be finite, got inf": lambda: decompose_test_change(0.5, 0.5, math.inf, 0.5, 0.5),
    r"n_classes must lie in \[2, inf\), got 1.0": lambda: bounds.cross_entropy_range(4, 1, 1.0),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_bad_input_is_refused_in_a_sentence(sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        REFUSED[sentence]()
