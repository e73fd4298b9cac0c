"""The network against torch.nn, stacks against single nets, insertion, and the table of starts, live and dead."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from labkit import training
from labkit.depth.jumpboard import activation_gradient
from labkit.depth.network import (
    STARTS,
    Block,
    ConvPostNormResNet,
    PostNormResNet,
    block_names,
    fit,
    insert_block,
    with_block,
)
from labkit.depth.normalization import layer_norm, rms_norm
from labkit.training import SGD
from tests.depth.conftest import generators, randn

F64 = torch.float64
X, Y = randn(40, 5), torch.arange(40) % 3
IMAGES = randn(12, 2, 6, 6, seed=1)


def dense(depth=3, n_nets=3, eps=1e-3, **more):
    return PostNormResNet(5, 8, depth, 6, 3, eps, generators(n=n_nets), **more)


def conv(depth=2, n_nets=3, eps=1e-3, **more):
    return ConvPostNormResNet(2, 4, depth, 5, 3, eps, generators(n=n_nets), **more)


KINDS = {"dense": (dense, X), "conv": (conv, IMAGES)}
kinds = pytest.mark.parametrize("kind", KINDS)


# ---- what it computes


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "linear"])
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_forward_is_the_formula(activation, norm):
    model = dense(activation=activation, norm=norm)
    act = {"relu": torch.relu, "tanh": torch.tanh, "gelu": nn.functional.gelu, "linear": lambda z: z}[activation]
    normalize = {"rms": rms_norm, "layer": layer_norm}[norm]
    for net in range(3):
        p = {name: value[net] for name, value in model.params.items()}
        layers = [normalize(X @ p["in"].T, 1e-3)]
        for i in (1, 2, 3):
            z = layers[-1]
            layers.append(normalize(z + act(z @ p[f"w1.{i}"].T) @ p[f"w2.{i}"].T, 1e-3))
        torch.testing.assert_close(model(X)[net], layers[-1] @ p["out"].T)
        for i in (0, 1, 2, 3):
            torch.testing.assert_close(model.bottom(X, i)[net], layers[i])


def test_images_go_through_convolutions_of_torch_nn():
    """Channels normalized at each position; padding keeps the size; the readout sees the mean over positions."""
    model = conv()
    for net in range(3):
        p = {name: value[net] for name, value in model.params.items()}

        def move(z, weight):
            layer = nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1, bias=False)
            return nn.functional.conv2d(z, weight, padding=layer.padding)

        def normalize(u):
            return rms_norm(u.movedim(1, -1), 1e-3).movedim(-1, 1)

        z = normalize(move(IMAGES, p["in"]))
        for i in (1, 2):
            z = normalize(z + move(move(z, p[f"w1.{i}"]).relu(), p[f"w2.{i}"]))
        torch.testing.assert_close(model.bottom(IMAGES, 2)[net], z.movedim(1, -1))
        torch.testing.assert_close(model(IMAGES)[net], z.mean((2, 3)) @ p["out"].T)


@kinds
def test_bottom_then_top_is_the_network(kind):
    make, x = KINDS[kind]
    model = make()
    for layer in range(model.depth + 1):
        torch.testing.assert_close(model.top(model.bottom(x, layer), layer), model(x), rtol=1e-12, atol=1e-12)
    z = model.bottom(x, 1)
    h = model.residual(z, 2)
    torch.testing.assert_close(rms_norm(z + h, 1e-3), model.bottom(x, 2))


@kinds
def test_a_net_does_not_depend_on_the_others(kind):
    make, x = KINDS[kind]
    three, one = make(), replace(make(n_nets=1), params={k: v[1:2] for k, v in make().params.items()})
    torch.testing.assert_close(three(x)[1:2], one(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(three.nets([1])(x), one(x), rtol=0, atol=0)
    each = torch.stack([x, x + 1, x - 1])
    torch.testing.assert_close(three(each)[1], three(x + 1)[1], rtol=1e-12, atol=1e-12)


def test_relu_without_biases_is_blind_to_the_size_of_its_input():
    model = dense(eps=0.0)
    torch.testing.assert_close(model(3 * X), model(X))
    z = model.bottom(X, 1)
    torch.testing.assert_close(model.top(7 * z, 1), model.top(z, 1))


def test_initial_weights_have_the_variances_that_are_promised():
    model = PostNormResNet(50, 200, 4, 300, 40, generators=generators(n=2))
    for name, std in (("in", 50**-0.5), ("w1.2", 200**-0.5 * 2**0.5), ("w2.3", 0.5 * 300**-0.5), ("out", 200**-0.5)):
        n = model.params[name].numel()
        assert model.params[name].std().item() == pytest.approx(std, rel=4 / math.sqrt(2 * n))
    plain = PostNormResNet(50, 200, 4, 300, 40, residual_std=1.0)
    assert plain.params["w2.1"].std().item() == pytest.approx(300**-0.5, rel=0.02)


def test_least_rms_is_what_enters_each_norm():
    model = insert_block(dense(), 1, 4)
    z = model.bottom(X, 0)
    u = z + model.residual(z, 1)
    found = model.least_rms(X)
    assert found.shape == (3, 5) and found[:, 2].isinf().all()
    torch.testing.assert_close(found[:, 1], u.square().mean(-1).sqrt().amin(1))
    torch.testing.assert_close(found[:, 0], (X @ model.params["in"].mT).square().mean(-1).sqrt().amin(1))
    assert conv().least_rms(IMAGES).shape == (3, 3)


# ---- insertion


@pytest.mark.parametrize("eps", [0.0, 1e-5, 1e-2, 1.0])
@pytest.mark.parametrize("init", ["zero_out", "zero_in", "zero_both", "gate"])
@kinds
def test_insertion_keeps_the_function_for_every_eps(kind, init, eps):
    make, x = KINDS[kind]
    old = make(eps=eps)
    for layer in range(old.depth + 1):
        new = insert_block(old, layer, 7, init)
        assert new.depth == old.depth + 1 and new.blocks[layer].hidden == 7
        assert torch.equal(new(x), old(x))
        assert torch.equal(new.bottom(x, layer + 1), old.bottom(x, layer))


@kinds
def test_a_normed_insertion_keeps_it_only_for_eps_0(kind):
    make, x = KINDS[kind]
    for eps in (0.0, 1e-2):  # a ReLU top would hide it: it hardly sees the size of z
        old = make(eps=eps, activation="tanh")
        new = insert_block(old, 1, 7, normed=True)
        expected = old.top(rms_norm(old.bottom(x, 1), eps), 1)
        torch.testing.assert_close(new(x), expected, rtol=1e-12, atol=1e-12)
        moved = (new(x) - old(x)).abs().max()
        assert moved < 1e-12 if eps == 0 else moved > 1e-5


@kinds
def test_later_blocks_move_up_and_the_old_model_stays(kind):
    make, x = KINDS[kind]
    old = make()
    before = old(x)
    new = insert_block(old, 1, 7, "random", generators(50))
    assert torch.equal(new.params["w1.3"], old.params["w1.2"]) and torch.equal(new.params["w1.1"], old.params["w1.1"])
    assert old.depth == new.depth - 1 and torch.equal(old(x), before)
    z = old.bottom(x, 1)
    torch.testing.assert_close(new(x), old.top(z + new.residual(z, 2), 1), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(new(x), before)


def test_what_is_drawn_comes_from_its_generators():
    one, two = (insert_block(dense(), 1, 4, generators=generators(first)) for first in (50, 51))
    assert torch.equal(one.params["w1.2"][1:], two.params["w1.2"][:2])
    default = insert_block(dense(), 1, 4).params["w1.2"]
    wide = insert_block(dense(), 1, 9).params["w1.2"]
    assert torch.equal(wide[:, :4], default)  # nested features: a wider block knows what a narrower one does
    assert not torch.equal(default[0, 0, :5], dense().params["in"][0, 0, :5] * math.sqrt(2 * 5 / 8))


LIVE = {  # (start, activation): does the gradient with respect to the block vanish?
    ("zero_out", "relu"): True,
    ("zero_out", "tanh"): True,
    ("zero_both", "relu"): False,
    ("zero_both", "tanh"): False,
    ("zero_in", "tanh"): True,
    ("zero_in", "relu"): False,
    ("zero_both", "sigmoid"): True,
    ("gate", "relu"): True,
}


@pytest.mark.parametrize(("init", "activation"), LIVE)
@kinds
def test_dead_starts_never_move_and_live_ones_descend(kind, init, activation):
    """60 steps of gradient descent on the block alone: exactly nothing, or less loss."""
    make, x = KINDS[kind]
    y = torch.arange(len(x)) % 3
    new = insert_block(make(), 1, 7, init, activation=activation)
    names = block_names(new, 2)
    params = {name: value.clone().requires_grad_(name in names) for name, value in new.params.items()}
    loss = training.cross_entropy(new.forward(params, x), y)
    loss.sum().backward()
    gradient = sum(params[name].grad.abs().sum() for name in names)
    after, run = fit(new, x, y, steps=60, only=names, optimizer=SGD(0.1), batch=None)
    if LIVE[init, activation]:
        assert gradient > 1e-3 and (run.loss[-1] < run.loss[0]).all()
    else:
        assert gradient == 0
        assert all(torch.equal(after.params[name], new.params[name]) for name in new.params)
        assert torch.equal(after(x), new(x))
    assert all(torch.equal(after.params[name], new.params[name]) for name in new.params if name not in names)


def test_every_start_is_in_the_table():
    assert set(STARTS) == {init for init, _ in LIVE} | {"random"}


def test_tanh_from_zero_has_only_a_second_order_term():
    """t²⟨δW_2 δW_1, E g zᵀ⟩: descent exists for the pair although each gradient is zero."""
    model = dense(activation="tanh", eps=0.1)
    g, z = activation_gradient(model, 1, X, Y), model.bottom(X, 1)
    a, b = randn(3, 6, 8, seed=5), randn(3, 8, 6, seed=6)
    expected = ((b @ a) * (g.mT @ z / len(X))).sum((1, 2))

    def loss(t):
        new = with_block(model, 1, {"w1": t * a, "w2": t * b}, Block(6, "tanh", normed=False))
        return training.cross_entropy(new(X), Y)

    t = 1e-3
    second = (loss(t) + loss(-t) - 2 * loss(0.0)) / (2 * t**2)
    torch.testing.assert_close(second, expected, rtol=1e-3, atol=1e-8)


# ---- training


@kinds
def test_stacked_training_is_training_one_by_one(kind):
    make, x = KINDS[kind]
    y = torch.arange(len(x)) % 3
    together = fit(make(), x, y, 20, batch=8, generators=generators(30)).model
    for net in range(3):
        one = fit(make().nets([net]), x, y, 20, batch=8, generators=generators(30 + net, 1)).model
        for name in one.params:
            torch.testing.assert_close(together.params[name][net], one.params[name][0], rtol=1e-9, atol=1e-11)


def test_training_is_that_of_torch_optim():
    """Adam with a cosine rate on all samples, against torch.optim and its scheduler, one net."""
    model = dense(n_nets=1)
    ours = fit(model, X, Y, 30, lr=0.02, batch=None).model
    params = {name: nn.Parameter(value.clone()) for name, value in model.params.items()}
    adam = torch.optim.Adam(params.values(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 30)
    for _ in range(30):
        adam.zero_grad()
        nn.functional.cross_entropy(model.forward(params, X)[0], Y).backward()
        adam.step()
        schedule.step()
    for name, value in params.items():
        torch.testing.assert_close(ours.params[name], value.detach(), rtol=1e-6, atol=1e-8)


def test_every_net_can_have_its_own_sample_and_rate():
    xs, ys = torch.stack([X, X + 0.5, -X]), torch.stack([Y, Y, Y.flip(0)])
    rates = torch.tensor([1e-3, 1e-2, 3e-2], dtype=F64)
    together = fit(dense(), xs, ys, 15, lr=rates, batch=16, generators=generators(3)).model
    for net in range(3):
        alone = fit(dense().nets([net]), xs[net], ys[net], 15, rates[net].item(), 16, generators(3 + net, 1)).model
        torch.testing.assert_close(together(X)[net], alone(X)[0], rtol=1e-8, atol=1e-10)


def test_precision_and_device_are_kept():
    model = dense().to(dtype=torch.float32)
    assert model(X.float()).dtype == torch.float32
    assert fit(model, X.float(), Y, 2).model.params["in"].dtype == torch.float32
    torch.testing.assert_close(model(X.float()).double(), dense()(X), rtol=1e-4, atol=1e-5)


REFUSED = {
    "width must be >= 1, got 0": lambda: PostNormResNet(5, 0, 1, 4, 3),
    "depth must be >= 0, got -1": lambda: PostNormResNet(5, 4, -1, 4, 3),
    "n_classes must be >= 2, got 1": lambda: PostNormResNet(5, 4, 1, 4, 1),
    r"eps must lie in \[0, inf\), got -1": lambda: PostNormResNet(5, 4, 1, 4, 3, -1.0),
    r"residual_std must be a number in \[0, inf\), got nan": lambda: PostNormResNet(
        5, 4, 1, 4, 3, residual_std=math.nan
    ),
    "activation must be one of relu, tanh, .*, got 'sin'": lambda: dense(activation="sin"),
    "norm must be one of rms, layer, got 'batch'": lambda: dense(norm="batch"),
    r"layer must lie in \[0, 3\], the depth, got 4": lambda: insert_block(dense(), 4, 3),
    "layer must be >= 0, got -1": lambda: dense().bottom(X, -1),
    r"layer must lie in \[1, 3\], the depth, got 4": lambda: block_names(dense(), 4),
    "init must be one of zero_out, .*, got 'zero'": lambda: insert_block(dense(), 1, 3, "zero"),
    "hidden must be >= 1, got 0": lambda: insert_block(dense(), 1, 0),
    "generators must be 3, one a net, got 2": lambda: insert_block(dense(), 1, 3, generators=generators(n=2)),
    "only must name weights among in, w1.1, .*got": lambda: fit(dense(), X, Y, 2, only=["w1.9"]),
    r"x must be \(batch, 5\) or \(3, batch, 5\)": lambda: dense()(X[:, :4]),
    "y must be int64": lambda: fit(dense(), X, Y.double(), 2),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_is_refused(sentence):
    with pytest.raises(ValueError, match=sentence):
        REFUSED[sentence]()


def test_a_depth_that_is_no_number_is_refused():
    with pytest.raises(TypeError, match="depth must be a whole number, got 2.0"):
        PostNormResNet(5, 4, 2.0, 4, 3)
