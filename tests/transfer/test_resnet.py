"""Residual networks against plain torch modules, written independently, and against what a rescaling must do."""

import pytest
import torch
from torch import nn

from labkit import compute, training
from labkit.training import SGD, cross_entropy, train
from labkit.transfer import resnet
from labkit.transfer.resnet import (
    RESNET18,
    SMALL,
    SMALL_BATCH_NORM,
    ResNet,
    match_norms,
    rescale,
    rescale_convolutions,
)

N_CLASSES, N_NETS = 5, 3
DEEP = ResNet((4, 4, 6), blocks=2, in_channels=3, branch_std=0.5)
SHAPES = {
    "small": SMALL,
    "small with batch norm": SMALL_BATCH_NORM,
    "two blocks a stage": DEEP,
    "two blocks a stage with batch norm": ResNet((4, 4, 6), blocks=2, in_channels=3, norm="batch"),
    "one stage": ResNet((4,)),
}
NORMED = [name for name, net in SHAPES.items() if net.norm]


def images(net, batch=6, n_nets=None, size=8, seed=0, dtype=torch.float64):
    lead = (batch,) if n_nets is None else (n_nets, batch)
    return torch.randn(*lead, net.in_channels, size, size, dtype=dtype, generator=compute.generator(seed))


def weights(net, n_nets=N_NETS, dtype=torch.float64):
    params = net.init(N_CLASSES, training.generators(range(n_nets)), dtype=dtype)
    for number, name in enumerate(name for name in params if name.endswith(("gain", "bias"))):  # no longer 1 and 0
        noise = torch.randn(params[name].shape, dtype=dtype, generator=compute.generator(number))
        params[name] = params[name] + 0.2 * noise
    return params


def labels(batch=6):
    return torch.arange(batch) % N_CLASSES


class Block(nn.Module):
    """A basic block as in every textbook."""

    def __init__(self, n_in, n_out, stride, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = norm(n_out), norm(n_out)
        self.down = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.down = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), norm(n_out))

    def forward(self, x):
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + self.down(x))


class Plain(nn.Module):
    """One network of a stack."""

    def __init__(self, net, params, number):
        super().__init__()

        def norm(width):
            return nn.BatchNorm2d(width, momentum=None) if net.norm else nn.Identity()

        first = net.channels[0]
        self.stem, self.stem_norm = nn.Conv2d(net.in_channels, first, 3, 1, 1, bias=False), norm(first)
        self.blocks, self.names, n_in = nn.ModuleList(), [], first
        for stage, n_out in enumerate(net.channels):
            for block in range(net.blocks):
                self.blocks.append(Block(n_in, n_out, 2 if stage and not block else 1, norm))
                self.names.append(f"{stage + 1}.{block + 1}")
                n_in = n_out
        self.readout = nn.Linear(n_in, params["readout"].shape[1], bias=False)
        self.double()
        self.places = {"stem": (self.stem, self.stem_norm)}
        for name, block in zip(self.names, self.blocks, strict=True):
            self.places |= {f"{name}.first": (block.conv1, block.bn1), f"{name}.second": (block.conv2, block.bn2)}
            if isinstance(block.down, nn.Sequential):
                self.places[f"{name}.shortcut"] = (block.down[0], block.down[1])
        with torch.no_grad():
            self.readout.weight.copy_(params["readout"][number])
            for name, (conv, bn) in self.places.items():
                conv.weight.copy_(params[name][number])
                if net.norm:
                    bn.weight.copy_(params[f"{name}.gain"][number])
                    bn.bias.copy_(params[f"{name}.bias"][number])

    def forward(self, x):
        z = torch.relu(self.stem_norm(self.stem(x)))
        for block in self.blocks:
            z = block(z)
        return self.readout(z.mean((2, 3)))

    def weights(self):
        """By the names of the stack."""
        found = {"readout": self.readout.weight}
        for name, (conv, bn) in self.places.items():
            found[name] = conv.weight
            if isinstance(bn, nn.BatchNorm2d):
                found |= {f"{name}.gain": bn.weight, f"{name}.bias": bn.bias}
        return found


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("own", [False, True])
def test_forward_is_that_of_plain_modules(name, own):
    net = SHAPES[name]
    params, x = weights(net), images(net, n_nets=N_NETS if own else None)
    out = net.forward(params, x)
    assert out.shape == (N_NETS, 6, N_CLASSES)
    for number in range(N_NETS):
        expected = Plain(net, params, number)(x[number] if own else x)
        torch.testing.assert_close(out[number], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", SHAPES)
def test_a_step_of_gradient_descent_is_that_of_plain_modules(name):
    net, y = SHAPES[name], labels()
    params, x = weights(net), images(net, n_nets=N_NETS)
    run = train(net.forward, params, x, y.expand(N_NETS, -1), SGD(0.1, 0.9), 2, loss=cross_entropy, per_net=True)
    for number in range(N_NETS):
        model = Plain(net, params, number)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[number]), y).backward()
            optimizer.step()
        for key, value in model.weights().items():
            torch.testing.assert_close(run.params[key][number], value.detach(), rtol=1e-8, atol=1e-10, msg=key)


