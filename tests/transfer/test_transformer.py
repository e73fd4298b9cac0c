"""The stacked Transformer against one written with torch.nn; rescalings; what gradient flow conserves; bad input."""

import math

import pytest
import torch
from torch import nn

from labkit import training
from labkit.training import SGD, Adam
from labkit.transfer import transformer
from labkit.transfer.arithmetic import addition
from labkit.transfer.transformer import (
    BETAS,
    DECAY,
    LR,
    Transformer,
    balancedness,
    charges,
    learn,
    loss,
    rescale,
    start_fine_tuning,
    steps_to,
)

V, M = 7, 5
SHAPES = [
    {"layers": layers, "norm": norm, "heads": heads, "vocabulary": V, "width": 12, "hidden": 20}
    for layers, norm, heads in ((1, False, 4), (1, True, 3), (2, False, 2), (3, True, 4), (1, False, 1))
]
PAIRS, LABELS = addition(M, V)


class Single(nn.Module):
    """One net as torch.nn writes it: the whole sequence through every layer, read at "="."""

    def __init__(self, params, net, shape):
        super().__init__()
        self.norm = nn.LayerNorm(shape["width"], elementwise_affine=False) if shape["norm"] else nn.Identity()
        self.embed, self.position = (nn.Embedding.from_pretrained(params[n][net], False) for n in ("embed", "position"))
        self.attention, self.mlp = nn.ModuleList(), nn.ModuleList()
        for layer in range(shape["layers"]):
            kind = {"bias": False, "batch_first": True, "dtype": params["embed"].dtype}
            attention = nn.MultiheadAttention(shape["width"], shape["heads"], **kind)
            parts = [params[f"{name}.{layer}"][net] for name in ("query", "key", "value")]
            attention.in_proj_weight = nn.Parameter(torch.cat(parts))
            attention.out_proj.weight = nn.Parameter(params[f"output.{layer}"][net].clone())
            self.attention.append(attention)
            inner, outer = (self.dense(params[f"{name}.{layer}"][net]) for name in ("in", "out"))
            self.mlp.append(nn.Sequential(inner, nn.ReLU(), outer))
        self.unembed = self.dense(params["unembed"][net])

    @staticmethod
    def dense(weight):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
        layer.weight = nn.Parameter(weight.clone())
        return layer

    def forward(self, pairs):
        tokens = torch.cat([pairs, torch.full((len(pairs), 1), self.embed.num_embeddings - 1)], 1)
        z = self.embed(tokens) + self.position(torch.arange(3))
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            there = self.norm(z)
            z = z + attention(there, there, there, need_weights=False)[0]
            z = z + mlp(self.norm(z))
        return self.unembed(self.norm(z)[:, 2])

    def stacked(self, what):
        """Weights or gradients under the names of labkit."""
        found = {"embed": what(self.embed.weight), "position": what(self.position.weight)}
        for layer, (attention, mlp) in enumerate(zip(self.attention, self.mlp, strict=True)):
            parts = zip(("query", "key", "value"), what(attention.in_proj_weight).chunk(3), strict=True)
            found |= {f"{name}.{layer}": part for name, part in parts}
            found[f"output.{layer}"] = what(attention.out_proj.weight)
            found |= {f"in.{layer}": what(mlp[0].weight), f"out.{layer}": what(mlp[2].weight)}
        return found | {"unembed": what(self.unembed.weight)}


