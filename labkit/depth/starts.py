"""Starts of an inserted block, alive or dead: the line along which gradient descent leaves each of them.

A block h = W_2 σ(W_1 z) that computes 0 has the gradients

    ∂L/∂W_2 = E[g σ(W_1 z)ᵀ],   ∂L/∂W_1 = E[(W_2ᵀg ⊙ σ'(W_1 z)) zᵀ],

each with the *other* weight as a factor: with W_1 = W_2 = 0 both vanish (σ(0) = 0), and descent never moves. With
W_1 = 0 alone the second one is alive, unless σ'(0) = 0, which is what autograd takes for ReLU. Derived here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.depth.network import PostNormResNet, block_names, insert_block, sample_losses
from labkit.training import Params
from labkit.validate import as_tensors, require_finite


@dataclass(frozen=True, eq=False)
class Line:
    """θ − t·∇L(θ) in the weights of one new block, θ the start: where gradient descent on the block goes first.

    Fields
        model: with the block at its start, which is block ``layer`` + 1
        layer: after which it stands
        tangent: −∇L by the names of the block's weights
        gain: G = ‖∇L‖² (net,), on the sample that gave the gradient: minus the slope of the loss; 0 at a dead start
        energy: S = E‖dh/dt‖² (net,) there: √(S/width) is the rms of h that a small step makes, in units of t
        loss: whose gradient it is
    """

    model: PostNormResNet
    layer: int
    tangent: Params
    gain: Tensor
    energy: Tensor
    loss: str = "ce"

    def at(self, t: float | Tensor) -> PostNormResNet:
        """The model at step t, a number or (net,)."""
        (t,) = as_tensors(t=t)
        require_finite(t=t)
        moved = {}
        for name, tangent in self.tangent.items():
            moved[name] = self.model.params[name] + t.to(tangent).reshape(-1, *[1] * (tangent.dim() - 1)) * tangent
        return replace(self.model, params=self.model.params | moved)


def steepest(
    model: PostNormResNet,
    layer: int,
    x: Tensor,
    y: Tensor,
    hidden: int = 64,
    init: str = "zero_out",
    activation: str = "relu",
    generators: Sequence[torch.Generator] | None = None,
    loss: str = "ce",
) -> Line:
    """The `Line` of a block inserted after ``layer``, its gradient taken on the sample x (n, ...), y (n,).

    Arguments as for ``network.insert_block`` and ``jumpboard.activation_gradient``. For init "zero_out" it is the
    gradient direction V = −M of ``jumpboard.direction``. Raises ValueError for what does not fit.

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> [bool(steepest(model, 1, x, y, 4, init).gain > 0) for init in ("zero_out", "zero_in", "zero_both")]
    [True, False, False]
    """
    new = insert_block(model, layer, hidden, init, generators, activation)
    tangent = {name: -grad for name, grad in _gradients(new, layer, x, y, loss).items()}
    with torch.no_grad():
        z = new.bottom(x, layer)
    speed = _speed(new, layer, z, tangent)
    gain = sum(part.flatten(1).square().sum(1) for part in tangent.values())
    return Line(new, layer, tangent, gain, speed.square().flatten(2).sum(2).mean(1), loss)


def slope_along(line: Line, x: Tensor, y: Tensor) -> Tensor:
    """d/dt of the loss at t = 0 on a sample, ⟨∇L, tangent⟩ (net,): −G on the sample that gave the line.

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> line = steepest(model, 1, x, y, 4)
    >>> bool((slope_along(line, x, y) + line.gain).abs() < 1e-12)
    True
    """
    grads = _gradients(line.model, line.layer, x, y, line.loss)
    return sum((grads[name] * tangent).flatten(1).sum(1) for name, tangent in line.tangent.items())


def gain_along(line: Line, x: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """L(start) − L(t) on a sample at steps t (step,), or (net, step) → (net, step).

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> gain_along(steepest(model, 1, x, y, 4, "zero_both"), x, y, torch.tensor([0.5, 1.0], dtype=torch.float64))
    tensor([[0., 0.]], dtype=torch.float64)
    """
    (t,) = as_tensors(t=t)
    if t.dim() not in (1, 2) or t.shape[:-1] not in ((), (line.model.n_nets,)) or 0 in t.shape:
        raise ValueError(f"t must be (step,) or ({line.model.n_nets}, step), got {tuple(t.shape)}")
    with torch.no_grad():
        z = line.model.bottom(x, line.layer)

        def losses(model: PostNormResNet) -> Tensor:
            return sample_losses(model.top(z, line.layer), y, line.loss)

        before = losses(line.model)
        steps = t.expand(line.model.n_nets, -1).unbind(1)
        return torch.stack([(before - losses(line.at(step))).mean(1) for step in steps], 1)


def _speed(new: PostNormResNet, layer: int, z: Tensor, tangent: Params) -> Tensor:
    """dh/dt at t = 0, in the shape of z: a product with the Jacobian, by differentiating that with its transpose."""
    own = {name: new.params[name].detach().requires_grad_() for name in tangent}
    with torch.enable_grad():
        h = new.residual(z, layer + 1, new.params | own)
        weight = torch.zeros_like(h, requires_grad=True)
        pulled = torch.autograd.grad(h, list(own.values()), weight, create_graph=True)
        total = sum((part * tangent[name]).sum() for name, part in zip(own, pulled, strict=True))
        return torch.autograd.grad(total, weight)[0]


def _gradients(new: PostNormResNet, layer: int, x: Tensor, y: Tensor, loss: str) -> Params:
    """Of the mean loss with respect to the weights of block ``layer`` + 1."""
    if 0 in x.shape:
        raise ValueError(f"x must not be empty, got {tuple(x.shape)}")
    names = block_names(new, layer + 1)
    with torch.no_grad():
        z = new.bottom(x, layer)
    own = {name: new.params[name].detach().requires_grad_() for name in names}
    with torch.enable_grad():
        total = sample_losses(new.top(z, layer, new.params | own), y, loss).mean(1).sum()
        return dict(zip(names, torch.autograd.grad(total, list(own.values())), strict=True))
