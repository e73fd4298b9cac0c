"""What data charge for a class of networks, and which route to the test risk that price leaves open.

The networks: z_0 = N(W_in x), u_l = z_{l−1} + W_2,l σ(W_1,l z_{l−1}), z_l = N(u_l), logits W_out z_D, where
N(u) = u/s(u), s(u) = √(‖u‖²/width + ε), σ is 1-Lipschitz and σ(0) = 0. Norms of matrices are spectral. Every bound is
an ε with |L − L_S| ≤ ε for the whole class, with probability ≥ 1 − fail_prob over a sample of n:

=======================  ==========================================================  ==================================
``cover_bound``          all networks of a `NormClass`                               D1: a net of them, and Hoeffding
``rademacher_bound``     the same                                                    D2: layer-wise covers, no counting
``frozen_class_bound``   old model fixed, W_2 of one new block free                  D3: Rademacher, vector contraction
``path_norm_bound``      old model fixed, W_1 and W_2 of one new ReLU block free     the same, with the path norm
``directions_bound``     old model fixed, k directions of W_2 free                   D1 with one matrix
=======================  ==========================================================  ==================================

The last three hold only for a sample that did not train the old model. An ε above the range of the loss says nothing;
`samples_needed` tells from where it does. Two routes lead to the test set: `route_a` over the population, whose
failure probability depends on the margin, and `route_b` over a second uniform bound; `decompose_test_change` needs
neither.

The routes are those of Cheng et al. 2026, arXiv 2605.08297 (its Conditions and final inequalities). All constants, the
bounds D1 to D3, the free deviation and B′ are derived here, not the paper's.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from labkit.depth.network import ConvPostNormResNet, PostNormResNet, require_several
from labkit.validate import (
    as_tensors,
    refuse,
    require_broadcast,
    require_finite,
    require_positive,
    require_range,
    require_some,
    require_whole,
)

PROBABILITY_LIPSCHITZ = math.sqrt(2) / 4  # of 1 − p_y in the logits: p_y(1 − p_y)√2 at p_y = 1/2
CROSS_ENTROPY_LIPSCHITZ = math.sqrt(2)
LIPSCHITZ_ONE = ("relu", "tanh", "linear")  # and 0 at 0
RESOLUTIONS = torch.logspace(-8, 0, 161, dtype=torch.float64, device="cpu")  # η, of the nets of D1
COARSE = 16  # of them, every so many are tried first
PER_BLOCK = {"hidden", "s_1", "s_2", "row_1", "row_2", "measured_rms"}  # a tensor has the blocks on its last axis
POSITIVE = {"input_norm", "loss_lipschitz", "loss_range"}
SIZES = {"depth": 1, "width": 1, "hidden": 1, "in_dim": 1, "n_classes": 2}  # whole numbers, from these on


# ---- the class


@dataclass(frozen=True, kw_only=True)
class NormClass:
    """All networks whose matrices have norms within these radii. Numbers or tensors that broadcast.

    ``hidden``, ``s_1``, ``s_2``, ``row_1``, ``row_2`` and ``measured_rms`` are numbers, the same for each block, or
    tensors whose last axis is the blocks (size 1: the same for each), so that a curve over s_1 has shape (points, 1).
    The other fields have the shape of the batch; ``depth`` may vary in it where blocks are alike.
    """

    depth: float | Tensor  # blocks
    width: float | Tensor  # entries of z
    s_1: float | Tensor  # ≥ ‖W_1,l‖
    s_2: float | Tensor  # ≥ ‖W_2,l‖
    s_in: float | Tensor  # ≥ ‖W_in‖
    s_out: float | Tensor  # ≥ ‖W_out‖
    input_norm: float | Tensor  # ≥ ‖x‖
    input_rms: float | Tensor  # ρ ≤ rms(W_in x), a constraint on W_in
    eps: float | Tensor = 1e-5
    in_dim: float | Tensor = 9
    n_classes: float | Tensor = 4
    hidden: float | Tensor | None = None  # default: width
    row_in: float | Tensor | None = None  # ≥ sum of the row norms of W_in; None: what follows from s_in
    row_1: float | Tensor | None = None
    row_2: float | Tensor | None = None
    row_out: float | Tensor | None = None
    measured_rms: float | Tensor | None = None  # of u_l on data: no certificate; None: what the norms guarantee
    inserted: int | None = None  # block 1 … depth that has no N of its own, as `insert_block` adds it
    loss_lipschitz: float = PROBABILITY_LIPSCHITZ  # of the loss in the logits
    loss_range: float | Tensor = 1.0


def norm_class(w_in: Tensor, w_1: Tensor, w_2: Tensor, w_out: Tensor, x: Tensor, **more) -> NormClass:
    """The smallest class around trained networks, (...) of them, and inputs x (n, in_dim).

    Arguments
        w_in (..., width, in_dim), w_1 (..., depth, hidden, width), w_2 (..., depth, width, hidden),
        w_out (..., n_classes, width): the matrices
        more: any other field of `NormClass`

    Its radii are read off the trained weights and ``input_rms`` is the smallest rms(W_in x) seen, so that a strict
    statement needs radii chosen before, or a union over a grid of them (an extra ln ln term; not in the bounds).

    Raises ValueError for shapes that do not fit, an empty x, NaN.

    >>> eye = torch.eye(3)
    >>> norm_class(eye, eye[None] / 2, eye[None], eye[:2], torch.ones(5, 3)).s_1
    tensor([0.5000])
    """
    given = {"w_in": w_in, "w_1": w_1, "w_2": w_2, "w_out": w_out, "x": x}
    w_in, w_1, w_2, w_out, x = as_tensors(**given)
    for name, value, axes in zip(given, (w_in, w_1, w_2, w_out, x), (2, 3, 3, 2, 2), strict=True):
        if value.dim() < axes or not value.numel():
            raise ValueError(f"{name} must have at least {axes} axes and one entry, got {tuple(value.shape)}")
    (width, in_dim), (depth, hidden), n_classes = w_in.shape[-2:], w_1.shape[-3:-1], w_out.shape[-2]
    wanted = {"w_1": (depth, hidden, width), "w_2": (depth, width, hidden), "w_out": (n_classes, width)}
    for name, shape in (wanted | {"x": (len(x), in_dim)}).items():
        if given[name].shape[-len(shape) :] != shape:
            found = tuple(given[name].shape)
            raise ValueError(
                f"{name} must end in {shape} to fit w_in {tuple(w_in.shape)} and w_1 {tuple(w_1.shape)}, got {found}"
            )
    require_finite(w_in=w_in, w_1=w_1, w_2=w_2, w_out=w_out, x=x)
    first = w_in @ x.mT  # (..., width, n)
    made = {"depth": depth, "width": width, "hidden": hidden, "in_dim": in_dim, "n_classes": n_classes}
    made |= {"input_norm": x.norm(dim=-1).amax(), "input_rms": first.square().mean(-2).amin(-1).sqrt()}
    for name, matrix in (("in", w_in), ("1", w_1), ("2", w_2), ("out", w_out)):
        made[f"s_{name}"] = torch.linalg.matrix_norm(matrix, 2)
        made[f"row_{name}"] = matrix.norm(dim=-1).sum(-1)
    return NormClass(**(made | more))


def network_class(model: PostNormResNet, x: Tensor, **more) -> NormClass:
    """`norm_class` around the nets of a model, its batch axis, and inputs x (n, in_dim); ``more``: any other field.

    Raises ValueError for what the chain does not cover: images, LayerNorm, a σ that is not 1-Lipschitz with σ(0) = 0,
    two blocks without a norm of their own.

    >>> network_class(PostNormResNet(3, 8, 2, 4, 2), torch.eye(3, dtype=torch.float64)).s_1.shape  # (net, block)
    torch.Size([1, 2])
    """
    bare = [place for place, block in enumerate(model.blocks, 1) if not block.normed]
    odd = [block.activation for block in model.blocks if block.activation not in LIPSCHITZ_ONE]
    if isinstance(model, ConvPostNormResNet) or model.norm != "rms" or odd or len(bare) > 1 or not model.depth:
        raise ValueError(
            "model must be a PostNormResNet on vectors with RMSNorm, activations among "
            f"{', '.join(LIPSCHITZ_ONE)}, and one to all blocks normed but one, got {model}"
        )
    names, hidden = range(1, model.depth + 1), [block.hidden for block in model.blocks]
    grown = [max(hidden) - h for h in hidden]  # rows and columns of zeros change no norm
    w_1 = [
        pad(model.params[f"w1.{place}"], (0, 0, 0, more_rows)) for place, more_rows in zip(names, grown, strict=True)
    ]
    w_2 = [pad(model.params[f"w2.{place}"], (0, more_rows)) for place, more_rows in zip(names, grown, strict=True)]
    w_2 = [w * model.params[f"gate.{i}"][:, None] if f"gate.{i}" in model.params else w for i, w in enumerate(w_2, 1)]
    ends = model.params["in"], model.params["out"]
    given = {"eps": model.eps, "hidden": ends[0].new_tensor(hidden), "inserted": bare[0] if bare else None} | more
    return norm_class(ends[0], torch.stack(w_1, 1), torch.stack(w_2, 1), ends[1], x, **given)


def _require_class(**named: NormClass) -> None:
    for name, net in named.items():
        if not isinstance(net, NormClass):
            raise TypeError(f"{name} must be a NormClass, got {type(net).__name__}")


def _admit(net: NormClass, **more: float | Tensor) -> tuple[NormClass, ...]:
    """The class with a tensor in every field, checked, the blocks on a last axis; then ``more``, as tensors."""
    _require_class(net=net)
    given = {field.name: getattr(net, field.name) for field in fields(net)}
    inserted = given.pop("inserted")
    given = {name: value for name, value in given.items() if value is not None}
    tensors = as_tensors(**given, **more)
    c, more = dict(zip(given, tensors, strict=False)), dict(zip(more, tensors[len(given) :], strict=True))
    least = {name: SIZES.get(name, 0) for name in c} | dict.fromkeys(
        POSITIVE & c.keys(), torch.finfo(tensors[0].dtype).tiny
    )
    require_some(**c)
    flat = torch.cat([value.flatten() - least[name] for name, value in c.items()])
    sizes = torch.cat([value.flatten() for name, value in c.items() if name in SIZES])
    if not bool(
        ((flat >= 0) & flat.isfinite()).all() & (sizes == sizes.round()).all()
    ):  # one look; now name the culprit
        for name, value in c.items():
            if name in SIZES:
                whole = value.isfinite() & (value >= SIZES[name]) & (value == value.round())
                refuse(name, value, whole, f"must be a whole number >= {SIZES[name]}")
            elif name in POSITIVE:
                require_positive(**{name: value})
            else:
                require_range(0, math.inf, **{name: value})
    blocks, fewest = int(c["depth"].amax()), int(c["depth"].amin())
    for name in (name for name in list(c) if name in PER_BLOCK):
        c[name] = c[name] if c[name].dim() else c[name][None]
        if c[name].shape[-1] not in {1, blocks} or (fewest < blocks and c[name].shape[-1] != 1):
            need = "1, because depth varies" if fewest < blocks else f"1 or depth = {blocks}"
            raise ValueError(
                f"the last axis of {name} is that of the blocks and must be {need}, got {c[name].shape[-1]}"
            )
    if inserted is not None and (fewest < blocks or not isinstance(inserted, int) or not 1 <= inserted <= blocks):
        raise ValueError(f"inserted must be None or, at one depth, a block in [1, {fewest}], got {inserted!r}")
    require_broadcast(**{name: value[..., 0] if name in PER_BLOCK else value for name, value in c.items()}, **more)
    c.setdefault("hidden", c["width"][..., None])
    c.setdefault("measured_rms", torch.zeros_like(c["hidden"]))
    rows, wide = {"in": c["width"], "1": c["hidden"], "out": c["n_classes"]}, c["width"][..., None]
    rows["2"] = wide
    columns = {"in": c["in_dim"], "1": wide, "2": c["hidden"], "out": c["width"]}
    for name in rows:  # Σ of row norms ≤ √rows ‖W‖_F ≤ √(rows · min(rows, columns)) ‖W‖
        most = (rows[name] * torch.minimum(rows[name], columns[name])).sqrt() * c[f"s_{name}"]
        c.setdefault(f"row_{name}", most)
    return NormClass(**c, inserted=inserted), *more.values()


# ---- the chain


@dataclass(frozen=True)
class LipChain:
    """What normalization guarantees at each block of every network of a class; index 0 is the input layer."""

    scale: Tensor  # (..., depth + 1), ŝ_l ≤ s(u_l); 1 for a block without N
    rms: Tensor  # (..., depth + 1), r_l ≤ rms(z_l); 0: nothing but ε keeps s(u_l) from 0
    norm: Tensor  # (..., depth + 1), ≥ ‖z_l‖: √width, more after a block without N
    size: Tensor  # (..., depth), s_l = s_1,l s_2,l
    log_gain: Tensor  # (..., depth), ln β_l
    log_tail: Tensor  # (..., depth + 1), ln T_l, T_l = Π_{j>l} β_j


def lip_chain(net: NormClass) -> LipChain:
    """The certified Lipschitz chain: ŝ_0 = √(ρ² + ε), r_0 = ρ/ŝ_0, and from block to block, with s_l = s_1,l s_2,l,

        a_l = (1 − s_l)₊ r_{l−1} ≤ rms(u_l),  ŝ_l = √(a_l² + ε),  β_l = (1 + s_l)/ŝ_l,  r_l = a_l/ŝ_l

    β_l bounds the Lipschitz constant of block l (derived here from ‖N(u) − N(v)‖ ≤ ‖u − v‖/√(s(u)s(v))). With
    s_l = c/depth the product stays near e^{2c} at any depth; from the first s_l ≥ 1 on, ŝ_l = √ε, and it grows as
    ε^{−depth/2}: `collapse` says so. ``measured_rms`` replaces a_l where it is larger; then nothing is certified.

    >>> net = NormClass(depth=2, width=8, s_1=0.5, s_2=0.5, s_in=1, s_out=1, input_norm=3, input_rms=0.5, eps=0)
    >>> lip_chain(net).log_gain.exp()  # (1 + 1/4)/(1 − 1/4)
    tensor([1.6667, 1.6667], dtype=torch.float64)
    """
    (c,) = _admit(net)
    return _chain(c)


def _chain(c: NormClass, rms: Tensor | None = None, layer: int = 0) -> LipChain:
    """The chain of all blocks, or of those above z_layer, given a lower bound of its rms."""
    blocks, root = int(c.depth.amax()), c.eps.sqrt()
    size, seen = (value.expand(*value.shape[:-1], blocks)[..., layer:] for value in (c.s_1 * c.s_2, c.measured_rms))
    keep, first = (1 - size).clamp_min(0), torch.hypot(c.input_rms, root)
    if rms is None:
        rms = c.input_rms / torch.hypot(c.input_rms, root.clamp_min(torch.finfo(root.dtype).tiny))  # 0/0: 0
    bare = torch.arange(layer + 1, blocks + 1, device=root.device) == (c.inserted or 0)
    rms = _rms_of_layers(rms, keep, seen, c.eps[..., None], bare)
    low = torch.maximum(keep * rms[..., :-1], seen)
    shape = torch.broadcast_shapes(c.depth.shape, c.width.shape, first.shape, rms.shape[:-1])
    rms, low, first = rms.expand(*shape, -1), low.expand(*shape, -1), first.expand(shape)[..., None]
    scale = torch.cat([first, torch.where(bare, 1, torch.hypot(low, root[..., None]))], -1)
    norm = c.width.sqrt()[..., None] * torch.cat(
        [torch.ones_like(first), torch.where(bare, 1 + size, 1).expand_as(low)], -1
    )
    gain = torch.where(_there(c)[..., layer:], size.log1p() - scale[..., 1:].log(), 0)
    tail = torch.cat([gain, torch.zeros_like(first)], -1)
    return LipChain(scale, rms, norm, size.expand(gain.shape), gain, tail.flip(-1).cumsum(-1).flip(-1))


def _rms_of_layers(first: Tensor, keep: Tensor, seen: Tensor, eps: Tensor, bare: Tensor) -> Tensor:
    """r_0, r_1, … (..., block + 1) from r_0 = ``first`` (...), without a loop over blocks.

    In y_l = 1/r_l² a block is y ↦ min(ay + b, c): a = ε/(1 − s_l)², b = 1, c = 1 + ε/seen², all times 1/ε and without
    the 1 in a bare block. Two such maps, one after the other, are again one, so that log₂ of the blocks rounds do.
    """
    a, c = (_over_square(torch.where(bare, 1, eps), v) for v in (keep, seen))
    b = torch.where(bare, 0, 1).to(a)
    a, b, c = torch.broadcast_tensors(a, b, c + b)
    blocks, step = a.shape[-1], 1
    while step < blocks:
        a_1, b_1, c_1 = (v[..., step:] for v in (a, b, c))
        a_0, b_0, c_0 = (v[..., :-step] for v in (a, b, c))
        both = _times(a_1, a_0), _times(a_1, b_0) + b_1, torch.minimum(_times(a_1, c_0) + b_1, c_1)
        a, b, c = (torch.cat([v[..., :step], new], -1) for v, new in zip((a, b, c), both, strict=True))
        step *= 2
    y = _over_square(1, first)[..., None]
    later = torch.minimum(_times(a, y) + b, c)
    shape = torch.broadcast_shapes(first.shape, later.shape[:-1])
    return torch.cat([first.expand(shape)[..., None], later.rsqrt().expand(*shape, -1)], -1)


def _over_square(weight: float | Tensor, v: Tensor) -> Tensor:
    """weight/v², ∞ for v = 0 without a gradient."""
    return torch.where(v > 0, weight / torch.where(v > 0, v, 1).square(), math.inf)


def _times(a: Tensor, y: Tensor) -> Tensor:
    """a·y, where 0·∞ is ∞: a vector of rms 0 has none behind any block, and what was never seen caps nothing."""
    endless = (a == math.inf) | (y == math.inf)
    return torch.where(endless, math.inf, torch.where(endless, 0, a) * torch.where(endless, 0, y))


def _there(c: NormClass) -> Tensor:
    """Which blocks a network has: l ≤ depth, (..., largest depth)."""
    return torch.arange(1, int(c.depth.amax()) + 1, device=c.depth.device) <= c.depth[..., None]


def collapse(net: NormClass) -> str:
    """Why the chain of a class is useless or infinite, in a sentence about its first such block; "" when it is neither.

    >>> collapse(NormClass(depth=2, width=8, s_1=2, s_2=0.6, s_in=1, s_out=1, input_norm=3, input_rms=0.5))
    'block 1 has s_1*s_2 = 1.2 >= 1 and may cancel its input: only eps bounds its Lipschitz constant'
    """
    (c,) = _admit(net)
    chain = _chain(c)
    lost = (chain.rms <= 0) & pad(_there(c), (1, 0), value=True)
    if not lost.any():
        return ""
    index = lost.nonzero()[0].tolist()
    *where, block = index
    what = "input_rms = 0: W_in x may vanish"
    if block:
        what = f"block {block} has s_1*s_2 = {chain.size[*where, block - 1].item():.4g} >= 1 and may cancel its input"
    limit = "only eps" if chain.scale[tuple(index)] > 0 else "eps = 0 and nothing"
    infinite = "" if chain.scale[tuple(index)] > 0 else ", the bounds are infinite"
    return f"{f'element {where}: ' if where else ''}{what}: {limit} bounds its Lipschitz constant{infinite}"


@dataclass(frozen=True)
class Sensitivities:
    """How much the loss can move, at any x, per spectral norm of a change of one matrix within the class."""

    w_in: Tensor  # (...)
    w_1: Tensor  # (..., depth); 0 for blocks that are not there
    w_2: Tensor  # (..., depth)
    w_out: Tensor  # (...)


def sensitivities(net: NormClass) -> Sensitivities:
    """The constants C_j, Λ the Lipschitz constant of the loss in the logits (derived here):

        C_out = Λ ‖z_D‖,  C_2,l = Λ s_out T_l s_1,l ‖z_{l−1}‖/ŝ_l,  C_1,l = Λ s_out T_l s_2,l ‖z_{l−1}‖/ŝ_l,
        C_in = Λ s_out T_0 X/ŝ_0,  ‖z_l‖ ≤ √width

    Changes of several matrices add up. Infinite where the chain is, or beyond the largest float; the bounds take
    logarithms and are finite up to there.

    >>> net = NormClass(depth=2, width=4, s_1=0.5, s_2=0.5, s_in=1, s_out=1, input_norm=3, input_rms=1, eps=0)
    >>> sensitivities(net).w_1  # C_1,2 = √2/4 · s_2 · √width / (1 − 1/4), and a factor β = 5/3 more for block 1
    tensor([0.7857, 0.4714], dtype=torch.float64)
    """
    (c,) = _admit(net)
    return Sensitivities(*(value.exp() for value in _log_sensitivities(c)))


def _log_sensitivities(c: NormClass) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    chain = _chain(c)
    loss = c.loss_lipschitz.log()
    above = (loss + c.s_out.log())[..., None] + chain.log_tail  # ln of Λ s_out T_l
    block = above[..., 1:] + chain.norm[..., :-1].log() - chain.scale[..., 1:].log()
    w_in = above[..., 0] + c.input_norm.log() - chain.scale[..., 0].log()
    w_1, w_2 = (torch.where(_there(c), block + s.log(), -math.inf) for s in (c.s_2, c.s_1))
    # a norm of zero beats an infinite constant: what is multiplied by a zero matrix cannot be felt
    w_in, w_1, w_2 = (torch.where(value.isnan(), -math.inf, value) for value in (w_in, w_1, w_2))
    return w_in, w_1, w_2, loss + chain.norm[..., -1].log()


def _join(w_in: Tensor, *parts: Tensor | int) -> Tensor:
    """w_in (...), some w (..., block), w_out (...), and the number of blocks: all along one last axis."""
    *inner, w_out, blocks = parts
    parts = [w_in[..., None], *(w.expand(*w.shape[:-1], blocks) for w in inner), w_out[..., None]]
    shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*shape, -1) for part in parts], -1)


def top_lipschitz(
    net: NormClass, layer: int, radius: float | Tensor = 0.0, feature_max: float | Tensor = 0.0
) -> Tensor:
    """λ: the Lipschitz constant of z ↦ loss(f_top(z)) above block ``layer`` (0: above the input layer), (...).

    On the balls of radius ``radius · feature_max`` around what the class can reach at ``layer``: λ = Λ s_out Π β_j over
    the blocks above, with β from a chain that starts at rms r_layer − radius · feature_max/√width (derived here).
    ``layer = depth`` gives Λ s_out, at any radius. Infinite where the chain is: see `collapse`.

    >>> net = NormClass(depth=2, width=4, s_1=2, s_2=2, s_in=1, s_out=2, input_norm=3, input_rms=1)
    >>> top_lipschitz(net, 2), top_lipschitz(net, 1)
    (tensor(0.7071, dtype=torch.float64), tensor(1118.0340, dtype=torch.float64))
    """
    c, radius, feature_max = _admit(net, radius=radius, feature_max=feature_max)
    require_range(0, math.inf, radius=radius, feature_max=feature_max)
    depth = int(c.depth.amin())
    if int(c.depth.amax()) > depth:
        raise ValueError("depth must be the same for the whole batch: layer is counted from below")
    if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer <= depth:
        raise ValueError(f"layer must be a block in [0, depth = {depth}], got {layer!r}")
    rms = _chain(c).rms[..., layer] - radius * feature_max / c.width.sqrt()
    tail = _chain(c, rms.clamp_min(0), layer).log_tail[..., 0]
    return c.loss_lipschitz * torch.where(c.s_out > 0, c.s_out * tail.exp(), 0)


def cross_entropy_range(width: float | Tensor, n_classes: float | Tensor, s_out: float | Tensor) -> Tensor:
    """The range of the cross entropy after a last N: ln(1 + (K − 1) e^{√width·√2·s_out}), as ‖w_j − w_k‖ ≤ √2 s_out.

    >>> cross_entropy_range(16, 4, 1.0)
    tensor(6.7566, dtype=torch.float64)
    """
    width, n_classes, s_out = as_tensors(width=width, n_classes=n_classes, s_out=s_out)
    require_positive(width=width)
    require_range(2, math.inf, n_classes=n_classes)
    require_range(0, math.inf, s_out=s_out)
    require_broadcast(width=width, n_classes=n_classes, s_out=s_out)
    return softplus((n_classes - 1).log() + math.sqrt(2) * width.sqrt() * s_out, threshold=40)


# ---- D1 and D2: the whole class


def cover_bound(n: float | Tensor, net: NormClass, fail_prob: float | Tensor = 0.05) -> Tensor:
    """D1: ε of the whole class from n samples, shape of n with the class; `RESOLUTIONS` are the η tried.

        ln N(η) = Σ_j q_j ln(1 + 2J s_j C_j/η),  ε = min_η {2η + B √((ln N(η) + ln(2/δ))/(2n))}

    over J matrices of q_j entries, δ = ``fail_prob``, B = ``loss_range`` (derived here: Hoeffding on every member of a
    net in sup norm). The best of the two for small networks; inf where `collapse` says so.

    >>> net = NormClass(depth=1, width=8, s_1=0.5, s_2=0.6, s_in=1.5, s_out=2, input_norm=3, input_rms=0.5)
    >>> cover_bound(torch.tensor([1e4, 1e6]).double(), net)
    tensor([0.3145, 0.0357], dtype=torch.float64)
    """
    c, n, fail_prob = _admit(net, n=n, fail_prob=fail_prob)
    _admit_sample(n, fail_prob)
    blocks = int(c.depth.amax())
    w_in, w_1, _, w_out = _log_sensitivities(c)
    # s_1 C_1 = s_2 C_2: both matrices of a block are one term, of twice the entries
    entries = _join(c.width * c.in_dim, 2 * c.width[..., None] * c.hidden, c.width * c.n_classes, blocks)
    change = _join(w_in, w_1, w_out, blocks) + _join(c.s_in, c.s_1, c.s_out, blocks).log()
    reach = torch.where(change.isnan(), -math.inf, change) + (4 * c.depth + 4).log()[..., None]  # J = 2 depth + 2
    return _cover(reach, entries, n, fail_prob, c.loss_range)


def _cover(reach: Tensor, entries: Tensor, n: Tensor, fail_prob: Tensor, loss_range: Tensor) -> Tensor:
    """min_η of D1 from ln(2J s_j C_j) and q_j, both (..., matrix).

    With S = ln N + ln(2/δ) the slope in ln η is 2η − √(B²/8n) |S'|/√S, and |S'| ≤ S, as u/(1 + u) ≤ ln(1 + u): divided
    by η it only rises, so that nothing lies lower than the neighborhood of the best of a few η.
    """
    eta = RESOLUTIONS.to(reach)

    def at(some: Tensor) -> Tensor:
        log_size = (entries[..., None] * softplus(reach[..., None] - some.log(), threshold=40)).sum(-2)
        spread = (log_size + (2 / fail_prob).log()[..., None]) / (2 * n[..., None])
        return 2 * some + loss_range[..., None] * spread.sqrt()

    with torch.no_grad():
        best = at(eta[::COARSE]).argmin(-1)
    if not best.numel():
        return at(eta).amin(-1)
    low, high = (int(end) * COARSE for end in torch.aminmax(best))
    return at(eta[max(0, low - COARSE) : high + COARSE + 1]).amin(-1)


def rademacher_bound(n: float | Tensor, net: NormClass, fail_prob: float | Tensor = 0.05) -> Tensor:
    """D2: ε of the whole class with no parameter count but ln, shape of n with the class.

        𝒦 = 8 ln(2 d_max²) (Σ_j (C_j a_j)^{2/3})³,  x = √(𝒦/n),
        R = min(B, 12x(1 + ln(B/(3x)))),  ε = 2R + B √(ln(2/δ)/(2n))

    a_j bounds the sum of the row norms of matrix j, C_j are the `sensitivities`, d_max is the largest axis of a matrix
    (the covers of Bartlett, Foster & Telgarsky, arXiv 1706.08498, put into our chain; constants derived here). It
    carries Πβ outside a logarithm: useful for wide blocks of small norm only. Inf where `collapse` says so.

    >>> net = NormClass(depth=1, width=8, s_1=0.5, s_2=0.6, s_in=1.5, s_out=2, input_norm=3, input_rms=0.5)
    >>> rademacher_bound(torch.tensor([1e8, 1e12]).double(), net)
    tensor([2.0001, 0.1845], dtype=torch.float64)
    """
    c, n, fail_prob = _admit(net, n=n, fail_prob=fail_prob)
    _admit_sample(n, fail_prob)
    blocks = int(c.depth.amax())
    change = _join(*_log_sensitivities(c), blocks)
    power = change + _join(c.row_in, c.row_1, c.row_2, c.row_out, blocks).log()
    power = torch.where(power.isnan(), -math.inf, power) * (2 / 3)
    largest = torch.maximum(torch.maximum(c.width, c.in_dim), c.n_classes)
    largest = torch.maximum(largest, c.hidden.amax(-1))
    scale = (8 * (math.log(2) + 2 * largest.log())).sqrt() * (1.5 * power.logsumexp(-1)).exp()  # √𝒦
    x = scale / n.sqrt()
    complexity = torch.where(x > 0, 12 * x * (1 + (c.loss_range / (3 * x)).log()), 0)
    complexity = torch.where(x < c.loss_range / 3, complexity.minimum(c.loss_range), c.loss_range)
    endless = (change == math.inf).any(-1)
    return torch.where(endless, math.inf, 2 * complexity) + _deviation(n, fail_prob, c.loss_range)


def _deviation(n: Tensor, fail_prob: Tensor, loss_range: Tensor) -> Tensor:
    return loss_range * ((2 / fail_prob).log() / (2 * n)).sqrt()


def _admit_sample(n: Tensor, fail_prob: Tensor) -> None:
    require_positive(n=n)
    require_probability(fail_prob=fail_prob)


def require_probability(**named: Tensor) -> None:
    """Refuse what is not inside (0, 1)."""
    for name, value in named.items():
        refuse(name, value, (value > 0) & (value < 1), "must lie in (0, 1)")


# ---- D3: the old model fixed


def frozen_class_bound(
    n: float | Tensor,
    radius: float | Tensor,
    lipschitz: float | Tensor,
    width: float | Tensor,
    feature_rms: float | Tensor,
    *,
    fresh_sample: bool,
    feature_max: float | Tensor | None = None,
    fail_prob: float | Tensor = 0.05,
    loss_range: float | Tensor = 1.0,
) -> Tensor:
    """D3: ε of the class {f_top(z + Vφ(z)) : ‖V‖_F ≤ b}, everything but V fixed; all arguments broadcast.

        ε = 2√2 λ b √width φ̄/√n + range √(ln(2/δ)/(2n))

    Arguments
        radius: b; lipschitz: λ of loss∘f_top on the balls ‖u − z‖ ≤ b‖φ‖, see `top_lipschitz`
        feature_rms: φ̄ = √E‖φ‖²
        fresh_sample: True when the n samples did not train the old model, nor choose φ
        feature_max: φ_max ≥ ‖φ‖; when given, ε is that of the *paired* loss, loss(f_θ) − loss(f_old), whose range is
            2λbφ_max instead of ``loss_range``: all of ε is then proportional to b, as is the gain of a small step

    Raises ValueError for fresh_sample=False, arguments out of range. Derived here, with Maurer's vector contraction.

    >>> frozen_class_bound(1e6, radius=1.0, lipschitz=0.5, width=16, feature_rms=3.0, fresh_sample=True)
    tensor(0.0183, dtype=torch.float64)
    """
    n, b, lam, width, spread, largest, fail_prob, loss_range = as_tensors(
        n=n, radius=radius, lipschitz=lipschitz, width=width, feature_rms=feature_rms,
        feature_max=feature_rms if feature_max is None else feature_max, fail_prob=fail_prob, loss_range=loss_range
    )  # fmt: skip
    named = {"radius": b, "lipschitz": lam, "feature_rms": spread, "width": width, "feature_max": largest}
    _admit_frozen(fresh_sample, n, fail_prob, loss_range, **named)
    require_positive(width=width)
    if feature_max is not None:
        most, least = torch.broadcast_tensors(largest, spread)
        refuse("feature_max", most, most >= least, "must be >= feature_rms")
        loss_range = 2 * b * lam * largest
    return 2 * math.sqrt(2) * lam * b * (width / n).sqrt() * spread + _deviation(n, fail_prob, loss_range)


def path_norm_bound(
    n: float | Tensor,
    path_norm: float | Tensor,
    lipschitz: float | Tensor,
    width: float | Tensor,
    *,
    fresh_sample: bool,
    paired: bool = False,
    fail_prob: float | Tensor = 0.05,
    loss_range: float | Tensor = 1.0,
) -> Tensor:
    """D3 for a whole ReLU block, W_1 and W_2 free with path norm Σ_jk |W_2,jk| ‖w_1,k‖ ≤ P, of any hidden width:

        ε = 2√2 λ P √width (2 + √(2 ln width))/√n + range √(ln(2/δ)/(2n))

    ``paired``: the range is 2λP√width, as ‖h(z)‖ ≤ P√width; else ``loss_range``. Other arguments and errors are those
    of `frozen_class_bound`. Derived here.

    >>> path_norm_bound(1e6, path_norm=1.0, lipschitz=0.5, width=16, fresh_sample=True)
    tensor(0.0260, dtype=torch.float64)
    """
    n, path_norm, lam, width, fail_prob, loss_range = as_tensors(
        n=n, path_norm=path_norm, lipschitz=lipschitz, width=width, fail_prob=fail_prob, loss_range=loss_range
    )
    _admit_frozen(fresh_sample, n, fail_prob, loss_range, path_norm=path_norm, lipschitz=lam, width=width)
    require_range(1, math.inf, width=width)
    reach = lam * path_norm * width.sqrt()
    if paired:
        loss_range = 2 * reach
    complexity = math.sqrt(2) * reach * (2 + (2 * width.log()).sqrt()) / n.sqrt()
    return 2 * complexity + _deviation(n, fail_prob, loss_range)


def directions_bound(
    n: float | Tensor,
    directions: float | Tensor,
    radius: float | Tensor,
    lipschitz: float | Tensor,
    feature_max: float | Tensor,
    *,
    fresh_sample: bool,
    paired: bool = False,
    fail_prob: float | Tensor = 0.05,
    loss_range: float | Tensor = 1.0,
) -> Tensor:
    """ε of V = Σ a_i V_i, ‖a‖ ≤ b, over k orthonormal directions fixed beforehand: D1 with one matrix of k entries.

        ε = min_η {2η + range √((k ln(1 + 2bλφ_max/η) + ln(2/δ))/(2n))}

    The bound that says something soonest: k = 1 is a step along one direction. ``paired``: the range is 2λbφ_max. Other
    arguments and errors are those of `frozen_class_bound`. Derived here.

    >>> directions_bound(1e4, torch.tensor([1.0, 16.0]), 1.0, 0.5, 6.0, fresh_sample=True)
    tensor([0.0266, 0.0851])
    """
    n, k, b, lam, largest, fail_prob, loss_range = as_tensors(
        n=n, directions=directions, radius=radius, lipschitz=lipschitz, feature_max=feature_max, fail_prob=fail_prob,
        loss_range=loss_range
    )  # fmt: skip
    refuse("directions", k, (k >= 1) & (k == k.round()) & k.isfinite(), "must be a whole number >= 1")
    _admit_frozen(fresh_sample, n, fail_prob, loss_range, directions=k, radius=b, lipschitz=lam, feature_max=largest)
    reach = b * lam * largest
    if paired:
        loss_range = 2 * reach
    shape = torch.broadcast_shapes(k.shape, reach.shape)
    return _cover((2 * reach).log().expand(shape)[..., None], k.expand(shape)[..., None], n, fail_prob, loss_range)


def nested_bounds(
    old: NormClass,
    layer: int,
    move: float | Tensor | None = None,
    typical: float | Tensor = 0.6,
    *,
    new: NormClass | None = None,
    directions: tuple[int, ...] = (1, 16),
    fail_prob: float | Tensor = 0.05,
) -> tuple[list[str], Callable[[float | Tensor], Tensor]]:
    """Four ways to let a new block choose, from little to much: their names, and n ↦ ε, classes on the last axis of ε.

    The sample is new to ``old``; n broadcasts with (..., class).

    Arguments
        old: the class of the old network; layer: the block comes after this one (0 … depth)
        move: how far the block may move a state, ‖V‖_F φ_max; by default as far as its norms allow, s_1·s_2·√width
        typical: φ̄/φ_max in (0, 1]
        new: the class of the networks with the block; by default ``old``, whose blocks must be alike, with one more
        directions: numbers of fixed directions, one class each

    "k fixed directions" and "old network frozen" (all entries of V) are `directions_bound`, or `frozen_class_bound`,
    which holds for both, where that is less; "all weights free" is `cover_bound`. The last class has the norms of
    ``new``: a ``move`` of one's own above s_1·s_2·√width leaves it. Raises ValueError as they do, and where the default
    ``new`` would have two blocks without a norm.

    >>> net = NormClass(depth=2, width=16, s_1=1, s_2=1, s_in=2, s_out=1.5, input_norm=6, input_rms=0.3)
    >>> names, bound = nested_bounds(net, 2)
    >>> for name, eps in zip(names, bound(1e8), strict=True):
    ...     print(f"{name}: {eps:.4f}")
    1 fixed direction: 0.0003
    16 fixed directions: 0.0010
    old network frozen: 0.0016
    all weights free: 0.0133
    """
    _require_class(old=old, new=old if new is None else new)
    require_whole(0, layer=layer)
    if new is None:
        if old.inserted is not None:
            raise ValueError("old must have a norm after every block: hand over new for a second block without one")
        new = replace(old, depth=old.depth + 1, inserted=layer + 1)
    require_several(1, directions=directions)
    top_lipschitz(old, layer)  # a layer that is there
    (c,) = _admit(new)
    size, hidden = (v.expand(*v.shape[:-1], int(c.depth.amax()))[..., layer] for v in (c.s_1 * c.s_2, c.hidden))
    given = {"typical": typical, "width": c.width, "hidden": hidden, "fail_prob": fail_prob}
    move, share, width, hidden, fail_prob = as_tensors(move=size * c.width.sqrt() if move is None else move, **given)
    require_range(0, math.inf, move=move)
    refuse("typical", share, (share > 0) & (share <= 1), "must lie in (0, 1]")
    lam = top_lipschitz(old, layer, 1.0, move)
    lam, move, share, width, hidden, each = (v[..., None] for v in (lam, move, share, width, hidden, fail_prob))
    free = torch.cat([(width * hidden).new_tensor(directions).expand(*hidden.shape[:-1], -1), width * hidden], -1)
    fresh = {"fresh_sample": True, "fail_prob": each}

    def bound(n: float | Tensor) -> Tensor:
        (n,) = as_tensors(n=n)
        n = n.expand(*n.shape[:-1], free.shape[-1] + 1)
        few, every = n[..., :-1], n[..., -1]
        counted = directions_bound(few, free, 1.0, lam, move, **fresh)
        counted = counted.minimum(frozen_class_bound(few, 1.0, lam, width, share * move, **fresh))
        every = cover_bound(every, new, fail_prob)[..., None]
        shape = torch.broadcast_shapes(counted.shape[:-1], every.shape[:-1])
        return torch.cat([counted.expand(*shape, -1), every.expand(*shape, -1)], -1)

    names = [f"{k} fixed direction{'s' * (k > 1)}" for k in directions]
    return [*names, "old network frozen", "all weights free"], bound


def _admit_frozen(fresh_sample: bool, n: Tensor, fail_prob: Tensor, loss_range: Tensor, **named: Tensor) -> None:
    if not isinstance(fresh_sample, bool):
        raise TypeError(f"fresh_sample must be True or False, got {fresh_sample!r}")
    if not fresh_sample:
        raise ValueError(
            "fresh_sample must be True: a sample that trained the old model also chose the class around it, and a "
            "bound for a fixed class does not apply; use cover_bound over the full class, or split the sample"
        )
    _admit_sample(n, fail_prob)
    require_positive(loss_range=loss_range)
    require_range(0, math.inf, **named)
    require_broadcast(n=n, fail_prob=fail_prob, loss_range=loss_range, **named)


# ---- the two routes


def population_bound(
    old: float | Tensor, margin: float | Tensor, erm_gain: float | Tensor, eps_train: float | Tensor
) -> Tensor:
    """Theorem 1: L(f_new) ≤ L(f_old) − Δ_R − Δ_ERM + 2ε_M, with the probability of ε_M.

    Arguments (they broadcast)
        old: L(f_old), a population risk; margin: Δ_R = L(f_old) − L(jumpboard), population
        erm_gain: Δ_ERM = L_S(jumpboard) − L_S(f_new), ≥ 0 with the fallback of Condition 2
        eps_train: ε_M, of a class that contains the jumpboard and f_new

    >>> population_bound(0.5, margin=0.07, erm_gain=0.0, eps_train=0.01)
    tensor(0.4500, dtype=torch.float64)
    """
    old, margin, erm_gain, eps_train = _admit_route(old=old, margin=margin, erm_gain=erm_gain, eps_train=eps_train)
    return old - margin - erm_gain + 2 * eps_train


def route_a(
    test_old: float | Tensor, margin: float | Tensor, erm_gain: float | Tensor, eps_train: float | Tensor
) -> Tensor:
    """Theorem 2: L_T(f_new) ≤ L_T(f_old) − Δ_R/2 − Δ_ERM + 2ε_M, half of the margin spent on the test set.

    Holds with probability ≥ 1 − δ_M − `route_a_failure`. Arguments as for `population_bound`; ``test_old``: L_T(f_old).
    The route is that of arXiv 2605.08297; its constants are derived here.

    >>> route_a(0.5, margin=0.07, erm_gain=0.0, eps_train=0.01)
    tensor(0.4850, dtype=torch.float64)
    """
    old, margin, erm_gain, eps_train = _admit_route(
        test_old=test_old, margin=margin, erm_gain=erm_gain, eps_train=eps_train
    )
    return old - margin / 2 - erm_gain + 2 * eps_train


def route_a_failure(margin: float | Tensor, test_size: float | Tensor, loss_range: float | Tensor = 1.0) -> Tensor:
    """exp(−K_t Δ_R²/(8B²)): how often the test set spoils `route_a` at most; 1, nothing, as the margin vanishes.

    ``loss_range`` is B, of one loss; a difference of two has 2B. Raises ValueError for a negative margin.

    >>> route_a_failure(torch.tensor([0.0726, 0.0374, 0.0]), 10_000)
    tensor([0.0014, 0.1740, 1.0000])
    """
    margin, size, loss_range = as_tensors(margin=margin, test_size=test_size, loss_range=loss_range)
    require_range(0, math.inf, margin=margin)
    require_positive(test_size=size, loss_range=loss_range)
    require_broadcast(margin=margin, test_size=size, loss_range=loss_range)
    return (-size * (margin / loss_range) ** 2 / 8).exp()


def route_a_free(
    test_old: float | Tensor,
    margin: float | Tensor,
    erm_gain: float | Tensor,
    eps_train: float | Tensor,
    test_size: float | Tensor,
    fail_prob: float | Tensor,
    loss_range: float | Tensor = 1.0,
) -> Tensor:
    """Route A with a free deviation: L_T(f_old) − Δ_R − Δ_ERM + 2ε_M + u, u = `hoeffding_deviation`.

    Probability ≥ 1 − δ_M − ``fail_prob`` at every margin ≥ 0: nothing vanishes with it (derived here).

    >>> route_a_free(0.5, margin=0.07, erm_gain=0.0, eps_train=0.01, test_size=1e6, fail_prob=0.05)
    tensor(0.4524, dtype=torch.float64)
    """
    _admit_shapes(
        test_old=test_old, margin=margin, erm_gain=erm_gain, eps_train=eps_train, test_size=test_size,
        fail_prob=fail_prob, loss_range=loss_range
    )  # fmt: skip
    deviation = hoeffding_deviation(test_size, fail_prob, loss_range)
    old, margin, erm_gain, eps_train = _admit_route(
        test_old=test_old, margin=margin, erm_gain=erm_gain, eps_train=eps_train
    )
    return old - margin - erm_gain + 2 * eps_train + deviation


def route_b(
    test_old: float | Tensor,
    test_margin: float | Tensor,
    erm_gain: float | Tensor,
    eps_train: float | Tensor,
    eps_test: float | Tensor,
) -> Tensor:
    """Theorem 3: L_T(f_new) ≤ L_T(f_old) − Δ^R_test − Δ_ERM + 2(ε_M + ε_K), with probability ≥ 1 − δ_M − δ_K.

    ``test_margin`` = Δ^R_test = L_T(f_old) − L_T(jumpboard), may be negative; ``eps_test`` = ε_K, the bound of ε_M at
    the size of the test set. No margin enters the probability. arXiv 2605.08297; constants derived here.

    >>> route_b(0.5, test_margin=0.07, erm_gain=0.0, eps_train=0.01, eps_test=0.01)
    tensor(0.4700, dtype=torch.float64)
    """
    old, margin, erm_gain, eps_train, eps_test = _admit_route(
        test_old=test_old, test_margin=test_margin, erm_gain=erm_gain, eps_train=eps_train, eps_test=eps_test
    )
    return old - margin - erm_gain + 2 * (eps_train + eps_test)


def route_b_prime(
    test_old: float | Tensor,
    test_margin: float | Tensor,
    erm_gain: float | Tensor,
    eps_train: float | Tensor,
    test_size: float | Tensor,
    fail_prob: float | Tensor,
    loss_range: float | Tensor = 1.0,
) -> Tensor:
    """B′: L_T(f_old) − Δ^R_test − Δ_ERM + 2ε_M + u, u = `hoeffding_deviation` in the place of 2ε_K.

    Allowed because neither f_new nor the jumpboard depends on the test set; probability ≥ 1 − δ_M − ``fail_prob``
    (derived here).

    >>> route_b_prime(0.5, test_margin=0.07, erm_gain=0.0, eps_train=0.01, test_size=1e6, fail_prob=0.05)
    tensor(0.4524, dtype=torch.float64)
    """
    _admit_shapes(
        test_old=test_old, test_margin=test_margin, erm_gain=erm_gain, eps_train=eps_train, test_size=test_size,
        fail_prob=fail_prob, loss_range=loss_range
    )  # fmt: skip
    deviation = hoeffding_deviation(test_size, fail_prob, loss_range)
    return route_b(test_old, test_margin, erm_gain, eps_train, deviation / 2)


def hoeffding_deviation(
    test_size: float | Tensor, fail_prob: float | Tensor, loss_range: float | Tensor = 1.0
) -> Tensor:
    """u = B √(2 ln(1/δ)/K_t): what a difference of two losses of range B exceeds its mean by, on K_t fresh samples.

    >>> hoeffding_deviation(10_000, 0.05)
    tensor(0.0245, dtype=torch.float64)
    """
    size, fail_prob, loss_range = as_tensors(test_size=test_size, fail_prob=fail_prob, loss_range=loss_range)
    require_positive(test_size=size, loss_range=loss_range)
    require_probability(fail_prob=fail_prob)
    require_broadcast(test_size=size, fail_prob=fail_prob, loss_range=loss_range)
    return loss_range * (-2 * fail_prob.log() / size).sqrt()


def hoeffding_test_size(margin: float | Tensor, delta: float | Tensor, loss_range: float | Tensor = 1.0) -> Tensor:
    """⌈8B² ln(1/δ)/Δ²⌉: the test samples at which `route_a_failure` is ≤ δ; inf for a margin of 0.

    >>> hoeffding_test_size(torch.tensor([0.0726, 0.0374]).double(), 0.05)
    tensor([ 4547., 17134.], dtype=torch.float64)
    """
    margin, delta, loss_range = as_tensors(margin=margin, delta=delta, loss_range=loss_range)
    require_range(0, math.inf, margin=margin)
    require_positive(loss_range=loss_range)
    require_probability(delta=delta)
    require_broadcast(margin=margin, delta=delta, loss_range=loss_range)
    return (-8 * delta.log() * (loss_range / margin) ** 2).ceil()


def samples_needed(
    bound: Callable[[Tensor], Tensor], target: float | Tensor, low: float = 1.0, high: float = 1e15
) -> Tensor:
    """The n from which bound(n) ≤ target, to 1e-4; inf beyond ``high``. Shape of the bound with the target.

    ``bound`` takes n (points, 1, …) with as many axes as it needs to broadcast, and must not increase with n. Raises
    ValueError for a target that is not > 0 or empty, for a bound that is NaN somewhere, and unless 0 < low < high.

    >>> samples_needed(lambda n: 3 / n.sqrt(), torch.tensor([0.3, 0.03]).double())
    tensor([  100., 10000.], dtype=torch.float64)
    """
    (target,) = as_tensors(target=target)
    require_positive(target=target)
    require_some(target=target)
    ends = as_tensors(low=low, high=high)
    if any(end.dim() for end in ends) or not 0 < low < high < math.inf:
        raise ValueError(f"low and high must be numbers with 0 < low < high < inf, got {low} and {high}")
    shape = require_broadcast(**{"bound(n)": _asked(bound, target.new_tensor(low)), "target": target})
    start, stop = target.new_tensor(low).log().expand(shape), target.new_tensor(high).log().expand(shape)
    part = torch.linspace(0, 1, 101, dtype=target.dtype, device=target.device).view(-1, *[1] * len(shape))
    for _ in range(3):  # 100 times finer each
        grid = start + part * (stop - start)
        holds = _asked(bound, grid.exp()) <= target
        first = holds.int().argmax(0)  # 0 also where it never holds
        never = ~holds.any(0)
        stop, start = (grid.gather(0, at[None])[0] for at in (first, (first - 1).clamp_min(0)))
    return torch.where(never, math.inf, stop.exp())


def _asked(bound: Callable[[Tensor], Tensor], n: Tensor) -> Tensor:
    """bound(n), if it is a tensor without NaN."""
    if not callable(bound):
        raise TypeError(f"bound must be a function of n, got {type(bound).__name__}")
    found = bound(n)
    if not isinstance(found, Tensor):
        raise TypeError(f"bound(n) must be a tensor for a tensor n, got {type(found).__name__}")
    refuse("bound(n)", found, ~found.isnan(), "must be a number")
    return found


ROUTES = ("A", "B", "B'")


def promise_from(
    bound: Callable[[Tensor], Tensor],
    margin: float | Tensor,
    test_size: float | Tensor,
    fail_prob: float | Tensor = 0.05,
    route: str = "A",
    loss_range: float | Tensor = 1.0,
    high: float = 1e15,
) -> tuple[Tensor, Tensor]:
    """The n from which a class promises a smaller population risk, and from which a smaller risk on the test set.

    With Δ_ERM = 0 and Δ^R_test = Δ_R = ``margin``; each of the two statements involved fails with ``fail_prob``:

    ==========  =============================================================================================
    population  2ε(n) < Δ
    "A"         2ε(n) < Δ/2, if `route_a_failure` ≤ fail_prob; else never (inf)
    "B"         2ε(n) + 2ε(K_t) < Δ
    "B'"        2ε(n) + u < Δ, u = `hoeffding_deviation`; the same for route A with a free deviation
    ==========  =============================================================================================

    ``bound`` is n ↦ ε as for `samples_needed`, or of `nested_bounds`, whose classes are then the last axis. Raises
    ValueError for margin ≤ 0, an unknown route.

    >>> [round(n.item(), -3) for n in promise_from(lambda n: 2 / n.sqrt(), 0.05, test_size=1e6, route="B'")]
    [6000.0, 7000.0]
    """
    margin, test_size, fail_prob, loss_range = as_tensors(
        margin=margin, test_size=test_size, fail_prob=fail_prob, loss_range=loss_range
    )
    require_positive(margin=margin)
    require_broadcast(margin=margin, test_size=test_size, fail_prob=fail_prob, loss_range=loss_range)
    if route not in ROUTES:
        raise ValueError(f"route must be one of {', '.join(ROUTES)}, got {route!r}")
    u = hoeffding_deviation(test_size, fail_prob, loss_range)
    if route == "A":
        budget = torch.where(u <= margin / 2, margin / 4, 0)
    else:
        budget = (margin - u) / 2 if route == "B'" else margin / 2 - _asked(bound, test_size)
    budget, half, _ = torch.broadcast_tensors(budget, margin / 2, _asked(bound, margin.new_tensor(high)))
    needed = samples_needed(bound, torch.stack([half, torch.where(budget > 0, budget, half)]), high=high)
    return needed[0], torch.where(budget > 0, needed[1], math.inf)


def _admit_shapes(**named: float | Tensor) -> None:
    require_broadcast(**dict(zip(named, as_tensors(**named), strict=True)))


def _admit_route(**named: float | Tensor) -> tuple[Tensor, ...]:
    values = dict(zip(named, as_tensors(**named), strict=True))
    for name, value in values.items():
        if name.startswith("eps"):  # infinite where the class has no bound: then so has the risk
            refuse(name, value, value >= 0, "must be >= 0")
        else:
            require_finite(**{name: value})
    if "margin" in values:
        require_range(0, math.inf, margin=values["margin"])
    require_broadcast(**values)
    return tuple(values.values())


# ---- what happened, exactly


@dataclass(frozen=True)
class RiskChange:
    """The change of the test risk as a sum of three; negative is better."""

    jumpboard: Tensor  # −Δ^R_test: L_T(jumpboard) − L_T(f_old)
    training: Tensor  # −Δ_ERM: L_S(f_new) − L_S(jumpboard)
    gap: Tensor  # growth of L_T − L_S from the jumpboard to f_new
    total: Tensor  # L_T(f_new) − L_T(f_old)


def decompose_test_change(
    test_old: float | Tensor,
    test_jump: float | Tensor,
    test_new: float | Tensor,
    train_jump: float | Tensor,
    train_new: float | Tensor,
) -> RiskChange:
    """L_T(f_new) − L_T(f_old) = −Δ^R_test − Δ_ERM + [gap(f_new) − gap(jumpboard)], gap = L_T − L_S.

    An identity: no probability, no inequality (derived here). Arguments broadcast: risks of the old model, of the
    jumpboard and of the new model on the test set T and the training set S; any loss.

    >>> change = decompose_test_change(0.60, 0.58, 0.55, train_jump=0.50, train_new=0.40)
    >>> change.jumpboard, change.training, change.gap  # −.02 − .10 + .07 = −.05
    (tensor(-0.0200, dtype=torch.float64), tensor(-0.1000, dtype=torch.float64), tensor(0.0700, dtype=torch.float64))
    """
    risks = _admit_route(
        test_old=test_old, test_jump=test_jump, test_new=test_new, train_jump=train_jump, train_new=train_new
    )
    old, jump, new, train_jump, train_new = torch.broadcast_tensors(*risks)
    gap = (new - train_new) - (jump - train_jump)
    return RiskChange(jump - old, train_new - train_jump, gap, new - old)