def drawn(shape, nets=3):
    net = Transformer(**shape)
    return net, net.initial(M, training.generators(range(nets)), dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
def test_forward_and_gradient_are_those_of_torch_nn(shape):
    net, params = drawn(shape)
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    each = PAIRS[torch.stack([torch.randperm(len(PAIRS), generator=g)[:20] for g in training.generators(range(3))])]
    for pairs in (PAIRS, each):
        out = net(leaves, pairs)
        grads = torch.autograd.grad(loss(out, pairs.sum(-1) % M).sum(), list(leaves.values()))
        for i in range(3):
            own = pairs if pairs.dim() == 2 else pairs[i]
            single = Single(params, i, shape)
            expected = single(own)
            torch.testing.assert_close(out[i], expected, rtol=1e-10, atol=1e-12)
            nn.functional.cross_entropy(expected, own.sum(-1) % M).backward()
            theirs = single.stacked(lambda weight: weight.grad)
            for name, grad in zip(leaves, grads, strict=True):
                torch.testing.assert_close(grad[i], theirs[name], rtol=1e-8, atol=1e-12, msg=name)


def test_scores_far_apart_are_no_nan():
    """Training at κ = 10 gets there: a pair whose scores lie 1000 below those of another pair has a softmax as well."""
    net, params = drawn(SHAPES[0])
    params = params | {"query.0": 3000 * params["query.0"]}
    out = net(params, PAIRS)
    for i in range(3):
        torch.testing.assert_close(out[i], Single(params, i, SHAPES[0])(PAIRS), rtol=1e-8, atol=1e-10)
    assert net({name: value.float() for name, value in params.items()}, PAIRS).isfinite().all()


def test_features_are_what_the_unembedding_reads():
    net, params = drawn(SHAPES[0])
    features = net.features(params, PAIRS)
    torch.testing.assert_close(net(params, PAIRS), features @ params["unembed"].mT)


def test_steps_are_those_of_torch_optim():
    """AdamW as `learn` has it by default, three steps on the pairs that it chose."""
    shape = SHAPES[0]
    net, params = drawn(shape)
    run = learn(net, params, M, 0.6, training.generators(range(3)), steps=3, record_every=1)
    train, test = transformer.split(V * V, 0.6, training.generators(range(3)))
    for i in range(3):
        single = Single(params, i, shape)
        adam = torch.optim.AdamW(single.parameters(), lr=LR, betas=BETAS, weight_decay=DECAY)
        for step in range(4):
            right = single(PAIRS[test[i]]).argmax(1) == LABELS[test[i]]
            assert run.accuracy[step, i].item() == pytest.approx(right.double().mean().item(), abs=1e-12)
            value = nn.functional.cross_entropy(single(PAIRS[train[i]]), LABELS[train[i]])
            if step == 3:
                break
            adam.zero_grad()
            value.backward()
            adam.step()
        assert run.loss[i].item() == pytest.approx(value.item(), rel=1e-9)
        for name, weight in single.stacked(lambda weight: weight.detach()).items():
            torch.testing.assert_close(run.params[name][i], weight, rtol=1e-7, atol=1e-9, msg=name)
    assert run.recorded.tolist() == [0, 1, 2, 3] and not run.diverged.any()


# ---- a net is a net, whoever else is there


def test_a_net_learns_the_same_alone():
    net = Transformer(vocabulary=V, width=8, hidden=16)
    seeds = ([0, 1, 2], [2])
    alone, together = (
        learn(net, net.initial(M, training.generators(s)), M, 0.5, training.generators(s), steps=20) for s in seeds
    )
    torch.testing.assert_close(alone.accuracy[:, 2:], together.accuracy)
    for name in alone.params:
        torch.testing.assert_close(alone.params[name][2:], together.params[name], rtol=1e-9, atol=1e-12)


def test_purposes_of_a_seed_are_different():
    draws = {
        torch.randn(1, generator=g).item() for purpose in range(4) for g in transformer.streams(range(20), purpose)
    }
    assert len(draws) == 80


def test_a_small_net_learns_to_add():
    """Accuracy on pairs it has never seen; a constant answer has 1/5."""
    net, seeds = Transformer(vocabulary=20, width=16, hidden=32), training.generators(range(4))
    run = learn(net, net.initial(5, seeds), 5, 0.7, seeds, 300, record_every=10)
    assert run.accuracy[0].max() < 0.6 and (run.accuracy[-1] > 0.95).all()
    step = run.steps_to(0.9)
    for i in range(4):
        row = run.recorded.tolist().index(int(step[i]))
        assert run.accuracy[row, i] >= 0.9 > run.accuracy[:row, i].max()


def test_a_net_that_diverges_is_told():
    net = Transformer(vocabulary=V, width=8, hidden=16)
    params = net.initial(M, training.generators(range(2)))
    rates = torch.tensor([1e-3, 1e9], dtype=torch.float64)
    run = learn(net, params, M, 0.5, training.generators(range(2)), 30, SGD(rates))
    assert run.diverged.tolist() == [False, True]


def test_a_net_that_diverged_before_is_told_and_the_others_go_on():
    net = Transformer(vocabulary=V, width=8, hidden=16)
    params = net.initial(M, training.generators(range(2)))
    broken = {name: value.clone() for name, value in params.items()}
    broken["key.0"][1, 2, 3] = torch.nan
    one, two = (
        learn(net, start, M, 0.5, training.generators(range(2)), 10, record_every=5) for start in (params, broken)
    )
    assert two.diverged.tolist() == [False, True] and two.accuracy[:, 1].isnan().all() and two.loss[1].isnan()
    torch.testing.assert_close(one.accuracy[:, 0], two.accuracy[:, 0])
    for name, value in two.params.items():
        torch.testing.assert_close(value[0], one.params[name][0])
        assert value[1].isnan().all()


# ---- rescalings

KAPPA = torch.tensor([0.1, 0.7, 10.0], dtype=torch.float64)


@pytest.mark.parametrize("pair", ["stream", "query", "value", "mlp"])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if not shape["norm"]])
def test_rescaling_leaves_the_function_and_turns_the_gradient(shape, pair):
    """Logits to 1e-5 relative in float32 as in float64, and ∂L/∂W is divided where W is multiplied."""
    net, params = drawn(shape)
    other = rescale(params, KAPPA, pair)
    out, again = net(params, PAIRS), net(other, PAIRS)
    torch.testing.assert_close(again, out, rtol=1e-10, atol=1e-10)
    single = {name: value.float() for name, value in params.items()}
    off = net(rescale(single, KAPPA, pair), PAIRS) - net(single, PAIRS)
    assert off.norm() <= 1e-5 * out.norm()
    grads = []
    for weights in (params, other):
        leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
        grads.append(torch.autograd.grad(loss(net(leaves, PAIRS), LABELS).sum(), list(leaves.values())))
    changed = 0
    for (name, before), grad, after in zip(params.items(), *grads, strict=True):
        factor = (other[name] / before).flatten(1).mean(1)
        changed += bool((factor - 1).abs().max() > 1e-9)
        torch.testing.assert_close(after * factor[:, None, None], grad, rtol=1e-8, atol=1e-12, msg=name)
    per_layer = {"stream": 2, "query": 2, "value": 2, "mlp": 2}[pair] * shape["layers"]
    assert changed == per_layer + (3 if pair == "stream" else 0)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape["norm"]])