@pytest.mark.parametrize("name", NORMED)
def test_statistics_are_those_that_batch_norm_collects(name):
    net = SHAPES[name]
    params, x = weights(net), images(net, batch=15, n_nets=N_NETS)
    found, frozen = net.statistics(params, x, batch=6), images(net, seed=1)
    out = net.forward(params, frozen, found)
    for number in range(N_NETS):
        model = Plain(net, params, number).train()
        order = torch.randperm(15, generator=compute.generator(0))
        for batch in x[number, order].split(5):
            model(batch)
        for key, (_, bn) in model.places.items():
            both = torch.stack([bn.running_mean, bn.running_var])
            torch.testing.assert_close(found[key][number], both, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(out[number], model.eval()(frozen), rtol=1e-10, atol=1e-12)


def test_statistics_count_every_sample_in_whatever_order_they_come():
    """Classes of unlike brightness and contrast, sorted: batches of one class each would have too small a variance."""
    net, n = SMALL_BATCH_NORM, 203  # no multiple of a batch
    params, noise = weights(net), images(net, batch=n)
    level = torch.arange(n, dtype=torch.float64).mul(5 / n).floor()[:, None, None, None]
    x = (1 + level) * noise + 3 * level
    whole, by_class = net.statistics(params, x), net.statistics(params, x, 40)
    torch.testing.assert_close(by_class["stem"][:, 0], whole["stem"][:, 0])  # the mean of all, exactly
    for found in (by_class, net.statistics(params, x[torch.randperm(n, generator=compute.generator(1))], 40)):
        for name, both in found.items():
            mean, sd = whole[name][:, 0], whole[name][:, 1].sqrt()
            assert ((both[:, 0] - mean) / sd).abs().max() < 0.15, name
            assert (both[:, 1].sqrt() / sd - 1).abs().max() < 0.15, name
    one = torch.cat([net.statistics(params, part)["stem"][:, 1:].sqrt() for part in x.split(41)], 1).mean(1)
    assert (one / whole["stem"][:, 1].sqrt()).mean() < 0.8  # what batches of one class would give


def test_frozen_statistics_make_samples_independent():
    net = SMALL_BATCH_NORM
    params, x = weights(net), images(net)
    known = net.statistics(params, x)
    one_by_one = torch.cat([net.forward(params, row, known) for row in x.split(1)], 1)
    torch.testing.assert_close(net.forward(params, x, known), one_by_one)
    assert (net.forward(params, x[:2]) - net.forward(params, x)[:, :2]).abs().max() > 0.1  # those of the batch do not


def test_sizes():
    """ResNet-18 with a 3 x 3 stem for 10 classes has 11,173,962 weights with the biases of its readout."""
    assert sum(w[0].numel() for w in SMALL.init(28, training.generators([0])).values()) == 20_040
    shapes = [torch.Size(shape).numel() for _, shape, _ in RESNET18.convolutions()]
    widths = [shape[0] for _, shape, _ in RESNET18.convolutions()]
    assert sum(shapes) + 2 * sum(widths) + 10 * 512 == 11_173_962 - 10
    assert len(shapes) == 1 + 16 + 3


def test_resnet18_learns_a_batch():
    params = RESNET18.init(2, training.generators([0]), dtype=torch.float32)
    x = images(RESNET18, batch=4, size=32, dtype=torch.float32)
    run = train(RESNET18.forward, params, x, torch.arange(4) % 2, SGD(0.01, 0.9), 4, loss=cross_entropy)
    assert RESNET18.features(run.params, x).shape == (1, 4, 512)
    assert run.loss[-1] < 0.5 * run.loss[0]


def test_weights_are_he_but_for_the_second_halves_of_branches():
    params = DEEP.init(N_CLASSES, training.generators(range(200)))
    for name, shape, _ in DEEP.convolutions():
        fan_in = shape[1] * shape[2] * shape[3]
        expected = (0.25 if name.endswith(("second", "shortcut")) else 1.0) * 2 / fan_in
        numbers = params[name].numel()
        assert params[name].var().item() == pytest.approx(expected, rel=5 * (2 / numbers) ** 0.5)
    assert params["readout"].var().item() * 6 == pytest.approx(1, rel=5 * (2 / params["readout"].numel()) ** 0.5)


# ---- rescaling


@pytest.mark.parametrize("net", [SMALL, DEEP])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_kappa_leaves_the_function_as_it_was(net, dtype, tolerance):
    params, x = weights(net, 6, dtype), images(net, 20, dtype=dtype)
    kappa = torch.tensor([0.01, 0.125, 0.2, 5.0, 8.0, 100.0], dtype=dtype)
    before, after = net.forward(params, x), net.forward(rescale(params, kappa), x)
    assert ((after - before).norm(dim=(1, 2)) / before.norm(dim=(1, 2))).max() <= tolerance
    assert not torch.equal(after, before)


def test_kappa_moves_gradient_from_one_end_to_the_other():
    """f(κu, v/κ): ∂f/∂stem falls as 1/κ, ∂f/∂readout grows as κ, those between stay."""
    params, x = weights(SMALL), images(SMALL)
    kappa = torch.tensor([0.2, 1.0, 5.0], dtype=torch.float64)

    def gradients(params):
        leaves = {name: value.requires_grad_() for name, value in params.items()}
        loss = cross_entropy(SMALL.forward(leaves, x), labels()).sum()
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    before, after = gradients(params), gradients({k: v.detach() for k, v in rescale(params, kappa).items()})
    for name, grad in before.items():
        ratio = {"stem": 1 / kappa, "readout": kappa}.get(name, torch.ones(3, dtype=torch.float64))
        torch.testing.assert_close(after[name], ratio.view(-1, *[1] * (grad.dim() - 1)) * grad)


def test_weight_scale_multiplies_the_function_by_its_square():
    params, x = weights(SMALL), images(SMALL)
    torch.testing.assert_close(SMALL.forward(rescale(params, 0.2, 3.0), x), 9 * SMALL.forward(params, x))


def gradient_of_convolutions(net, params, x):
    names = [name for name, *_ in net.convolutions()]
    leaves = {name: params[name].detach().requires_grad_() for name in names}
    loss = cross_entropy(net.forward(params | leaves, x), labels(len(x))).sum()
    return dict(zip(names, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@pytest.mark.parametrize(
    "eps, kappa, tolerance", [(1e-5, 0.3, 0.01), (1e-5, 3.0, 0.01), (1e-30, 0.01, 1e-8), (1e-30, 100.0, 1e-8)]
)
@pytest.mark.parametrize("name", NORMED)
def test_batch_norm_turns_scale_into_a_learning_rate(name, eps, kappa, tolerance, monkeypatch):
    """f(κw) = f(w) and ∇f(κw) = ∇f(w)/κ per convolution, to 1 % with the eps of batch norm, else exactly; w ⊥ ∇f."""
    monkeypatch.setattr(resnet, "EPS", eps)
    net = SHAPES[name]
    params, x = weights(net), images(net, 20)
    new = rescale_convolutions(net, params, kappa)
    out, moved = net.forward(params, x), net.forward(new, x)
    assert (moved - out).norm() <= tolerance * out.norm()
    before, after = (gradient_of_convolutions(net, p, x) for p in (params, new))
    for key, grad in before.items():
        factor = 1 / kappa if key.startswith(f"{len(net.channels)}.") else kappa
        ratio = after[key].flatten(1).norm(dim=1) / grad.flatten(1).norm(dim=1)
        torch.testing.assert_close(ratio, torch.full_like(ratio, 1 / factor), rtol=tolerance, atol=0)
        radial = (grad * params[key]).flatten(1).sum(1)
        assert (radial.abs() <= tolerance * grad.flatten(1).norm(dim=1) * params[key].flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_kappa_is_a_learning_rate_without_a_clip(momentum, clip, monkeypatch):
    """Steps at one rate after κ are steps before it at η/κ² and, in the last stage, ηκ²: a loop of our own."""
    monkeypatch.setattr(resnet, "EPS", 1e-30)
    net, kappa, rate, x, y = SMALL_BATCH_NORM, 3.0, 0.01, images(SMALL_BATCH_NORM, 20), labels(20)
    start = weights(net, 1)
    convolutions = [name for name, *_ in net.convolutions()]
    factor = {name: 1 / kappa if name.startswith("3.") else kappa for name in convolutions}
    plain, speed = {name: value.clone() for name, value in start.items()}, {}
    for _ in range(4):
        leaves = {name: value.clone().requires_grad_() for name, value in plain.items()}
        grads = torch.autograd.grad(cross_entropy(net.forward(leaves, x), y).sum(), list(leaves.values()))
        for name, grad in zip(leaves, grads, strict=True):
            speed[name] = momentum * speed.get(name, 0) + grad
            plain[name] = plain[name] - rate / factor.get(name, 1.0) ** 2 * speed[name]
    scaled = rescale_convolutions(net, start, kappa)
    end = train(net.forward, scaled, x, y, SGD(rate, momentum), 4, loss=cross_entropy, clip=clip).params
    apart = max((end[name] / factor.get(name, 1.0) - plain[name]).abs().max() for name in start)
    assert apart < 1e-9 if clip is None else apart > 1e-3


def test_norms_are_matched_without_a_change_of_function_or_direction():
    net = SMALL_BATCH_NORM
    params, like, x = weights(net), weights(net, dtype=torch.float64), images(net, 20)
    moved = rescale_convolutions(net, params, torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64))
    new = match_norms(net, moved, like)
    for name, *_ in net.convolutions():
        torch.testing.assert_close(new[name].flatten(1).norm(dim=1), like[name].flatten(1).norm(dim=1))
    torch.testing.assert_close(net.forward(new, x), net.forward(params, x), rtol=0.01, atol=0.01)
    assert all(new[name] is moved[name] for name in moved if name.endswith(("gain", "bias", "readout")))


# ---- bad input

BAD = {
    "norm": (lambda: ResNet(norm="layer"), "norm must be None or 'batch', got 'layer'"),
    "channels": (lambda: ResNet((8, 0)), r"channels\[1\] must be >= 1, got 0"),
    "no channels": (lambda: ResNet(()), "channels must be a tuple of one number or more"),
    "blocks": (lambda: ResNet(blocks=0), "blocks must be >= 1, got 0"),
    "branch_std": (lambda: ResNet(branch_std=-1.0), r"branch_std must lie in \(0, inf\), got -1.0"),
    "one class": (lambda: SMALL.init(1, training.generators([0])), "n_classes must be >= 2, got 1"),
    "no generators": (lambda: SMALL.init(5, []), "one generator a net, got none"),
    "kappa": (lambda: rescale(weights(SMALL), 0.0), "kappa must be positive and finite, got 0.0"),
    "kappas": (lambda: rescale(weights(SMALL), torch.tensor([1.0, 1.0, -1.0])), r"kappa\[2\] = -1.0 must be positive"),
    "too many kappas": (lambda: rescale(weights(SMALL), torch.ones(4)), r"kappa must be a number or \(3,\), one per"),
    "weight_scale": (lambda: rescale(weights(SMALL), 1.0, float("nan")), "weight_scale must be positive and finite"),
    "no norm": (lambda: rescale_convolutions(SMALL, weights(SMALL), 2.0), "net must have norm='batch' and two stages"),
    "nothing to match": (lambda: match_norms(SMALL, weights(SMALL), weights(SMALL)), "net must have norm='batch'"),
    "zero": (
        lambda: match_norms(
            SMALL_BATCH_NORM,
            weights(SMALL_BATCH_NORM) | {"stem": torch.zeros(3, 8, 1, 3, 3)},
            weights(SMALL_BATCH_NORM),
        ),
        r"norm of stem\[0\] = 0 must be > 0",
    ),
    "statistics": (lambda: SMALL.statistics(weights(SMALL), images(SMALL)), "norm=None has no statistics"),
    "batch": (
        lambda: SMALL_BATCH_NORM.statistics(weights(SMALL_BATCH_NORM), images(SMALL), 7),
        r"batch must lie in \[1, 6\]",
    ),
    "channels of the image": (
        lambda: SMALL.forward(weights(SMALL), images(DEEP)),
        r"x must be \(batch, 1, height, width\) or \(3, ba",
    ),
    "nets of the images": (lambda: SMALL.forward(weights(SMALL), images(SMALL, n_nets=2)), "x must be"),
    "an array": (lambda: SMALL.forward(weights(SMALL), images(SMALL).numpy()), "x must be a torch tensor, got ndarray"),
    "single precision": (
        lambda: SMALL.forward(weights(SMALL), images(SMALL).float()),
        "x is torch.float32 but params are torch.float64: use one dtype",
    ),
    "bytes": (lambda: SMALL.features(weights(SMALL), images(SMALL).byte()), "x is torch.uint8 but params are"),
    "statistics of an array": (
        lambda: SMALL_BATCH_NORM.statistics(weights(SMALL_BATCH_NORM), images(SMALL).numpy()),
        "x must be a torch tensor, got ndarray",
    ),
    "statistics of vectors": (
        lambda: SMALL_BATCH_NORM.statistics(weights(SMALL_BATCH_NORM), torch.ones(6, 64).double()),
        r"x must be \(batch, 1, height, width\)",
    ),
    "kappa as text": (lambda: rescale(weights(SMALL), "1"), r"kappa must be a number or \(3,\), one per net, got '1'"),
    "integer weights": (
        lambda: SMALL.init(5, training.generators([0]), dtype=torch.int64),
        "dtype must be a floating dtype",
    ),
    "device": (lambda: SMALL.init(5, training.generators([0]), "xpu:7"), "device must name a device of this computer"),
    "vectors": (lambda: SMALL.forward(weights(SMALL), torch.ones(6, 64).double()), "x must be"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused_in_a_sentence(name):
    call, sentence = BAD[name]
    with pytest.raises((ValueError, TypeError), match=sentence):
        call()
