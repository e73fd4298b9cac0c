"""Pretraining and fine-tuning as the nets of this part share them: to a loss, not for a number of steps; with controls.

    start = {...}                                                    # params of many nets, see labkit.training
    old = learn(forward, start, x, y, optimizer, stop_loss=1e-3, max_steps=5000)
    readout = {"v": new_readout(start["v"], gamma, generators)}      # the same draw for both ways
    for source, begin in sources(start, old.params, readout).items():
        new = learn(forward, begin, x_ft, y_ft, optimizer, stop_loss=1e-4, max_steps=5000, center=begin)
        error = mse(centered(forward, begin)(new.params, x_test), y_test)

Matched loss, because nets of unlike scales learn at unlike speeds. Centered, because a random readout is a random
function that few samples fit away on themselves only. "reset" takes what fine-tuning the untrained body would have
given: what pretraining adds is the distance to it. A net that diverged is a result: nan, counted, never averaged away.
The choices are ours; arXiv 2602.20062 asks the question.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labkit import training
from labkit.training import SGD, Adam, Params, PerNet, mse
from labkit.validate import as_tensors, refuse, require_finite, require_whole

SOURCES = ("pretrained", "reset", "scratch")
LAWS = ("normal", "sign")
LEAST_SEEDS = 3  # of an error bar: two values agree by chance too often

Forward = Callable[[Params, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Phase:
    """Where a phase of learning ended, for each net.

    Fields
        params: tensors (net, ...)
        steps: (net,), int64, steps taken
        loss: (net,), training loss at the end; nan where a limit of no steps left it unseen
        reached: (net,), bool: the loss it was to reach
        diverged: (net,), bool: its loss was not finite, or above ``max_loss``
    """

    params: Params
    steps: Tensor
    loss: Tensor
    reached: Tensor
    diverged: Tensor

    def __str__(self) -> str:
        steps, n_nets = self.steps.tolist(), len(self.steps)
        line = f"{n_nets} nets, {min(steps)} to {max(steps)} steps, {int(self.reached.sum())} reached their loss"
        return line + (f"; diverged: {self.diverged.nonzero().flatten().tolist()}" if self.diverged.any() else "")


def whole_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """The seeds of the nets as a tuple; TypeError for what is not whole, ValueError for one below 0 and for none.

    >>> whole_seeds(range(3))
    (0, 1, 2)
    """
    if not isinstance(seeds, Iterable):
        raise TypeError(f"seeds must be a list of whole numbers, one a net, got {seeds!r}")
    seeds = tuple(seeds)
    if not seeds:
        raise ValueError("seeds must hold one seed a net, got none")
    require_whole(0, **{f"seeds[{place}]": seed for place, seed in enumerate(seeds)})
    return tuple(map(int, seeds))


def learn(
    forward: Forward,
    params: Params,
    x: Tensor,
    y: Tensor,
    optimizer: SGD | Adam,
    stop_loss: PerNet,
    max_steps: int,
    *,
    center: Params | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = mse,
    **more,
) -> Phase:
    """One phase, pretraining or fine-tuning: every net until its training loss is ``stop_loss`` or less.

    Arguments
        stop_loss: number or (net,); a net that has it already takes no step
        max_steps: then it ends for all
        center: the params of which the output is subtracted, f − f_center; None: f itself. Test with
            ``centered(forward, center)``
        more: for ``labkit.training.train``: per_net, batch and generators, clip, max_loss, progress, ...

    Raises as ``labkit.training.train``.

    >>> x, flat = torch.linspace(-1, 1, 9)[:, None], {"w": torch.ones(2, 1, 1)}
    >>> slope = learn(lambda p, x: training.linear(x, p["w"]), flat, x, 3 * x, SGD(0.5), 1e-6, 99, center=flat)
    >>> print(slope, slope.params["w"][0].round(decimals=2))
    2 nets, 15 to 15 steps, 2 reached their loss tensor([[4.]])
    """
    if center is not None and more.get("batch") is None:  # the same inputs at every step: one pass through the center
        with torch.no_grad():
            offset, inner = forward(center, x), loss

        def loss(out: Tensor, y: Tensor) -> Tensor:
            return inner(out - offset, y)
    elif center is not None:
        forward = centered(forward, center)
    run = training.train(forward, params, x, y, optimizer, max_steps, loss=loss, stop_loss=stop_loss, **more)
    return Phase(run.params, run.steps, run.loss[-1], run.stopped, run.diverged)


def centered(forward: Forward, start: Params) -> Forward:
    """f − f_start: a function of (params, x) that is 0 at params = start. No gradient flows through f_start.

    >>> f = centered(lambda p, x: training.linear(x, p["w"]), {"w": torch.ones(2, 1, 3)})
    >>> f({"w": torch.ones(2, 1, 3)}, torch.ones(4, 3)).abs().max()
    tensor(0.)
    """
    start = {name: value.detach() for name, value in start.items()}

    def difference(params: Params, x: Tensor) -> Tensor:
        with torch.no_grad():
            before = forward(start, x)
        return forward(params, x) - before

    return difference


def new_readout(
    like: Tensor,
    gamma: PerNet,
    generators: Sequence[torch.Generator],
    law: str = "normal",
    n_out: int | None = None,
) -> Tensor:
    """A fresh last layer (net, n_out, in): N(0, γ²/in), or for law="sign" ±γ/√in.

    Arguments
        like: the layer that it replaces, (net, out, in): device, dtype, and n_out when not given
        gamma: ≥ 0, a number or (net,). The draw is the same for every γ
        generators: one a net; each moves on by one draw

    Raises ValueError for γ < 0 or not finite, another law, and generators or shapes that do not fit.

    >>> new_readout(torch.zeros(1, 1, 4), 2.0, training.generators([0]), "sign").abs()
    tensor([[[1., 1., 1., 1.]]])
    """
    if law not in LAWS:
        raise ValueError(f"law must be one of {', '.join(LAWS)}, got {law!r}")
    like, gamma = as_tensors(like=like, gamma=gamma)
    if like.dim() != 3 or 0 in like.shape:
        raise ValueError(f"like must be (net, out, in) and not empty, got {tuple(like.shape)}")
    if gamma.shape not in ((), like.shape[:1]):
        raise ValueError(f"gamma must be a number or ({len(like)},), one per net, got {tuple(gamma.shape)}")
    refuse("gamma", gamma, (gamma >= 0) & gamma.isfinite(), "must lie in [0, inf)")
    if len(generators) != len(like):
        raise ValueError(f"generators must be a list of {len(like)}, one a net, got {len(generators)}")
    n_out = like.shape[1] if n_out is None else n_out
    require_whole(1, n_out=n_out)
    drawn = training.normal((n_out, like.shape[2]), generators, device=like.device, dtype=like.dtype)
    drawn = drawn if law == "normal" else torch.where(drawn < 0, -1.0, 1.0).to(drawn)
    return drawn * gamma.expand(len(like))[:, None, None] / math.sqrt(like.shape[2])


def sources(initial: Params, pretrained: Params, readout: Params) -> dict[str, Params]:
    """Where fine-tuning starts: {"pretrained": ..., "reset": ..., "scratch": ...}.

    "pretrained": the pretrained body under the new readout; "reset": the initial body under the same new readout, as
    if pretraining had taken no step; "scratch": the initial net as it is, a single task. ``readout``: the params to
    replace, by name, as `new_readout` draws them. Raises ValueError for a name that is not in both nets, and for
    another shape than it has there.

    >>> body = {"w": torch.zeros(2, 3, 5), "v": torch.zeros(2, 1, 3)}
    >>> {name: float(p["w"].sum() + p["v"].sum()) for name, p in sources(
    ...     body, {"w": body["w"] + 1, "v": body["v"] + 1}, {"v": body["v"] + 0.5}).items()}
    {'pretrained': 33.0, 'reset': 3.0, 'scratch': 0.0}
    """
    for name in readout:
        if name not in initial or name not in pretrained:
            raise ValueError(f"readout must name layers of both nets ({', '.join(initial)}), got {name!r}")
        for net, params in (("initial", initial), ("pretrained", pretrained)):
            if params[name].shape != readout[name].shape:
                shapes = f"{tuple(params[name].shape)} of {net}, got {tuple(readout[name].shape)}"
                raise ValueError(f"readout[{name!r}] must be {shapes}")
    return {"pretrained": pretrained | readout, "reset": initial | readout, "scratch": dict(initial)}


def moved(start: Params, end: Params, names: Sequence[str] | None = None) -> Tensor:
    """‖θ_end − θ_start‖ / ‖θ_start‖ over the params of these names (default: all) → (net,).

    Raises ValueError for no names, one that is not in both, and params of unlike shapes.

    >>> moved({"w": torch.ones(2, 4)}, {"w": 1.5 * torch.ones(2, 4)})
    tensor([0.5000, 0.5000])
    """
    names = list(start if names is None else names)
    if not names:
        raise ValueError(f"names must hold at least one of {', '.join(start)}, got none")
    for name in names:
        if name not in start or name not in end:
            raise ValueError(f"names must be among {', '.join(start)}, got {name!r}")
        if start[name].shape != end[name].shape:
            shapes = f"{tuple(start[name].shape)} and {tuple(end[name].shape)}"
            raise ValueError(f"start and end must have params of the same shapes, got {name} {shapes}")
    before, after = (torch.cat([params[name].flatten(1) for name in names], 1) for params in (start, end))
    return (after - before).norm(dim=1) / before.norm(dim=1)


class ErrorBar(NamedTuple):
    """Mean and its standard error over the seeds that did not diverge, how many these are, and how many did."""

    mean: Tensor
    se: Tensor
    seeds: Tensor
    diverged: Tensor


def error_bar(values: Tensor) -> ErrorBar:
    """Mean and standard error, sd/√seeds, over the last axis: values (..., seed), nan where a net diverged → (...).

    Say ``diverged`` beside the mean: it is of the others. ValueError when fewer than 3 seeds are left, and for inf.

    >>> error_bar(torch.tensor([1.0, 2.0, 3.0, torch.nan]))
    ErrorBar(mean=tensor(2.), se=tensor(0.5774), seeds=tensor(3), diverged=tensor(1))
    """
    (values,) = as_tensors(values=values)
    if values.dim() < 1:
        raise ValueError("values must be (..., seed), got a single number")
    there = ~values.isnan()
    kept = torch.where(there, values, 0)
    require_finite(values=kept)
    seeds = there.sum(-1)
    refuse("seeds of values", seeds, seeds >= LEAST_SEEDS, f"must be >= {LEAST_SEEDS} for an error bar")
    mean = kept.sum(-1) / seeds
    spread = torch.where(there, values - mean[..., None], 0).square().sum(-1) / (seeds - 1)
    return ErrorBar(mean, (spread / seeds).sqrt(), seeds, (~there).sum(-1))


def told(values: Tensor | np.ndarray, digits: int = 3) -> str:
    """Mean ± standard error of paired differences (seed,), signed; "(n.s.)" up to two standard errors.

    nan where a net diverged: left out, and said. Raises as `error_bar`, and ValueError for more axes than one.

    >>> told(torch.tensor([-0.011, -0.013, -0.012])), told(torch.tensor([0.1, -0.1, 0.12, torch.nan]))
    ('−0.012 ± 0.001', '+0.040 ± 0.070 (n.s., 1 diverged)')
    """
    values = torch.as_tensor(values)
    if values.dim() != 1:
        raise ValueError(f"values must be (seed,), one difference a seed, got shape {tuple(values.shape)}")
    mean, se, _, diverged = error_bar(values)
    notes = ["n.s."] * bool(mean.abs() <= 2 * se) + [f"{diverged} diverged"] * bool(diverged)
    words = f"{mean:+.{digits}f} ± {se:.{digits}f}" + (f" ({', '.join(notes)})" if notes else "")
    return words.replace("-", "−")