def test_with_norms_rescaling_is_exact_but_for_eps(shape, monkeypatch):
    net, params = drawn(shape)
    kappa = torch.tensor([0.5, 2.0, 10.0], dtype=torch.float64)
    assert (net(rescale(params, kappa), PAIRS) - net(params, PAIRS)).abs().max() > 1e-2  # without ``norm``
    offs = []
    for eps in (1e-3, 1e-5, 0.0):
        monkeypatch.setattr(transformer, "EPS", eps)
        offs.append((net(rescale(params, kappa, norm=True), PAIRS) - net(params, PAIRS)).abs().max())
    assert offs[0] > 10 * offs[1] > 0 and offs[1] < 1e-3 and offs[2] < 1e-9
    for pair in ("query", "value", "mlp"):
        torch.testing.assert_close(net(rescale(params, kappa, pair, norm=True), PAIRS), net(params, PAIRS))


def test_there_and_back_is_nothing():
    _, params = drawn(SHAPES[2])
    back = rescale(rescale(params, 3.0), 1 / 3.0)
    for name, value in params.items():
        torch.testing.assert_close(back[name], value)


# ---- conserved quantities and balancedness


def drift(params, lr, steps, optimizer=None):
    """Largest relative change of each charge, and of the balancedness, over a time lr·steps."""
    net = Transformer(vocabulary=V, width=8, hidden=16)
    run = learn(net, params, M, 0.6, training.generators(range(2)), steps, optimizer or SGD(lr))
    before, after = charges(run.start), charges(run.params)
    sizes = {name: value.abs() for name, value in before.items()}
    return {name: ((after[name] - before[name]) / sizes[name]).abs().max() for name in before}, run


def test_small_steps_conserve_the_charges_and_adam_does_not():
    """Gradient descent breaks them at order lr² a step: half the rate, twice the steps, half the drift."""
    net = Transformer(vocabulary=V, width=8, hidden=16)
    params = net.initial(M, training.generators(range(2)))
    params = rescale(params, 1.3)
    for layer in ("key", "out", "output"):  # no charge that is almost 0
        params[f"{layer}.0"] = 0.5 * params[f"{layer}.0"]
    coarse, run = drift(params, 0.02, 200)
    fine, _ = drift(params, 0.01, 400)
    assert (run.loss < 0.9 * loss(net(params, PAIRS), LABELS)).all()  # it does learn meanwhile
    assert balancedness(run.params).sub(balancedness(run.start)).abs().max() > 1e-3  # not conserved itself
    for name in coarse:
        assert fine[name] < 0.02 and 1.5 < coarse[name] / fine[name] < 2.5, name
    adam, _ = drift(params, None, 200, Adam(LR, betas=BETAS, weight_decay=DECAY))
    assert all(value > 0.3 for value in adam.values())


def test_balancedness_has_its_ends_and_turns_with_kappa():
    """κ² against κ⁻²: λ_EU = (κ⁴e² − u²)/(κ⁴e² + u²)."""
    _, params = drawn(SHAPES[0])
    early, late = (params[name].square().sum((1, 2)) for name in ("embed", "unembed"))
    expected = (KAPPA**4 * early - late) / (KAPPA**4 * early + late)
    torch.testing.assert_close(balancedness(rescale(params, KAPPA)), expected)
    assert balancedness({"embed": torch.zeros(1, 2, 2), "unembed": torch.ones(1, 2, 2)}).item() == -1


