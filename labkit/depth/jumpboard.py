"""The jumpboard: the first-order gain of a block h(z) = V φ(z), φ = σ(W_1 z), inserted into a trained network.

With g = ∇_z ℓ(f_top(z), y) at z = f_bot(x) the loss along V starts with slope

    d/dt L(tV) = E⟨g, Vφ⟩ = ⟨M, V⟩ = −G(V),   M = E[gφᵀ],   and bends at most by β·S(V), S(V) = E‖Vφ‖², Φ = E[φφᵀ],

so that it gains at least tG − βSt²/2: G²/(2βS) at t = G/(βS). Among all V, G²/S is largest for V = −MΦ⁻¹, where it
is tr(MΦ⁻¹Mᵀ) = E‖Π_φ g‖², what the features predict of g (the ridge direction); −M is steepest per ‖V‖ only.
From the sample that trains the jumpboard V, M and the gain all look too good: judge on other samples.

On images a sum over positions p stands inside every expectation: ⟨g, Vφ⟩ = Σ_p ⟨g_p, Vφ_p⟩, with φ_p from the
3 × 3 patch around p and the same V at all p. The existence of a descent direction at a start that leaves the function
as it is, and its two jumpboards, are from arXiv 2605.08297; formulas and constants are derived here.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from labkit import training
from labkit.depth.network import (
    ACTIVATIONS,
    FIRST_SEED,
    Block,
    PostNormResNet,
    classes_of,
    require_activation,
    require_generators,
    require_pair,
    sample_losses,
    with_block,
)
from labkit.training import he
from labkit.validate import (
    as_tensors,
    refuse,
    require_broadcast,
    require_finite,
    require_positive,
    require_range,
    require_whole,
)

KINDS = ("ridge", "gradient")
RIDGE = 1e-2  # λ, in units of the mean square of a feature
ARMIJO = 0.1  # of the slope's promise that a step must keep
HALVINGS = 16
BISECTIONS = 32
CACHED = 2**16  # numbers of a layer that a core keeps close: steps of a gain curve go through in such parts
SECOND_DIFFERENCE = 2e-2  # h of a curvature, in units of the step: with ReLU only finite differences see the kinks


def mean_loss(model: PostNormResNet, x: Tensor, y: Tensor, loss: str = "ce") -> Tensor:
    """L_S, the mean loss of each net on the sample: (net,). Arguments and errors as for `activation_gradient`.

    >>> mean_loss(PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])).shape
    torch.Size([1])
    """
    model.require_sample(x, y)
    with torch.no_grad():
        return sample_losses(model(x), y, loss).mean(1)


# ---- Activation gradients, features, moments --------------------------------------------------------------------


def activation_gradient(model: PostNormResNet, layer: int, x: Tensor, y: Tensor, loss: str = "ce") -> Tensor:
    """g = ∇_z ℓ(f_top(z), y) at z = f_bot(x) after ``layer``, one a sample: (net, n, width).

    For images (net, n, height, width, channels). The *sum* of the losses is differentiated: the mean would divide
    each gradient by n. x (n, ...) shared by the nets or (net, n, ...), y (n,) or (net, n).
    Raises ValueError for a layer that is not there, an empty sample, NaN in x and labels that do not fit.

    >>> model = PostNormResNet(3, 8, 2, 8, 2)
    >>> g = activation_gradient(model, 1, torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0]))
    >>> g.shape, bool((g * model.bottom(torch.eye(3).double(), 1)).sum(-1).abs().max() < 1e-4)  # Euler: ⟨g, z⟩ = 0
    (torch.Size([1, 3, 8]), True)
    """
    return _look(model, layer, x, y, loss)[1]


def draw_features(model: PostNormResNet, hidden: int, generators: Sequence[torch.Generator] | None = None) -> Tensor:
    """W_1 (net, hidden, width) ~ N(0, 2/width) of a new block, for images (net, hidden, channels, 3, 3).

    By default from the seeds that ``insert_block`` takes: the first rows are those of a narrower block.

    >>> draw_features(PostNormResNet(3, 8, 2, 8, 2), hidden=5).shape
    torch.Size([1, 5, 8])
    """
    require_whole(1, hidden=hidden)
    if generators is None:
        generators = training.generators(range(FIRST_SEED, FIRST_SEED + model.n_nets))
    require_generators(generators, model.n_nets)
    like = model.params["out"]
    return he((hidden, model.width, *model._kernel), generators, device=like.device, dtype=like.dtype)


def features(model: PostNormResNet, z: Tensor, w1: Tensor, activation: str = "relu") -> Tensor:
    """φ = σ(W_1 z) of a layer z (net, n, ..., width), w1 as `draw_features` gives it → (net, n, ..., hidden).

    Raises ValueError for a w1 of another shape and for an unknown activation.

    >>> model = PostNormResNet(3, 8, 2, 8, 2)
    >>> features(model, model.bottom(torch.eye(3, dtype=torch.float64), 1), draw_features(model, 5)).shape
    torch.Size([1, 3, 5])
    """
    require_activation(activation)
    model.require_state(z)
    model._require_like("w1", w1)
    if w1.dim() != 3 + len(model._kernel) or w1.shape[0] != model.n_nets or w1.shape[2] != model.width:
        wanted = ", ".join(map(str, (model.n_nets, "hidden", model.width, *model._kernel)))
        raise ValueError(f"w1 must be ({wanted}), got {tuple(w1.shape)}")
    return ACTIVATIONS[activation](model._outside(model._map(model._inside(z), w1)))


class Moments(NamedTuple):
    """M = mean gφᵀ (net, d, m) and Φ = mean φφᵀ (net, m, m) over a sample, positions summed; E‖g‖² (net,)."""

    cross: Tensor
    second: Tensor
    energy: Tensor


def moments(g: Tensor, phi: Tensor) -> Moments:
    """M and Φ of activation gradients g (net, n, ..., d) and features phi (net, n, ..., m) of the same samples.

    Raises ValueError for an empty sample, NaN or infinity, and for shapes that do not fit.

    >>> found = moments(torch.tensor([[[1.0], [-1.0]]]), torch.tensor([[[1.0, 2.0], [1.0, 0.0]]]))
    >>> found.cross, found.second[0, 0], found.energy
    (tensor([[[0., 1.]]]), tensor([1., 1.]), tensor([1.]))
    """
    g, phi = _admit_pair(g, phi)
    n = g.shape[1]
    flat_g, flat_phi = g.flatten(1, -2), phi.flatten(1, -2)  # (net, n·position, ·)
    return Moments(flat_g.mT @ flat_phi / n, flat_phi.mT @ flat_phi / n, flat_g.square().sum((1, 2)) / n)


def observe(
    model: PostNormResNet,
    layer: int,
    x: Tensor,
    y: Tensor,
    w1: Tensor,
    activation: str = "relu",
    loss: str = "ce",
) -> Moments:
    """The `moments` of a sample after ``layer``: all that it says about a block with the features σ(W_1 z).

    >>> model = PostNormResNet(3, 8, 2, 8, 2)
    >>> here = observe(model, 1, torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0]), draw_features(model, 5))
    >>> here.cross.shape, here.second.shape
    (torch.Size([1, 8, 5]), torch.Size([1, 5, 5]))
    """
    z, g = _look(model, layer, x, y, loss)
    return moments(g, features(model, z, w1, activation))


def predictable_energy(model: PostNormResNet, layer: int, x: Tensor, probabilities: Tensor) -> Tensor:
    """E‖E[g | x]‖² (net,) where P(y | x) is known: what no block after ``layer``, however wide, explains more of.

    x (n, ...), probabilities (n, class); for cross-entropy, whose mean over y is differentiated in one go. A block sees
    z only, and E‖E[g | z]‖² ≤ E‖E[g | x]‖². Raises ValueError for what does not fit: probabilities lie in [0, 1] and
    sum to 1.

    >>> model, x = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64)
    >>> predictable_energy(model, 1, x, torch.softmax(model(x)[0], -1)).item() < 1e-20  # nothing is left to learn
    True
    """
    model.require_sample(x)
    model._require_like("probabilities", probabilities)
    shape = x.shape[-2 - len(model._kernel)], model.n_classes
    if probabilities.shape != shape:
        raise ValueError(f"probabilities must be {shape}, as (n, class), got {tuple(probabilities.shape)}")
    require_range(0, 1, probabilities=probabilities)
    sums, slack = probabilities.sum(1), 100 * torch.finfo(x.dtype).eps
    refuse("sum of probabilities", sums, (sums - 1).abs() <= slack * shape[1], "must be 1")
    with torch.no_grad():
        z = model.bottom(x, layer)
    z.requires_grad_()
    with torch.enable_grad():
        log_q = torch.log_softmax(model.top(z, layer), -1)
        (g,) = torch.autograd.grad(-(probabilities * log_q).sum(), z)
    return g.square().flatten(2).sum(2).mean(1)


def explained_energy(moments: Moments, ridge: float = 0.0) -> Tensor:
    """tr(MΦ⁻¹Mᵀ) = E‖Π_φ g‖² (net,): the largest G²/S, of the sample behind the moments; ridge as in `direction`.

    Non-decreasing in the number of features, up to E‖E[g|z]‖². In sample it counts noise as well (at least m of n
    directions of it): `evaluate` on other samples does not. Raises ValueError for ridge < 0, and when Φ + λI is not
    invertible.

    >>> cross, second = torch.tensor([[[2.0, 0.0]]]), torch.tensor([[[4.0, 0.0], [0.0, 1.0]]])
    >>> explained_energy(Moments(cross, second, torch.ones(1)))
    tensor([1.])
    """
    _require_moments(moments=moments)
    solved = _ridge(moments, ridge)
    return (solved * moments.cross).sum((1, 2))


def energy_by_width(chosen: Moments, judged: Moments, ridge: float = 0.0) -> Tensor:
    """G·|G|/S on one sample of the ridge directions that another one chose, for 1, 2, …, m features: (net, m).

    Both moments are of the same m features; V of the first k of them is −M(Φ + λI)⁻¹, λ as for all m, of ``chosen``.
    With ``judged`` the same sample it is `explained_energy` when ridge = 0; on another one it is what is left of it.
    All widths come from one Cholesky factor L: in the features L⁻¹φ the directions are nested.
    Raises ValueError when Φ + λI is not invertible, for moments of other shapes and NaN.

    >>> here = Moments(torch.tensor([[[2.0, 1.0]]]), torch.tensor([[[4.0, 0.0], [0.0, 1.0]]]), torch.ones(1))
    >>> energy_by_width(here, here)
    tensor([[1., 2.]])
    """
    _require_moments(chosen=chosen, judged=judged)
    factor = _factor(chosen, ridge)

    def white(matrix: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(factor, matrix, upper=False)

    mine = white(chosen.cross.mT)  # (net, m, d)
    gain = (mine * white(judged.cross.mT)).sum(2).cumsum(1)
    pairs = (mine @ mine.mT) * white(white(judged.second).mT)
    energy = pairs.cumsum(1).cumsum(2).diagonal(dim1=1, dim2=2)
    return gain * gain.abs() / torch.where(energy > 0, energy, 1)


# ---- Directions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Direction:
    """A block h = t·V σ(W_1 z) after ``layer``, up to the step t, and what it promises on the sample that chose it.

    Fields
        layer, activation: where, and σ
        w1, v: W_1 (net, m, d), with (…, 3, 3) for images; V (net, d, m)
        gain: G = −⟨M, V⟩ (net,), ≥ 0: minus the slope of the loss at t = 0
        energy: S = E‖Vφ‖² (net,)
        loss: whose gradient it is
    """

    layer: int
    activation: str
    w1: Tensor
    v: Tensor
    gain: Tensor
    energy: Tensor
    loss: str = "ce"


def direction(
    model: PostNormResNet,
    layer: int,
    x: Tensor,
    y: Tensor,
    w1: Tensor | int = 64,
    kind: str = "ridge",
    ridge: float = RIDGE,
    activation: str = "relu",
    loss: str = "ce",
) -> Direction:
    """The direction V of the output weights of a new block after ``layer``, from a sample.

    Arguments
        x, y: the sample: of a population, or the training set; x (n, ...) or (net, n, ...)
        w1: W_1 as `draw_features` gives it, or the number m of features, then drawn by it
        kind: "ridge", V = −M(Φ + λI)⁻¹; "gradient", V = −M, what gradient descent on W_2 does first
        ridge: λ ≥ 0 in units of the mean of Φ's diagonal; with 0, Φ must be invertible
        activation, loss: σ of the block, "ce" or "prob"

    Returns a `Direction`. Where M = 0, V is zero: no first-order descent. Raises ValueError for what does not fit.

    >>> model, x = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64)
    >>> found = direction(model, 1, x, torch.tensor([0, 1, 0]), w1=2)
    >>> found.v.shape, bool(found.gain > 0)
    (torch.Size([1, 8, 2]), True)
    """
    w1 = w1 if isinstance(w1, Tensor) else draw_features(model, w1)
    found = observe(model, layer, x, y, w1, activation, loss)
    return direction_from(found, layer, w1, kind, ridge, activation, loss)


def direction_from(
    moments: Moments,
    layer: int,
    w1: Tensor,
    kind: str = "ridge",
    ridge: float = RIDGE,
    activation: str = "relu",
    loss: str = "ce",
) -> Direction:
    """The `direction` that the moments of a sample give; of the first features only, when w1 holds fewer than they do.

    So one pass over a large sample serves every width of the block. Raises ValueError for what does not fit.

    >>> here = Moments(torch.tensor([[[2.0, 1.0]]]), torch.tensor([[[4.0, 0.0], [0.0, 1.0]]]), torch.ones(1))
    >>> direction_from(here, 1, torch.ones(1, 1, 1), ridge=0.0).v
    tensor([[[-0.5000]]])
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    _require_moments(moments=moments)
    (w1,) = as_tensors(w1=w1)
    nets, width, _ = moments.cross.shape
    if w1.dim() < 3 or w1.shape[0] != nets or w1.shape[2] != width:
        raise ValueError(f"w1 must be ({nets}, hidden, {width}), with (…, 3, 3) for images, got {tuple(w1.shape)}")
    count = w1.shape[1]
    if not 1 <= count <= moments.second.shape[1]:
        raise ValueError(f"w1 must hold 1 to {moments.second.shape[1]} features, as the moments do, got {count}")
    found = Moments(moments.cross[..., :count], moments.second[:, :count, :count], moments.energy)
    v = -(found.cross if kind == "gradient" else _ridge(found, ridge))
    gain = -(found.cross * v).sum((1, 2))
    return Direction(layer, activation, w1, v, gain, _energy(v, found.second), loss)


