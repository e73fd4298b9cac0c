"""The residual network with the norm after the sum, for vectors and for images, many seeds as one; inserted blocks.

    z_0 = N(W_in x),   z_l = N(z_{l−1} + W_{2,l} σ(W_{1,l} z_{l−1})),  l = 1 … D,   f(x) = W_out z_D

N is RMSNorm or LayerNorm with eps. Blocks have no biases: then f is 0-homogeneous in z for ReLU and eps → 0; append a
constant 1 to x instead. Images: W_in, W_1 and W_2 are 3 × 3 convolutions, N acts on the channels of each position,
and W_out reads the mean over positions. All weights have a net axis in front and the nets are one stack, as in
``labkit.training``.

A block inserted after layer l is z + h(z), without a norm of its own: with h = 0 the function is the old one for
every eps. With ``normed=True`` it is N(z + h(z)), which for eps > 0 is not, because N(N(u)) ≠ N(u).
The expansion is that of arXiv 2605.08297; the table of starts is worked out here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from labkit import training
from labkit.depth.normalization import normalized, require_eps, require_norm, rms
from labkit.training import Adam, Params, Trained, conv2d, he, linear, normal, to_nets
from labkit.validate import as_tensors, refuse, require_finite, require_generator, require_whole

ACTIVATIONS = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "sigmoid": torch.sigmoid,  # σ(0) ≠ 0: only to be compared with
    "linear": lambda z: z,
}
STARTS = {  # of h = W_2 σ(W_1 z): which of W_1, W_2 is random, and whether a gate α = 0 stands before h
    "zero_out": (True, False, False),  # alive: ∂h = δW_2 σ(W_1 z)
    "zero_in": (False, True, False),  # tanh alive: ∂h = W_2 δW_1 z; ReLU dead, because autograd has σ'(0) = 0
    "zero_both": (False, False, False),  # dead, except for σ(0) ≠ 0
    "gate": (True, True, True),  # ReZero, h = α W_2 σ(W_1 z): the one scalar E⟨g, W_2 σ(W_1 z)⟩
    "random": (True, True, False),  # not function-preserving
}
LOSSES = ("ce", "prob")
KERNEL = 3  # pixels, of the convolutions
FIRST_SEED = 1_000_000  # of blocks that were given no generators: not a seed that drew the network itself


@dataclass(frozen=True)
class Block:
    """One block: its hidden width, activation, whether a norm follows the sum, whether a gate α stands before h."""

    hidden: int
    activation: str = "relu"
    normed: bool = True
    gated: bool = False

    def __post_init__(self) -> None:
        require_whole(1, hidden=self.hidden)
        require_activation(self.activation)


@dataclass(frozen=True, eq=False)
class PostNormResNet:
    """A stack of networks on vectors, with their weights.

    Arguments
        in_dim, width, depth, hidden, n_classes: p, d, D ≥ 0 blocks of hidden width m, K ≥ 2
        eps: of the norm, ≥ 0
        generators: one CPU generator a net, which draw W_in ~ N(0, 1/p), W_1 ~ N(0, 2/d),
            W_2 ~ N(0, residual_std²/m) and W_out ~ N(0, 1/d), in this order; by default one net of seed 0
        activation: of the blocks: "relu", "tanh", "gelu", "linear" (or "sigmoid", whose σ(0) ≠ 0)
        norm: "rms" or "layer"
        residual_std: by default 1/√D, which keeps the sum over blocks of the order of one block
        device, dtype: by default those of ``labkit.compute``

    Fields besides: ``blocks``, a tuple of `Block`; ``params``, a dict of tensors (net, ...) named "in", "w1.l",
    "w2.l" for l = 1 … D ("gate.l" where there is one) and "out". ``dataclasses.replace(model, params=...)`` is the
    model with other weights. Raises ValueError or TypeError for what lies outside these ranges.

    >>> model = PostNormResNet(9, 16, 2, 32, 4, eps=1e-5, generators=training.generators(range(3)))
    >>> x = torch.ones(5, 9, dtype=torch.float64)
    >>> model(x).shape, model.bottom(x, layer=1).shape
    (torch.Size([3, 5, 4]), torch.Size([3, 5, 16]))
    """

    in_dim: int
    width: int
    depth: int
    hidden: int
    n_classes: int
    eps: float = 1e-5
    generators: InitVar[Sequence[torch.Generator] | None] = None
    activation: str = "relu"
    norm: str = "rms"
    residual_std: float | None = None
    device: InitVar[torch.device | str | None] = None
    dtype: InitVar[torch.dtype | None] = None
    blocks: tuple[Block, ...] | None = None
    params: Params | None = field(default=None, repr=False)

    def __post_init__(
        self,
        generators: Sequence[torch.Generator] | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        require_whole(1, in_dim=self.in_dim, width=self.width, hidden=self.hidden)
        require_whole(0, depth=self.depth)
        require_whole(2, n_classes=self.n_classes)
        require_eps(self.eps)
        require_norm(self.norm)
        if self.residual_std is not None:
            (std,) = as_tensors(residual_std=self.residual_std)
            if std.dim() or not 0 <= std < math.inf:
                raise ValueError(f"residual_std must be a number in [0, inf), got {self.residual_std}")
        if self.blocks is None:
            blocks = (Block(self.hidden, self.activation),) * self.depth
            object.__setattr__(self, "blocks", blocks)
        if self.params is None:
            generators = training.generators([0]) if generators is None else generators
            require_generators(generators)
            require_dtype(dtype)
            object.__setattr__(self, "params", self._draw(generators, {"device": device, "dtype": dtype}))

    # ---- what the convolutional sibling does in another way

    _kernel = ()  # axes of a weight behind (out, in), as many as an input has behind its channels

    def _map(self, z: Tensor, weight: Tensor) -> Tensor:
        return linear(z, weight)

    def _norm(self, z: Tensor) -> Tensor:
        return normalized(z, self.eps, self.norm)

    def _read(self, z: Tensor, weight: Tensor) -> Tensor:
        return linear(z, weight)

    def _inside(self, z: Tensor) -> Tensor:
        """A layer (net, batch, ..., width) as blocks want it."""
        return z

    def _outside(self, z: Tensor) -> Tensor:
        return z

    # ---- the same for both

    def _draw(self, generators: Sequence[torch.Generator], place: dict) -> Params:
        patch = math.prod(self._kernel)
        std = 1 / math.sqrt(max(1, self.depth)) if self.residual_std is None else self.residual_std
        inner = (self.hidden, self.width, *self._kernel)
        params = {
            "in": normal((self.width, self.in_dim, *self._kernel), generators, (self.in_dim * patch) ** -0.5, **place)
        }
        for layer in range(1, self.depth + 1):
            params[f"w1.{layer}"] = he(inner, generators, **place)
            outer = (self.width, self.hidden, *self._kernel)
            params[f"w2.{layer}"] = normal(outer, generators, std / math.sqrt(self.hidden * patch), **place)
        params["out"] = normal((self.n_classes, self.width), generators, self.width**-0.5, **place)
        return params

    @property
    def n_nets(self) -> int:
        return len(self.params["out"])

    def __call__(self, x: Tensor) -> Tensor:
        """Logits (net, batch, class) of x (batch, in), shared by the nets, or (net, batch, in)."""
        self._require_like("x", x)
        return self.forward(self.params, x)

    def forward(self, params: Params, x: Tensor) -> Tensor:
        """The same for any weights: what ``labkit.training.train`` wants."""
        return self._read(self._run(params, self._stem(params, x), 0, self.depth), params["out"])

    def bottom(self, x: Tensor, layer: int, params: Params | None = None) -> Tensor:
        """f_bot: z after ``layer`` (0 … D): (net, batch, width), for images (net, batch, height, width, channels)."""
        self.require_layer(layer)
        self._require_like("x", x)
        params = self.params if params is None else params
        return self._outside(self._run(params, self._stem(params, x), 0, layer))

    def top(self, z: Tensor, layer: int, params: Params | None = None) -> Tensor:
        """f_top: logits (net, batch, class) from z after ``layer``, of the shape that `bottom` gives."""
        self.require_layer(layer)
        self.require_state(z)
        params = self.params if params is None else params
        return self._read(self._run(params, self._inside(z), layer, self.depth), params["out"])

    def residual(self, z: Tensor, layer: int, params: Params | None = None) -> Tensor:
        """h of block ``layer`` (1 … D) at its input z, in the shape of z."""
        self.require_layer(layer, first=1)
        self.require_state(z)
        params = self.params if params is None else params
        return self._outside(self._residual(params, self._inside(z), layer))

    def least_rms(self, x: Tensor) -> Tensor:
        """Smallest rms over the samples (and positions) of what enters each norm: (net, D + 1), first W_in x.

        A block without norm has inf. Measured on x, hence no certificate for other inputs. Raises ValueError for an
        x that does not fit.
        """
        self.require_sample(x)
        with torch.no_grad():
            raw = self._outside(self._embed(self.params, x))
            found, z = [self._least(raw)], self._norm(self._inside(raw))
            for layer in range(1, self.depth + 1):
                u = z + self._residual(self.params, z, layer)
                normed = self.blocks[layer - 1].normed
                found.append(self._least(self._outside(u)) if normed else torch.full_like(found[0], math.inf))
                z = self._norm(u) if normed else u
        return torch.stack(found, 1)

    def require_layer(self, layer: int, first: int = 0) -> None:
        """Refuse a layer that is not there."""
        require_whole(first, layer=layer)
        if layer > self.depth:
            raise ValueError(f"layer must lie in [{first}, {self.depth}], the depth, got {layer}")

    def require_state(self, z: Tensor) -> None:
        """Refuse what `bottom` does not give."""
        self._require_like("z", z)
        axes = 3 + len(self._kernel)
        if z.dim() != axes or z.shape[0] != self.n_nets or z.shape[-1] != self.width:
            between = "n, height, width" if self._kernel else "n"
            raise ValueError(f"z must be ({self.n_nets}, {between}, {self.width}), got {tuple(z.shape)}")

    def require_sample(self, x: Tensor, y: Tensor | None = None) -> None:
        """Refuse inputs x (n, ...) or (net, n, ...), and classes y (n,) or (net, n), that the nets do not take.

        Raises TypeError for another kind of numbers, ValueError for shapes that do not fit, an empty sample, NaN or
        infinity in x and classes that the nets do not have.
        """
        self._require_like("x", x)
        one = self.in_dim, *("height", "width")[: len(self._kernel)]
        end = x.dim() - len(one)
        fits = end in (1, 2) and x.shape[end] == self.in_dim and x.shape[: end - 1] in ((), (self.n_nets,))
        if not fits or 0 in x.shape:
            shape = ", ".join(map(str, one))
            wanted = f"(n, {shape}) or ({self.n_nets}, n, {shape})"
            raise ValueError(f"x must be {wanted} and not empty, got {tuple(x.shape)}")
        require_finite(x=x)
        if y is not None:
            _require_classes(_given(y, (self.n_nets, x.shape[end - 1])), self.n_classes)

    def per_net(self, require: Callable = require_finite, **named: float | Tensor) -> Tensor:
        """An argument that is a number or one a net, and what is required of it, as (net,) beside the weights."""
        ((name, value),) = zip(named, as_tensors(**named), strict=True)
        if value.shape not in ((), (self.n_nets,)):
            raise ValueError(f"{name} must be a number or ({self.n_nets},), one a net, got {tuple(value.shape)}")
        require(**{name: value})
        return value.to(self.params["out"]).expand(self.n_nets)

    def _require_like(self, name: str, value: Tensor) -> None:
        """Refuse what is no tensor of the kind of the weights."""
        like = self.params["out"]
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(value).__name__}")
        if value.dtype != like.dtype or value.device != like.device:
            kinds = f"{like.dtype} on {like.device} as the weights, got {value.dtype} on {value.device}"
            raise TypeError(f"{name} must be {kinds}")

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "PostNormResNet":
        """The model on another device or in another precision."""
        require_dtype(dtype)
        like = self.params["out"]
        place = device or like.device, dtype or like.dtype
        return replace(self, params={name: value.to(*place) for name, value in self.params.items()})

    def nets(self, index: slice | Sequence[int] | Tensor) -> "PostNormResNet":
        """Some nets of the stack.

        >>> PostNormResNet(9, 4, 1, 4, 2, generators=training.generators(range(5))).nets(slice(2)).n_nets
        2
        """
        return replace(self, params={name: value[index] for name, value in self.params.items()})

    def _least(self, u: Tensor) -> Tensor:
        if self.norm == "layer":
            u = u - u.mean(-1, keepdim=True)
        return rms(u).flatten(1).amin(1)

    def _embed(self, params: Params, x: Tensor) -> Tensor:
        return self._map(x, params["in"])

    def _stem(self, params: Params, x: Tensor) -> Tensor:
        return self._norm(self._embed(params, x))

    def _run(self, params: Params, z: Tensor, first: int, last: int) -> Tensor:
        for layer in range(first + 1, last + 1):
            z = z + self._residual(params, z, layer)
            if self.blocks[layer - 1].normed:
                z = self._norm(z)
        return z

    def _residual(self, params: Params, z: Tensor, layer: int) -> Tensor:
        act = ACTIVATIONS[self.blocks[layer - 1].activation]
        h = self._map(act(self._map(z, params[f"w1.{layer}"])), params[f"w2.{layer}"])
        return self._gated(params[f"gate.{layer}"], h) if self.blocks[layer - 1].gated else h

    def _gated(self, gate: Tensor, h: Tensor) -> Tensor:
        return gate[:, :, None] * h  # (net, 1, 1)


@dataclass(frozen=True, eq=False, repr=False)
class ConvPostNormResNet(PostNormResNet):
    """The same on images (batch, channels, height, width) or (net, batch, channels, height, width).

    in_dim counts channels of the image, width and hidden those of the layers. A layer seen from outside has the
    channels last, (net, batch, height, width, channels): a gradient belongs to a position, as a token in a transformer.

    >>> model = ConvPostNormResNet(1, 8, 2, 16, 10)
    >>> x = torch.ones(5, 1, 8, 8, dtype=torch.float64)
    >>> model(x).shape, model.bottom(x, layer=1).shape
    (torch.Size([1, 5, 10]), torch.Size([1, 5, 8, 8, 8]))
    """

    _kernel = (KERNEL, KERNEL)

    def _map(self, z: Tensor, weight: Tensor) -> Tensor:  # (batch, net·channels, height, width) inside
        return conv2d(z, weight, padding=weight.shape[-1] // 2)

    def _norm(self, z: Tensor) -> Tensor:
        return normalized(z.unflatten(1, (self.n_nets, -1)), self.eps, self.norm, dim=2).flatten(1, 2)

    def _read(self, z: Tensor, weight: Tensor) -> Tensor:
        return linear(to_nets(z.mean((-2, -1)), len(weight)), weight)

    def _inside(self, z: Tensor) -> Tensor:
        return z.movedim(-1, 2).transpose(0, 1).flatten(1, 2)

    def _outside(self, z: Tensor) -> Tensor:
        return to_nets(z, self.n_nets).movedim(2, -1)

    def _gated(self, gate: Tensor, h: Tensor) -> Tensor:
        channels = h.shape[1] // len(gate)
        return gate.flatten().repeat_interleave(channels)[:, None, None] * h


def insert_block(
    model: PostNormResNet,
    layer: int,
    hidden: int,
    init: str = "zero_out",
    generators: Sequence[torch.Generator] | None = None,
    activation: str = "relu",
    normed: bool = False,
) -> PostNormResNet:
    """The model with one more block after ``layer``; later blocks move up by one. The given model stays as it is.

    Arguments
        layer: 0 (after the stem) … D; the new block is block layer + 1
        hidden: m
        init: of h = W_2 σ(W_1 z). "zero_out": W_2 = 0; "zero_in": W_1 = 0; "zero_both"; "gate": α = 0 before a
            random h. All leave the function as it was (unless normed, or σ(0) ≠ 0). "random" does not
        generators: one CPU generator a net for what is random; by default seeds far from those of anything else
        normed: N(z + h(z)), which with eps > 0 changes the function even where h = 0

    Which starts are dead, that is, have zero gradient: "zero_both" (ReLU, tanh), and with ReLU "zero_in", because
    autograd takes σ'(0) = 0 (from one side the derivative is there).
    Raises ValueError for a layer or a start that does not exist.

    >>> old = PostNormResNet(9, 16, 2, 32, 4)
    >>> x = torch.ones(5, 9, dtype=torch.float64)
    >>> new = insert_block(old, layer=1, hidden=8, init="zero_out")
    >>> new.depth, torch.equal(new(x), old(x))
    (3, True)
    """
    model.require_layer(layer)
    if init not in tuple(STARTS):
        raise ValueError(f"init must be one of {', '.join(STARTS)}, got {init!r}")
    if generators is None:
        generators = training.generators(range(FIRST_SEED, FIRST_SEED + model.n_nets))
    require_generators(generators, model.n_nets)
    w1_random, w2_random, gated = STARTS[init]
    block = Block(hidden, activation, normed, gated)
    like, patch = model.params["out"], math.prod(model._kernel)
    place = {"device": like.device, "dtype": like.dtype}

    def weight(n_out: int, n_in: int, variance: float) -> Tensor:
        return normal((n_out, n_in, *model._kernel), generators, math.sqrt(variance / (n_in * patch)), **place)

    new = {"w1": weight(hidden, model.width, 2.0 * w1_random), "w2": weight(model.width, hidden, 1.0 * w2_random)}
    if gated:
        new["gate"] = torch.zeros(model.n_nets, 1, **place)
    return with_block(model, layer, new, block)


def with_block(model: PostNormResNet, layer: int, new: Params, block: Block) -> PostNormResNet:
    """The model with a block of given weights, "w1" (net, m, d, ...) and "w2" (net, d, m, ...), after ``layer``."""
    model.require_layer(layer)
    params = {"in": model.params["in"]}
    for place in range(1, model.depth + 2):
        if place == layer + 1:
            params |= {f"{name}.{place}": value for name, value in new.items()}
            continue
        old = place if place <= layer else place - 1
        for name in ("w1", "w2", "gate"):
            if f"{name}.{old}" in model.params:
                params[f"{name}.{place}"] = model.params[f"{name}.{old}"]
    params["out"] = model.params["out"]
    blocks = (*model.blocks[:layer], block, *model.blocks[layer:])
    return replace(model, depth=model.depth + 1, blocks=blocks, params=params)


def block_names(model: PostNormResNet, layer: int) -> list[str]:
    """The names of the weights of block ``layer`` (1 … D): what `fit` trains when only this block is to learn.

    >>> block_names(PostNormResNet(9, 16, 2, 32, 4), 2)
    ['w1.2', 'w2.2']
    """
    model.require_layer(layer, first=1)
    return [name for name in model.params if name.endswith(f".{layer}")]


def sample_losses(logits: Tensor, y: Tensor, loss: str = "ce") -> Tensor:
    """ℓ per sample: "ce", −ln p_y in nats, or "prob", 1 − p_y in [0, 1] (what Hoeffding's inequality needs).

    logits (net, n, class), y int64 (n,) or (net, n) → (net, n). Raises ValueError for what does not fit.

    >>> sample_losses(torch.zeros(1, 2, 4), torch.tensor([0, 3]), "prob")
    tensor([[0.7500, 0.7500]])
    """
    require_loss(loss)
    if not isinstance(logits, Tensor) or logits.dim() != 3 or 0 in logits.shape or not logits.is_floating_point():
        found = f"{logits.dtype} {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"logits must be floats (net, n, class), not empty, got {found}")
    y = _given(y, logits.shape[:2])
    if y.device.type == "cpu":  # elsewhere a look would make every step wait; CUDA has an assertion
        _require_classes(y, logits.shape[-1])
    y = y.expand(logits.shape[:2])
    classes_first = logits.mT.contiguous()  # (net, class, n): a softmax over a short last axis is five times slower
    if loss == "ce":
        return functional.cross_entropy(classes_first, y, reduction="none")
    return 1 - torch.softmax(classes_first, 1).gather(1, y[:, None])[:, 0]


def classes_of(out: Tensor, y: Tensor) -> Tensor:
    """Classes y (n,), shared by the nets, or (net, n), as (net, n) for an output (net, n, ...)."""
    return _given(y, out.shape[:2]).expand(out.shape[:2])


def _given(y: Tensor, shape: Sequence[int]) -> Tensor:
    """y, if it is int64 and (n,) or (net, n)."""
    shape = tuple(shape)
    if not isinstance(y, Tensor) or y.dtype != torch.int64 or tuple(y.shape) not in (shape, shape[1:]):
        found = f"{y.dtype} {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(f"y must be int64 of shape {shape[1:]} or {shape}, got {found}")
    return y


def _require_classes(y: Tensor, n_classes: int) -> None:
    refuse("y", y, (y >= 0) & (y < n_classes), f"must be a class from 0 to {n_classes - 1}")


class Fitted(NamedTuple):
    """The trained model, and what ``labkit.training.train`` says about it."""

    model: PostNormResNet
    run: Trained


def fit(
    model: PostNormResNet,
    x: Tensor,
    y: Tensor,
    steps: int,
    lr: float | Tensor = 1e-2,
    batch: int | None = 256,
    generators: torch.Generator | Sequence[torch.Generator] | None = None,
    only: Sequence[str] | None = None,
    optimizer: training.SGD | Adam | None = None,
    **more,
) -> Fitted:
    """Train all nets of the stack on cross-entropy: Adam, rate lr·(1 + cos(π·step/steps))/2, mini-batches.

    Arguments
        x, y: samples for all nets (n, ...) and classes (n,), or one set a net: (net, n, ...) and (net, n)
        steps: of the optimizer
        lr: the first rate: a number or (net,)
        batch: samples a step, at most n of them; None: all
        generators: who sees what, as in ``labkit.training.train``; by default one's own order for each net
        only: names of the weights that learn, such as `block_names` gives; by default all
        optimizer: in the place of Adam, its own rate included
        more: further arguments of ``labkit.training.train``: ``record_every``, ``validate``, ``progress`` …

    Returns (model, run). Raises ValueError or TypeError for what does not fit.

    >>> x, y = torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    >>> new, run = fit(PostNormResNet(3, 8, 1, 8, 2), x, y, steps=50)
    >>> run.loss[-1].item() < run.loss[0].item() / 5
    True
    """
    names = list(model.params) if only is None else list(only)
    unknown = [name for name in names if name not in model.params]
    if unknown or not names:
        raise ValueError(f"only must name weights among {', '.join(model.params)}, got {names}")
    learning = {name: model.params[name] for name in names}
    rest = {name: value for name, value in model.params.items() if name not in learning}
    per_net = y.dim() == 2
    n = y.shape[-1]
    batch = None if batch is None or batch >= n else batch
    if batch is not None and generators is None:
        generators = training.generators(range(2 * FIRST_SEED, 2 * FIRST_SEED + model.n_nets))
    if optimizer is None:
        optimizer = Adam(lambda step, _: lr * (1 + math.cos(math.pi * step / steps)) / 2)
    run = training.train(
        lambda params, x: model.forward(rest | params, x),
        learning,
        x,
        y,
        optimizer,
        steps,
        loss=lambda out, y: sample_losses(out, y).mean(1),
        per_net=per_net,
        batch=batch,
        generators=None if batch is None else generators,
        **more,
    )
    return Fitted(replace(model, params=model.params | run.params), run)


def require_activation(activation: str) -> None:
    """Refuse what is no activation."""
    if activation not in tuple(ACTIVATIONS):
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")


def require_loss(loss: str) -> None:
    """Refuse what is no loss."""
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}")


def require_dtype(dtype: torch.dtype | None) -> None:
    """Refuse a dtype that is not floating."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype must be a floating torch.dtype, such as torch.float64, got {dtype}")


def require_generators(generators: Sequence[torch.Generator], n_nets: int | None = None) -> None:
    """Refuse what is not a list of CPU generators, of any length ≥ 1 or one a net."""
    if not isinstance(generators, Sequence):
        raise TypeError(f"generators must be a list of torch.Generator, one a net, got {generators!r}")
    if not generators or len(generators) != (n_nets or len(generators)):
        raise ValueError(f"generators must be {n_nets or 'at least 1'}, one a net, got {len(generators)}")
    for generator in generators:
        require_generator(generator)


def require_pair(**named: tuple[Tensor, Tensor]) -> None:
    """Refuse what is not a pair (x, y)."""
    for name, sample in named.items():
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise TypeError(f"{name} must be a pair (x, y), got {type(sample).__name__}")


def require_several(low: int, **named: Sequence[int]) -> None:
    """Refuse what is not a sequence of whole numbers ≥ low, at least one."""
    for name, values in named.items():
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise TypeError(f"{name} must be several whole numbers, such as (1, 16), got {values!r}")
        if not values:
            raise ValueError(f"{name} must hold at least one number, got none")
        require_whole(low, **{f"{name}[{i}]": value for i, value in enumerate(values)})
