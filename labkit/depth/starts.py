"""Starts of an inserted block, alive or dead: the line along which gradient descent leaves each of them.

A block h = W_2 σ(W_1 z) that computes 0 has the gradients

    ∂L/∂W_2 = E[g σ(W_1 z)ᵀ],   ∂L/∂W_1 = E[(W_2ᵀg ⊙ σ'(W_1 z)) zᵀ],

each with the *other* weight as a factor: with W_1 = W_2 = 0 both vanish (σ(0) = 0), and descent never moves. With
W_1 = 0 alone the second one is alive, unless σ'(0) = 0, which is what autograd takes for ReLU. Derived here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.depth.jumpboard import SECOND_DIFFERENCE, Direction, evaluate, gain_curve, quadratic_bound
from labkit.depth.network import PostNormResNet, block_names, fit, insert_block, sample_losses
from labkit.training import SGD, Params
from labkit.validate import as_tensors, require_finite, require_positive, require_whole


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
        t = self.model.per_net(t=t)
        moved = {}
        for name, tangent in self.tangent.items():
            moved[name] = self.model.params[name] + t.reshape(-1, *[1] * (tangent.dim() - 1)) * tangent
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
    model.require_sample(x, y)
    new = insert_block(model, layer, hidden, init, generators, activation)
    tangent = {name: -grad for name, grad in _gradients(new, layer, x, y, loss).items()}
    with torch.no_grad():
        z = new.bottom(x, layer)
    speed = _speed(new, layer, z, tangent)
    gain = sum(part.flatten(1).square().sum(1) for part in tangent.values())
    return Line(new, layer, tangent, gain, speed.square().flatten(2).sum(2).mean(1), loss)


def descend(line: Line, x: Tensor, y: Tensor, steps: int, lr: float = 0.1) -> PostNormResNet:
    """The model after so many steps of gradient descent on the weights of the new block alone, on the sample.

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> after = descend(steepest(model, 1, x, y, 4, "zero_both"), x, y, steps=10)
    >>> torch.equal(after(x), model(x))  # dead
    True
    """
    _require_line(line)
    return fit(line.model, x, y, steps, batch=None, only=list(line.tangent), optimizer=SGD(lr)).model


def slope_along(line: Line, x: Tensor, y: Tensor) -> Tensor:
    """d/dt of the loss at t = 0 on a sample, ⟨∇L, tangent⟩ (net,): −G on the sample that gave the line.

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> line = steepest(model, 1, x, y, 4)
    >>> bool((slope_along(line, x, y) + line.gain).abs() < 1e-12)
    True
    """
    _require_line(line)
    grads = _gradients(line.model, line.layer, x, y, line.loss)
    return sum((grads[name] * tangent).flatten(1).sum(1) for name, tangent in line.tangent.items())


def gain_along(line: Line, x: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """L(start) − L(t) on a sample at steps t (step,), or (net, step) → (net, step).

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> gain_along(steepest(model, 1, x, y, 4, "zero_both"), x, y, torch.tensor([0.5, 1.0], dtype=torch.float64))
    tensor([[0., 0.]], dtype=torch.float64)
    """
    _require_line(line)
    (t,) = as_tensors(t=t)
    if t.dim() not in (1, 2) or t.shape[:-1] not in ((), (line.model.n_nets,)) or 0 in t.shape:
        raise ValueError(f"t must be (step,) or ({line.model.n_nets}, step), got {tuple(t.shape)}")
    require_finite(t=t)
    line.model.require_sample(x, y)
    with torch.no_grad():
        z = line.model.bottom(x, line.layer)

        def losses(model: PostNormResNet) -> Tensor:
            return sample_losses(model.top(z, line.layer), y, line.loss)

        before = losses(line.model)
        steps = t.expand(line.model.n_nets, -1).unbind(1)
        alive = any(tangent.any() for tangent in line.tangent.values())
        taken = steps if alive else steps[:1]  # nothing moves: all steps are one model
        found = torch.stack([(before - losses(line.at(step))).mean(1) for step in taken], 1)
        return found.expand(-1, len(steps))


class Journey(NamedTuple):
    """What a sample sees along a line, steps measured by the rms of h: ``sizes`` (point,), the others by net.

    ``gain`` (net, point) is measured; ``slope`` and ``curvature`` (net,) are per unit of size, the curvature the
    largest that was found, hence an estimate. The rms of z is about 1.
    """

    sizes: Tensor
    gain: Tensor
    slope: Tensor
    curvature: Tensor

    @property
    def promise(self) -> Tensor:
        """First order: size times slope (net, point)."""
        return self.sizes * self.slope[:, None]

    @property
    def bound(self) -> Tensor:
        """`quadratic_bound` (net, point)."""
        return quadratic_bound(self.slope[:, None], self.curvature[:, None], self.sizes)

    @property
    def guaranteed(self) -> Tensor:
        """G²/(2βS), the highest point of the bound (net,); 0 where the slope is not positive."""
        bent = torch.where(self.curvature > 0, self.curvature, 1)
        return torch.where((self.slope > 0) & (self.curvature > 0), self.slope**2 / (2 * bent), 0)


def journey(
    model: PostNormResNet, line: Line | Direction, x: Tensor, y: Tensor, reach: float, points: int = 31, grid: int = 8
) -> Journey:
    """Along a `Line` or a ``jumpboard.Direction`` of the model, on a sample, as far as h has rms ``reach``.

    points: of the gain, evenly spaced from 0; grid: places where the curvature is taken. A dead line goes nowhere: all
    is 0. Raises ValueError for what does not fit.

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> seen = journey(model, steepest(model, 1, x, y, 4), x, y, reach=0.01)
    >>> bool((seen.gain[0, -1] / seen.promise[0, -1] - 1).abs() < 0.1), seen.sizes[-1].item()
    (True, 0.01)
    """
    require_whole(2, points=points)
    require_whole(1, grid=grid)
    (reach,) = as_tensors(reach=reach)
    if reach.dim():
        raise ValueError(f"reach must be a number, got shape {tuple(reach.shape)}")
    require_positive(reach=reach)
    unit = (line.energy / model.width).sqrt()
    unit = 1 / torch.where(unit > 0, unit, 1)
    place = {"dtype": unit.dtype, "device": unit.device}
    sizes = torch.linspace(0, 1, points, **place) * reach.to(unit)
    h = SECOND_DIFFERENCE
    middle = torch.linspace(h, 1, grid, **place) if grid > 1 else unit.new_ones(1)
    places = torch.cat([sizes, torch.cat([middle - h, middle, middle + h]) * reach.to(unit)]) * unit[:, None]
    if isinstance(line, Line):
        gains, slope = gain_along(line, x, y, places), 0 - slope_along(line, x, y)  # 0, not −0, when dead
    else:
        gains, slope = gain_curve(model, line, x, y, places), evaluate(model, line, x, y).gain
    before, here, after = gains[:, points:].unflatten(1, (3, -1)).unbind(1)
    bends = (2 * here - before - after) / (h * reach.to(unit)) ** 2
    return Journey(sizes, gains[:, :points], slope * unit, bends.amax(1))


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
    new.require_sample(x, y)
    names = block_names(new, layer + 1)
    with torch.no_grad():
        z = new.bottom(x, layer)
    own = {name: new.params[name].detach().requires_grad_() for name in names}
    with torch.enable_grad():
        total = sample_losses(new.top(z, layer, new.params | own), y, loss).mean(1).sum()
        return dict(zip(names, torch.autograd.grad(total, list(own.values())), strict=True))


def _require_line(line: Line) -> None:
    if not isinstance(line, Line):
        raise TypeError(f"line must be a Line, as steepest(...) gives it, got {type(line).__name__}")