def slope(model: PostNormResNet, direction: Direction, x: Tensor, y: Tensor) -> Tensor:
    """d/dt L(tV) at t = 0 on a sample: mean ⟨g, Vφ⟩ = −G (net,).

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> found = direction(model, 1, x, y, w1=2)
    >>> bool((slope(model, found, x, y) + found.gain).abs() < 1e-12)  # on the sample that chose V
    True
    """
    return scores(model, direction, x, y).mean(1)


def scores(model: PostNormResNet, direction: Direction, x: Tensor, y: Tensor) -> Tensor:
    """s_i = ⟨g_i, Vφ_i⟩ of each sample, (net, n): mean −G; what ``covariance.samples_to_see`` takes.

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> found = direction(model, 1, x, y, w1=2)
    >>> bool((scores(model, found, x, y).mean(1) + found.gain).abs() < 1e-12)
    True
    """
    _require_direction(direction)
    z, g = _look(model, direction.layer, x, y, direction.loss)
    return (g * _move(model, direction, z)).flatten(2).sum(2)


class Evaluation(NamedTuple):
    """A direction on a sample that did not choose it: G, S and E⟨g, Vφ⟩² (net,)."""

    gain: Tensor
    energy: Tensor
    square: Tensor

    @property
    def explained(self) -> Tensor:
        """G·|G|/S: out-of-sample E‖Π g‖² along V, negative where V points up. 0 for V = 0."""
        return self.gain * self.gain.abs() / torch.where(self.energy > 0, self.energy, 1)