def test_norms_of_the_embedding_are_those_of_the_notes():
    """Section 7: ‖E‖ is 31 at κ = 1 before pretraining, 3 to 310 from κ = .1 to 10."""
    params = Transformer().initial(15, training.generators(range(5)))
    norms = rescale(params, torch.tensor([0.1, 0.3, 1, 3, 10]))["embed"].norm(dim=(1, 2))
    assert norms.tolist() == pytest.approx([3.15, 9.45, 31.5, 94.5, 315], rel=0.05)


def test_the_new_unembedding_is_drawn_by_seed_and_nothing_else_changes():
    _, params = drawn(SHAPES[0])
    one, two = start_fine_tuning(params, 3, [4, 5, 6]), start_fine_tuning(params, 3, [6, 7, 8])
    assert one["unembed"].shape == (3, 3, 12) and torch.equal(one["unembed"][2], two["unembed"][0])
    assert all(one[name] is params[name] for name in params if name != "unembed")
    many = start_fine_tuning(params, 200, range(3))["unembed"]
    assert many.std().item() == pytest.approx(0.3 / 12**0.5, rel=0.05)


def test_steps_to_is_the_first_time():
    curve = torch.tensor([[0.0, 0.95, 0.1], [0.92, 0.1, 0.2], [0.5, 0.99, 0.3]])
    found = steps_to(torch.tensor([0, 25, 50]), curve)
    assert found[:2].tolist() == [25, 0] and found[2].isnan()


# ---- bad input


@pytest.mark.parametrize(
    "shape, message",
    [
        ({"vocabulary": 1}, "vocabulary must be >= 2, got 1"),
        ({"heads": 5}, "heads must divide the width, got 5 heads and width 32"),
        ({"heads": 0}, "heads must be >= 1, got 0"),
        ({"layers": 0}, "layers must be >= 1, got 0"),
    ],
)
def test_bad_shapes_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        Transformer(**shape)


def test_bad_input_is_refused_in_a_sentence():
    net, params = drawn(SHAPES[0])
    generators = training.generators(range(3))
    with pytest.raises(TypeError, match="norm must be True or False, got 1"):
        Transformer(norm=1)
    with pytest.raises(ValueError, match="n_classes must be >= 2, got 1"):
        net.initial(1, generators)
    with pytest.raises(ValueError, match="modulus must be 5, the number of rows of unembed, got 3"):
        learn(net, params, 3, 0.5, generators, 5)
    for fraction in (0.0, 1.0, -0.1, 1.5):
        with pytest.raises(ValueError, match=rf"fraction must lie in \(0, 1\), got {fraction}"):
            learn(net, params, M, fraction, generators, 5)
    with pytest.raises(ValueError, match="vocabulary must be >= 9"):
        learn(net, start_fine_tuning(params, 9, range(3)), 9, 0.5, generators, 5)
    with pytest.raises(ValueError, match=r"pairs must hold tokens from 0 to 6, got 0 to 7"):
        net(params, torch.tensor([[0, 7]]))
    for pairs in (torch.zeros(4, 2), torch.zeros(4, 3, dtype=torch.int64), torch.zeros(2, 4, 2, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"pairs must be int64 \(n, 2\) or \(3, n, 2\), got"):
            net(params, pairs)
    with pytest.raises(ValueError, match="pair must be one of stream, query, value, mlp, got 'all'"):
        rescale(params, 2.0, "all")
    with pytest.raises(ValueError, match=r"kappa\[1\] = 0.0 must be positive"):
        rescale(params, torch.tensor([1.0, 0.0, 1.0]))
    with pytest.raises(ValueError, match=r"kappa must be a number or \(3,\), one per net, got \(2,\)"):
        rescale(params, torch.ones(2))
    with pytest.raises(ValueError, match=r"level must lie in \[0, 1\], got 90"):
        steps_to(torch.arange(2), torch.zeros(2, 1), 90)


def test_gain_scales_the_matrices_and_nothing_else():
    net, seeds = transformer.Transformer(), range(3)
    one, third = (net.initial(15, transformer.streams(seeds, 0), gain) for gain in (1.0, 3**-0.5))
    for name, weight in one.items():
        scale = 1.0 if name in ("embed", "position") else 3**-0.5
        torch.testing.assert_close(third[name], scale * weight)
    for gain in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="gain"):
            net.initial(15, transformer.streams(seeds, 0), gain)
