"""The stacked Transformer against one written with torch.nn; rescalings; what gradient flow conserves; bad input."""

import pytest
import torch
from torch import nn

from labkit import training
from labkit.transfer import transformer
from labkit.transfer.arithmetic import addition
from labkit.transfer.transformer import (
    BETAS,
    DECAY,
    LR,
    Transformer,
    learn,
    loss,
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
            attention = nn.MultiheadAttention(
                shape["width"], shape["heads"], bias=False, batch_first=True, dtype=torch.float64
            )
            parts = [params[f"{name}.{layer}"][net] for name in ("query", "key", "value")]
            attention.in_proj_weight = nn.Parameter(torch.cat(parts))
            attention.out_proj.weight = nn.Parameter(params[f"output.{layer}"][net].clone())
            self.attention.append(attention)
            inner, outer = (self.dense(params[f"{name}.{layer}"][net]) for name in ("in", "out"))
            self.mlp.append(nn.Sequential(inner, nn.ReLU(), outer))
        self.unembed = self.dense(params["unembed"][net])

    @staticmethod
    def dense(weight):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
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