def evaluate(model: PostNormResNet, direction: Direction, x: Tensor, y: Tensor) -> Evaluation:
    """G, S and E⟨g, Vφ⟩² of a direction on a sample: an honest one is not the sample that chose it.

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> found = direction(model, 1, x, y, w1=2)
    >>> torch.allclose(evaluate(model, found, x, y).energy, found.energy)
    True
    """
    _require_direction(direction)
    z, g = _look(model, direction.layer, x, y, direction.loss)
    move = _move(model, direction, z)
    s = (g * move).flatten(2).sum(2)
    return Evaluation(-s.mean(1), move.square().flatten(2).sum(2).mean(1), s.square().mean(1))


# ---- The step ---------------------------------------------------------------------------------------------------


def gain_curve(model: PostNormResNet, direction: Direction, x: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """L(f_old) − L(f_t) on a sample, at steps t (step,) for all nets or (net, step) → (net, step).

    Differences are taken sample by sample, then averaged. In float32 small steps drown in rounding: use float64 below
    t = 1e-2. Raises ValueError for another shape of t, and as `activation_gradient` does.

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> found = direction(model, 1, x, y, w1=2)
    >>> curve = gain_curve(model, found, x, y, torch.tensor([0.0, 0.01], dtype=torch.float64))
    >>> curve[0, 0].item(), bool(abs(curve[0, 1] / (0.01 * found.gain) - 1) < 0.1)
    (0.0, True)
    """
    _require_direction(direction)
    model.require_sample(x, y)
    with torch.no_grad():
        z = model.bottom(x, direction.layer)
        return _gains(model, direction, z, _move(model, direction, z), y, t)


def quadratic_bound(gain: float | Tensor, curvature: float | Tensor, t: float | Tensor) -> Tensor:
    """tG − t²·curvature/2, the least gain at t where the second derivative along V is at most ``curvature``.

    Arguments broadcast. Raises ValueError for NaN or infinity.

    >>> quadratic_bound(torch.tensor(2.0), torch.tensor(1.0), torch.tensor([1.0, 2.0]))
    tensor([1.5000, 2.0000])
    """
    gain, curvature, t = as_tensors(gain=gain, curvature=curvature, t=t)
    require_finite(gain=gain, curvature=curvature, t=t)
    require_broadcast(gain=gain, curvature=curvature, t=t)
    return t * gain - t**2 * curvature / 2


def line_curvature(
    model: PostNormResNet, direction: Direction, x: Tensor, y: Tensor, t_max: float | Tensor, points: int = 8
) -> Tensor:
    """The largest second difference of the loss along V over [0, t_max], at ``points`` places (net,).

    It stands for βS or sup d²L/dt² in `quadratic_bound`. Sampled, so an estimate and not a certificate: a ReLU top has
    kinks. t_max > 0: a number or (net,). Needs float64.

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> found = direction(model, 1, x, y, w1=2)
    >>> line_curvature(model, found, x, y, t_max=0.5).shape
    torch.Size([1])
    """
    require_whole(1, points=points)
    t_max = model.per_net(require_positive, t_max=t_max)
    like = model.params["out"]
    h = SECOND_DIFFERENCE
    middle = torch.linspace(h, 1, points, dtype=like.dtype, device=like.device) if points > 1 else like.new_ones(1)
    grid = torch.cat([middle - h, middle, middle + h]) * t_max[:, None]
    gains = gain_curve(model, direction, x, y, grid)
    before, here, after = gains.unflatten(1, (3, -1)).unbind(1)
    return ((2 * here - before - after) / (h * t_max[:, None]) ** 2).amax(1)


class Step(NamedTuple):
    """The step of each net (net,), its gain on the sample that chose it, and whether one was found: else both are 0."""

    t: Tensor
    gain: Tensor
    found: Tensor


def line_search(
    model: PostNormResNet,
    direction: Direction,
    x: Tensor,
    y: Tensor,
    start: float | Tensor | None = None,
) -> Step:
    """The largest of start, start/2, start/4, … whose gain is at least `ARMIJO`·t·G (Armijo's rule).

    start: number or (net,) > 0; by default G/curvature, the curvature at t = 0. All halvings are tried at once.
    Where none of the `HALVINGS` gains, a warning says for which nets, and their step is 0. Raises ValueError for
    another start, and as `activation_gradient` does.

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> step = line_search(model, direction(model, 1, x, y, w1=2), x, y)
    >>> bool(step.found), bool(step.gain > 0)
    (True, True)
    """
    if start is not None:
        start = model.per_net(require_positive, start=start)
    promised = -slope(model, direction, x, y)
    with torch.no_grad():
        z = model.bottom(x, direction.layer)
        move = _move(model, direction, z)
        if start is None:
            start = _first_step(model, direction, z, move, y, promised)
        t = start[:, None] * 0.5 ** torch.arange(HALVINGS, dtype=z.dtype, device=z.device)
        gains = _gains(model, direction, z, move, y, t)
    good = (gains >= ARMIJO * t * promised[:, None]) & (gains > 0)
    found, first = good.any(1), good.to(torch.uint8).argmax(1, keepdim=True)
    _say_so(found, "along this direction")
    zero = torch.zeros_like(start)
    return Step(
        torch.where(found, t.gather(1, first)[:, 0], zero),
        torch.where(found, gains.gather(1, first)[:, 0], zero),
        found,
    )


def insert_direction(model: PostNormResNet, direction: Direction, t: float | Tensor = 1.0) -> PostNormResNet:
    """The model with the block h = t·V σ(W_1 z), t a number or (net,): the near-identity model at step t.

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> found = direction(model, 1, x, y, w1=2)
    >>> torch.equal(insert_direction(model, found, 0.0)(x), model(x))
    True
    """
    _require_direction(direction)
    t = model.per_net(t=t)
    w2 = t[:, None, None] * direction.v  # (net, d, m)
    kernel = model._kernel
    if kernel:  # V acts on each position: it is the middle of the second convolution
        grown = w2.new_zeros(*w2.shape, *kernel)
        grown[..., kernel[0] // 2, kernel[1] // 2] = w2
        w2 = grown
    block = Block(w2.shape[2], direction.activation, normed=False)
    return with_block(model, direction.layer, {"w1": direction.w1, "w2": w2}, block)


class Jumpboard(NamedTuple):
    """The near-identity model, with its direction and its step."""

    model: PostNormResNet
    direction: Direction
    step: Step


def jumpboard(
    model: PostNormResNet,
    layer: int,
    x: Tensor,
    y: Tensor,
    w1: Tensor | int = 64,
    kind: str = "ridge",
    ridge: float = RIDGE,
    activation: str = "relu",
    loss: str = "ce",
) -> Jumpboard:
    """Direction, line search and insertion from one sample; arguments as for `direction`.

    The *training-set* jumpboard takes the sample that trains, the *population* jumpboard one so large that it stands
    for the population. Neither's gain on its own sample says what it is worth: measure it on another.

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> board = jumpboard(model, 1, x, y, w1=2)
    >>> bool((mean_loss(model, x, y) - mean_loss(board.model, x, y) - board.step.gain).abs() < 1e-12)
    True
    """
    found = direction(model, layer, x, y, w1, kind, ridge, activation, loss)
    step = line_search(model, found, x, y)
    return Jumpboard(insert_direction(model, found, step.t), found, step)


# ---- The signal -------------------------------------------------------------------------------------------------


class Signal(NamedTuple):
    """‖M‖_F² from n samples (net,): biased upwards, without bias (may be negative), and the difference of the two."""

    raw: Tensor
    debiased: Tensor
    floor: Tensor


def debiased_signal(g: Tensor, phi: Tensor) -> Signal:
    """‖E gφᵀ‖_F² from fresh samples g (net, n, ..., d), phi (net, n, ..., m).

    E‖M̂‖² = ‖M‖² + (E‖gφᵀ‖² − ‖M‖²)/n; the mean of ⟨M_i, M_j⟩ over pairs i ≠ j, M_i = Σ_p g_p φ_pᵀ, has no bias. This
    is for samples that the network has not seen: on those that trained it fitting suppresses M̂ instead.
    Raises ValueError for n < 2, NaN or infinity, and for shapes that do not fit.

    >>> ones = torch.ones(1, 2, 1)
    >>> debiased_signal(torch.tensor([[[1.0], [-1.0]]]), ones)
    Signal(raw=tensor([0.]), debiased=tensor([-1.]), floor=tensor([1.]))
    """
    g, phi = _admit_pair(g, phi)
    n = g.shape[1]
    if n < 2:
        raise ValueError(f"g must hold at least 2 samples, got {n}")
    flat_g, flat_phi = g.flatten(1, -2), phi.flatten(1, -2)
    raw = (flat_g.mT @ flat_phi / n).square().sum((1, 2))
    if g.dim() == 3:
        own = g.square().sum(-1) * phi.square().sum(-1)
    else:  # ‖Σ_p g_p φ_pᵀ‖² by the Gram matrices of the positions
        g, phi = g.flatten(2, -2), phi.flatten(2, -2)
        own = ((g @ g.mT) * (phi @ phi.mT)).sum((-2, -1))
    debiased = (n * raw - own.mean(1)) / (n - 1)
    return Signal(raw, debiased, raw - debiased)


# ---- Condition 2 ------------------------------------------------------------------------------------------------


class Chosen(NamedTuple):
    """f_new, its erm_gain L_S(jumpboard) − L_S(f_new) ≥ 0 (net,), and where the jumpboard was taken (net,)."""

    model: PostNormResNet
    erm_gain: Tensor
    fell_back: Tensor


def fall_back(trained: PostNormResNet, board: PostNormResNet, x: Tensor, y: Tensor, loss: str = "ce") -> Chosen:
    """Condition 2: of each pair of nets the one with the smaller training loss, the trained one on a tie.

    ``trained`` and ``board`` are alike but for their weights: training started from the inserted block. Raises
    ValueError if not, and where the loss of the jumpboard itself is not finite.
    (Where the jumpboard is one of a population, L_S(board) is still that of the sample: only a known teacher has it.)

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> board = jumpboard(model, 1, x, y, w1=2).model
    >>> chosen = fall_back(board, board, x, y)
    >>> chosen.erm_gain.item(), chosen.fell_back.item()
    (0.0, False)
    """
    if trained.blocks != board.blocks or trained.params.keys() != board.params.keys():
        raise ValueError("trained and board must have the same blocks: train the model with the inserted block")
    for what in ("in_dim", "width", "n_classes", "eps", "norm", "n_nets"):
        one, other = getattr(trained, what), getattr(board, what)
        if one != other:
            raise ValueError(f"trained and board must have the same {what}, got {one!r} and {other!r}")
    ours, theirs = mean_loss(trained, x, y, loss), mean_loss(board, x, y, loss)
    refuse("training loss of board", theirs, theirs.isfinite(), "must be finite: else there is nothing to fall back on")
    fell_back = ~(ours <= theirs)  # a net whose training diverged falls back too
    params = {
        name: torch.where(fell_back.reshape(-1, *[1] * (value.dim() - 1)), board.params[name], value)
        for name, value in trained.params.items()
    }
    kept = replace(trained, params=params)
    return Chosen(kept, theirs - torch.where(fell_back, theirs, ours), fell_back)


# ---- Controls: gains that need no new block ---------------------------------------------------------------------


def temperature_gain(logits: Tensor, y: Tensor, logits_test: Tensor, y_test: Tensor) -> tuple[Tensor, Tensor]:
    """The best factor of the logits on one sample (net,), and the cross-entropy it gains on another (net,).

    logits (net, n, class), y (n,) or (net, n). The factor lies in [1/8, 8]; the loss is convex in it, and its
    derivative is bisected. An overfitted network gains much here without any new representation.
    Raises ValueError for logits that are empty, not finite, or not of the same nets and classes, and for labels that
    do not fit.

    >>> logits = torch.tensor([[[4.0, 0.0]] * 4])
    >>> y = torch.tensor([0, 0, 0, 1])  # right in three of four: a difference of ln 3 would be honest
    >>> factor, gain = temperature_gain(logits, y, logits, y)
    >>> factor * 4
    tensor([1.0986])
    """
    logits, logits_test = as_tensors(logits=logits, logits_test=logits_test)
    require_finite(logits=logits, logits_test=logits_test)
    before = sample_losses(logits_test, y_test)
    sample_losses(logits, y)  # refuses what does not fit
    if logits.shape[::2] != logits_test.shape[::2]:
        shapes = f"{tuple(logits.shape)} and {tuple(logits_test.shape)}"
        raise ValueError(f"logits and logits_test must be of the same nets and classes, got {shapes}")
    right = logits.gather(-1, classes_of(logits, y)[..., None])[..., 0]
    high = torch.full_like(right[:, 0], math.log(8.0))
    low = -high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        p = torch.softmax(middle.exp()[:, None, None] * logits, -1)
        rising = ((p * logits).sum(-1) - right).mean(1) > 0
        low, high = torch.where(rising, low, middle), torch.where(rising, middle, high)
    factor = ((low + high) / 2).exp()
    return factor, (before - sample_losses(factor[:, None, None] * logits_test, y_test)).mean(1)


def parameter_step(
    model: PostNormResNet, x: Tensor, y: Tensor, start: float | Tensor = 8.0, loss: str = "ce"
) -> tuple[PostNormResNet, Step]:
    """One step of gradient descent on the *old* weights, its size by line search: the control for a jumpboard.

    Of start, start/2, … the one that gains most on the sample, among those that gain at least `ARMIJO` of what the
    slope promises: a control should be as good as it can be. Halving ends where it gains no more; a net for which
    none of `HALVINGS` does stays as it is, with a warning. Raises ValueError unless start, a number or (net,), is > 0,
    and as `activation_gradient` does.

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> moved, step = parameter_step(model, x, y)
    >>> bool((mean_loss(model, x, y) - mean_loss(moved, x, y) - step.gain).abs() < 1e-12)
    True
    """
    model.require_sample(x, y)
    start = model.per_net(require_positive, start=start)
    params = {name: value.detach().requires_grad_() for name, value in model.params.items()}
    before = sample_losses(model.forward(params, x), y, loss).mean(1)
    grads = dict(zip(params, torch.autograd.grad(before.sum(), list(params.values())), strict=True))
    square = sum(grad.flatten(1).square().sum(1) for grad in grads.values())

    def moved(t: Tensor) -> PostNormResNet:
        return replace(model, params={name: _along(model.params[name], grads[name], t) for name in grads})

    t, gain = torch.zeros_like(square), torch.zeros_like(square)
    for halvings in range(HALVINGS):
        step = start / 2**halvings
        now = before.detach() - mean_loss(moved(step), x, y, loss)
        better = (now >= ARMIJO * step * square) & (now > gain)
        t, gain = torch.where(better, step, t), torch.where(better, now, gain)
        if ((gain > 0) & ~better).all():
            break
    found = gain > 0
    _say_so(found, "against the gradient")
    return moved(t), Step(t, gain, found)


def margins(
    model: PostNormResNet,
    layer: int,
    chosen: tuple[Tensor, Tensor],
    judged: tuple[Tensor, Tensor],
    w1: Tensor | int = 64,
    ridge: float = RIDGE,
) -> dict[str, Tensor]:
    """What four changes of a trained model gain in cross-entropy, each (net,), on samples that did not choose them.

    Arguments
        chosen, judged: samples (x, y): the first gives direction and step, the second the gain
        layer, w1, ridge: of the new block, as for `direction`

    Two controls without a block, "temperature" and "old weights" (`parameter_step`); then the block along its
    "gradient" and along its "ridge" direction. The new block has earned something where it beats the controls.

    >>> model, x, y = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> found = margins(model, 1, (x, y), (x, y), w1=2)
    >>> list(found), bool(found["ridge"] > 0)
    (['temperature', 'old weights', 'gradient', 'ridge'], True)
    """
    require_pair(chosen=chosen, judged=judged)
    (x, y), test = chosen, judged
    model.require_sample(x, y)
    before, w1 = mean_loss(model, *test), w1 if isinstance(w1, Tensor) else draw_features(model, w1)
    with torch.no_grad():
        found = {"temperature": temperature_gain(model(x), y, model(test[0]), test[1])[1]}
    found["old weights"] = before - mean_loss(parameter_step(model, x, y)[0], *test)
    here = observe(model, layer, x, y, w1)
    for kind in ("gradient", "ridge"):
        line = direction_from(here, layer, w1, kind, ridge)
        step = line_search(model, line, x, y)
        found[kind] = gain_curve(model, line, *test, step.t[:, None])[:, 0]
    return found


# ---- Inside -----------------------------------------------------------------------------------------------------


def _say_so(found: Tensor, where: str) -> None:
    if not found.all():
        lost = (~found).nonzero().flatten().tolist()
        warnings.warn(f"no step {where} lowers the loss of net {lost}: their step is 0", stacklevel=3)


def _along(value: Tensor, grad: Tensor, t: Tensor) -> Tensor:
    return value - t.reshape(-1, *[1] * (value.dim() - 1)) * grad


def _look(model: PostNormResNet, layer: int, x: Tensor, y: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """z and g after ``layer``, without a graph."""
    model.require_sample(x, y)
    with torch.no_grad():
        z = model.bottom(x, layer)
    z.requires_grad_()
    with torch.enable_grad():
        total = sample_losses(model.top(z, layer), y, loss).sum()
        (g,) = torch.autograd.grad(total, z)
    return z.detach(), g


def _move(model: PostNormResNet, direction: Direction, z: Tensor) -> Tensor:
    """Vφ(z), in the shape of z."""
    phi = features(model, z, direction.w1, direction.activation)
    return (phi.flatten(1, -2) @ direction.v.mT).view(z.shape)


def _gains(model: PostNormResNet, direction: Direction, z: Tensor, move: Tensor, y: Tensor, t: Tensor) -> Tensor:
    (t,) = as_tensors(t=t)
    if t.dim() not in (1, 2) or t.shape[:-1] not in ((), (model.n_nets,)) or 0 in t.shape:
        raise ValueError(f"t must be (step,) or ({model.n_nets}, step), got {tuple(t.shape)}")
    require_finite(t=t)
    t = t.to(z).expand(model.n_nets, -1)
    y = classes_of(z, y)
    before = sample_losses(model.top(z, direction.layer), y, direction.loss)[:, None]  # (net, 1, n)
    at_once = max(1, (CACHED if z.device.type == "cpu" else CACHED << 8) // z.numel())
    return torch.cat([_gains_at(model, direction, z, move, y, before, some) for some in t.split(at_once, 1)], 1)


def _gains_at(
    model: PostNormResNet, direction: Direction, z: Tensor, move: Tensor, y: Tensor, before: Tensor, t: Tensor
) -> Tensor:
    """The steps t (net, step) as more samples of each net."""
    steps = t.shape[1]
    moved = z[:, None] + t.reshape(*t.shape, *[1] * (z.dim() - 1)) * move[:, None]  # (net, step, n, ..., d)
    labels = y[:, None].expand(-1, steps, -1).flatten(1)
    after = sample_losses(model.top(moved.flatten(1, 2), direction.layer), labels, direction.loss)
    return (before - after.unflatten(1, (steps, -1))).mean(2)


def _first_step(
    model: PostNormResNet, direction: Direction, z: Tensor, move: Tensor, y: Tensor, promised: Tensor
) -> Tensor:
    """G/curvature by a second difference over a short way in z; a way of rms 1 where that is not positive."""
    size = move.square().mean(tuple(range(1, move.dim()))).sqrt()  # rms of Vφ
    unit = 1 / torch.where(size > 0, size, 1)
    h = 0.1 * unit
    back, ahead = _gains(model, direction, z, move, y, torch.stack([-h, h], 1)).unbind(1)
    bend = -(back + ahead) / h**2
    step = promised / torch.where(bend > 0, bend, 1)
    return torch.where((bend > 0) & (step > 0) & (step < 100 * unit), step, unit)


def _ridge(moments: Moments, ridge: float) -> Tensor:
    """M(Φ + λI)⁻¹ (net, d, m)."""
    return torch.cholesky_solve(moments.cross.mT, _factor(moments, ridge)).mT


def _factor(moments: Moments, ridge: float) -> Tensor:
    """The Cholesky factor of Φ + λI (net, m, m)."""
    second = moments.second
    (penalty,) = as_tensors(ridge=ridge)
    if penalty.dim():
        raise ValueError(f"ridge must be a number, got shape {tuple(penalty.shape)}")
    require_range(0, math.inf, ridge=penalty)
    size = second.diagonal(dim1=1, dim2=2).mean(1)
    eye = torch.eye(second.shape[1], dtype=second.dtype, device=second.device)
    lam = ridge * torch.where(size > 0, size, 1)  # all features zero: M is zero too
    factor, info = torch.linalg.cholesky_ex(second + lam[:, None, None] * eye)
    refuse("info of Φ + λI", info, info == 0, "must be 0: it is not invertible, raise ridge or take fewer features")
    return factor


def _energy(v: Tensor, second: Tensor) -> Tensor:
    return ((v @ second) * v).sum((1, 2))


def _admit_pair(g: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
    g, phi = as_tensors(g=g, phi=phi)
    for name, value in (("g", g), ("phi", phi)):
        if value.dim() < 3 or 0 in value.shape:
            raise ValueError(f"{name} must be (net, n, ..., channels) and not empty, got {tuple(value.shape)}")
    if g.shape[:-1] != phi.shape[:-1]:
        raise ValueError(f"g and phi must belong to the same samples, got {tuple(g.shape)} and {tuple(phi.shape)}")
    require_finite(g=g, phi=phi)
    return g, phi


def _require_moments(**named: Moments) -> None:
    """Refuse moments of shapes that do not fit, one to the other, and NaN."""
    first = None
    for name, found in named.items():
        if not isinstance(found, Moments):
            raise TypeError(f"{name} must be Moments, as moments(g, phi) gives them, got {type(found).__name__}")
        parts = {f"{name}.{part}": value for part, value in found._asdict().items()}
        shapes = tuple(tuple(value.shape) for value in as_tensors(**parts))
        nets, width, count = shapes[0] if len(shapes[0]) == 3 else (0, 0, 0)
        if shapes != ((nets, width, count), (nets, count, count), (nets,)) or 0 in shapes[0]:
            raise ValueError(f"{name} must be (net, d, m), (net, m, m) and (net,), not empty, got {shapes}")
        require_finite(**parts)
        first = first or (name, shapes)
        if shapes != first[1]:
            raise ValueError(
                f"{first[0]} and {name} must be of the same nets and features, got {first[1]} and {shapes}"
            )


def _require_direction(direction: Direction) -> None:
    if not isinstance(direction, Direction):
        raise TypeError(f"direction must be a Direction, as direction(...) gives it, got {type(direction).__name__}")
