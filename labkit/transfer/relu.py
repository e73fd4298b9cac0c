"""Two layers of ReLU: the shortest bridge from the diagonal network of lessons 01-04 to a nonlinear one.

f(x) = Σ_j v_j relu(w_j·x). Gradient flow keeps ‖w_j‖² − v_j² of every neuron (derived here: relu is 1-homogeneous, so
w_j·∂_{w_j}L = v_j ∂_{v_j}L). The net starts at ‖w_j‖² = c(1+λ)/2, v_j² = c(1−λ)/2 and f = 0, so it stays λc. A neuron
that pretraining brought to b = ‖w‖·|v| then has ‖w‖² = (λc + √(λ²c² + 4b²))/2: λ matters only where c ≳ b. No pathway
is summed here, so the factor 1+λ of the diagonal net, from w₊ + w₋, does not come along. Question of arXiv 2602.20062;
net, tasks and protocol are ours.

All nets are one stack: params {"w": (net, hidden, dim), "v": (net, 1, hidden)}, see ``labkit.training``.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labkit import compute, training
from labkit.training import SGD, Params, linear, mse
from labkit.transfer.protocol import SOURCES, Phase, centered, learn, moved, new_readout, sources, whole_seeds
from labkit.transfer.representation import compare
from labkit.validate import as_tensors, refuse, require_broadcast, require_positive, require_range, require_whole

TASKS = ("subset", "new")
MOMENTUM = 0.9
SHARE = 0.6  # of the largest step that is stable without momentum: more, and the invariant drifts
FLOOR = 3.0  # of the kernel norm: what a net that has learned the task has; small nets would leap there in one step


# --- Closed forms -------------------------------------------------------------------------------------------------


class Norms(NamedTuple):
    """‖w‖² and v² of a neuron."""

    w: Tensor
    v: Tensor


def invariant(w: Tensor, v: Tensor) -> Tensor:
    """‖w_j‖² − v_j² of every neuron, w (..., hidden, dim), v (..., hidden) → (..., hidden): gradient flow keeps it.

    >>> invariant(torch.tensor([[3.0, 4.0]]), torch.tensor([3.0]))
    tensor([16.])
    """
    w, v = as_tensors(w=w, v=v)
    if w.dim() < 2 or w.shape[:-1] != v.shape:
        raise ValueError(f"w must be (..., hidden, dim) and v (..., hidden), got {tuple(w.shape)} and {tuple(v.shape)}")
    return w.square().sum(-1) - v.square()


def initial_norms(c: float | Tensor, lam: float | Tensor) -> Norms:
    """‖w‖² = c(1+λ)/2 and v² = c(1−λ)/2; also those of a neuron that pretraining did not use.

    c > 0, λ in [−1, 1]; they broadcast.

    >>> initial_norms(2.0, 0.5)
    Norms(w=tensor(1.5000, dtype=torch.float64), v=tensor(0.5000, dtype=torch.float64))
    """
    c, lam = _admit(c=c, lam=lam)
    return Norms(c * (1 + lam) / 2, c * (1 - lam) / 2)


def norms_after(product: float | Tensor, c: float | Tensor, lam: float | Tensor) -> Norms:
    """‖w‖² = (λc + √(λ²c² + 4b²))/2 and v² = (−λc + √(λ²c² + 4b²))/2 of a neuron with b = ‖w‖·|v| = ``product``.

    For c ≪ b both are b, whatever λ; for c ≫ b ‖w‖² is λc (λ > 0) or b²/(|λ|c) (λ < 0). Derived here from the
    invariant. b ≥ 0, c > 0, λ in [−1, 1]; they broadcast; raises ValueError outside, and where a norm overflows.

    >>> norms_after(1.0, c=1.5, lam=-1.0)
    Norms(w=tensor(0.5000, dtype=torch.float64), v=tensor(2., dtype=torch.float64))
    """
    b, c, lam = _admit(product=product, c=c, lam=lam)
    delta = lam * c
    large = delta.abs() / 2 + torch.hypot(delta / 2, b)
    refuse("product", b.expand_as(large), large.isfinite(), f"has norms that do not fit into {large.dtype}")
    small = b * (b / torch.where(large > 0, large, 1))  # not a difference of two large numbers
    return Norms(torch.where(delta >= 0, large, small), torch.where(delta >= 0, small, large))


def contrast(product: float | Tensor, c: float | Tensor, lam: float | Tensor) -> Tensor:
    """‖w‖² of a neuron with b = ‖w‖·|v| over that of an unused one: (λ + √(λ² + 4b²/c²)) / (1 + λ).

    1 at the b of the start, c√(1−λ²)/2; for c ≫ b it is 1 for λ → 1 and grows without bound for λ → −1 (inf at −1).
    0 at b = 0 for λ ≤ 0; at λ = −1, where that is 0/0, by agreement: what is silent stays silent. Derived here.
    Arguments and errors as for `norms_after`.

    >>> contrast(torch.tensor([0.5, 1.0, 2.0]).double(), c=1.0, lam=0.0)
    tensor([1., 2., 4.], dtype=torch.float64)
    """
    b, c, lam = _admit(product=product, c=c, lam=lam)
    used = norms_after(b, c, lam).w
    return torch.where(used > 0, used / (c * (1 + lam) / 2), 0.0)


def _admit(**named: float | Tensor) -> tuple[Tensor, ...]:
    tensors = dict(zip(named, as_tensors(**named), strict=True))
    require_broadcast(**tensors)
    require_positive(c=tensors["c"])
    require_range(-1, 1, lam=tensors["lam"])
    if "product" in tensors:
        require_range(0, math.inf, product=tensors["product"])
    return tuple(tensors.values())


# --- The net ------------------------------------------------------------------------------------------------------


def forward(params: Params, x: Tensor) -> Tensor:
    """Σ_j v_j relu(w_j·x): x (n, dim), or (net, n, dim) of each net → (net, n, 1)."""
    return linear(features(params, x), params["v"])


def features(params: Params, x: Tensor) -> Tensor:
    """relu(w_j·x) → (net, n, hidden)."""
    return linear(x, params["w"]).relu()


def initial(
    hidden: int,
    dim: int,
    c: float | Tensor,
    lam: float | Tensor,
    generators: Sequence[torch.Generator],
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Params:
    """Mirrored neurons, so that f = 0: twice the same random directions w_j, with v_j and −v_j.

    Arguments
        hidden: even; neurons j and j + hidden/2 are a pair
        c, lam: > 0, in (−1, 1], numbers or (net,). At λ = −1 all w are 0, and ReLU nets do not move from there
        generators: one a net; the directions are the same for every c and λ

    >>> params = initial(4, 3, 2.0, 0.5, training.generators([0, 1]))
    >>> params["w"].square().sum(-1)[0], params["v"].square()[0, 0], forward(params, torch.eye(3).double()).abs().max()
    (tensor([1.5000, 1.5000, 1.5000, 1.5000], dtype=torch.float64),
     tensor([0.5000, 0.5000, 0.5000, 0.5000], dtype=torch.float64), tensor(0., dtype=torch.float64))
    """
    require_whole(2, hidden=hidden)
    require_whole(1, dim=dim)
    if hidden % 2:
        raise ValueError(f"hidden must be even, pairs of mirrored neurons, got {hidden}")
    w = training.normal((hidden // 2, dim), generators, device=device, dtype=dtype)
    (c, lam), place = _admit(c=c, lam=lam), {"device": w.device, "dtype": w.dtype}
    for name, value in (("c", c), ("lam", lam)):
        if value.shape not in ((), (len(w),)):
            raise ValueError(f"{name} must be a number or ({len(w)},), one per net, got {tuple(value.shape)}")
    refuse("lam", lam, lam > -1, "must be > -1 of a net that is to learn: at -1 all its w are 0, and stay 0")
    norms = Norms(*(part.to(**place).expand(len(w)).sqrt() for part in initial_norms(c, lam)))
    w = w / w.norm(dim=-1, keepdim=True) * norms.w[:, None, None]
    v = norms.v[:, None, None].expand(-1, 1, hidden // 2)
    return {"w": torch.cat([w, w], 1), "v": torch.cat([v, -v], 2)}


def drift(params: Params, c: float | Tensor, lam: float | Tensor) -> Tensor:
    """Largest |‖w_j‖² − v_j² − λc| / c over the neurons → (net,): what finite steps did to the invariant.

    >>> drift(initial(4, 3, 2.0, 0.5, training.generators([0])), 2.0, 0.5)
    tensor([0.], dtype=torch.float64)
    """
    c, lam = (value.to(params["w"]) for value in _admit(c=c, lam=lam))
    kept = invariant(params["w"], params["v"][:, 0])
    return ((kept - (lam * c).expand(len(kept))[:, None]).abs().amax(1) / c).clamp(min=0)


def kernel_norm(params: Params, x: Tensor, u: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Norm of the tangent kernel JJᵀ on n inputs, over n: (net,), by power iterations from u (net, n); and the last u.

    J is the Jacobian of f(x_i) with respect to all weights. The norm comes from below.
    """
    x = x.expand(len(u), *x.shape[-2:])
    h, v = linear(x, params["w"]), params["v"]
    a, on = h.relu(), (h > 0).to(h.dtype) * v  # ∂f/∂v_j and ∂f/∂h_j
    size = u.norm(dim=1)
    for _ in range(iterations):
        u = (u / u.norm(dim=1, keepdim=True))[..., None]
        dv, dw = a.mT @ u, (on * u).mT @ x  # Jᵀu
        u = (a @ dv)[..., 0] + ((x @ dw.mT) * on).sum(-1)
        size = u.norm(dim=1)
    return size / x.shape[-2], u


class StableRate:
    """Learning rates of gradient descent on the mean squared error: for each net the same share of its stability limit.

    The Hessian's norm is 2‖JJᵀ‖/n near zero error, gradient descent is stable below 2/norm, and momentum μ steps as far
    as 1/(1−μ) such steps: rate = share·(1−μ) / max(‖JJᵀ‖/n, floor). The norm is looked at every ``every`` steps, by a
    few power iterations from the last vector. Give it to ``SGD(StableRate(x), momentum)`` for one training.
    """

    def __init__(self, x: Tensor, momentum: float = MOMENTUM, share: float = SHARE, floor: float = FLOOR):
        self.x, self.step_size, self.floor = x, share * (1 - momentum), floor
        self.every, self.first, self.iterations = 10, 20, 3
        self.u = self.rate = None

    def __call__(self, step: int, params: Params) -> Tensor:
        if step % self.every == 0:
            known, n_nets = self.u is not None, len(params["w"])
            start = self.u if known else self.x.new_ones(n_nets, self.x.shape[-2])
            norm, self.u = kernel_norm(params, self.x, start, self.iterations if known else self.first)
            good = norm.isfinite()[:, None] & (norm > 0)[:, None]
            self.u = torch.where(good, self.u, 1)
            self.rate = torch.where(good[:, 0], self.step_size / norm.clamp(min=self.floor), 0)
        return self.rate


# --- The tasks ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Teacher:
    """y = √(2/m) Σ_k ± relu(q_k·x), one teacher a net: directions (net, m, dim), orthonormal; signs ±1 (net, m).

    Of white x the variance of y is 1 − 1/π, whatever m.
    """

    directions: Tensor
    signs: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x (n, dim) or (net, n, dim) → (net, n, 1)."""
        return linear(linear(x, self.directions).relu(), self.signs[:, None]) * math.sqrt(2 / self.signs.shape[1])


def teachers(
    dim: int,
    units: int,
    ft_units: int,
    generators: Sequence[torch.Generator],
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> dict[str, Teacher]:
    """Teachers by task: "pretraining" of ``units`` units, "subset" of ``ft_units`` of these, "new" of as many others.

    All directions of a net are orthonormal, signs are drawn for each task. Raises ValueError when the pretraining has
    fewer units than the subset asks for, or dim fewer directions than all together.

    >>> found = teachers(20, 10, 3, training.generators([0]))
    >>> shared = found["pretraining"].directions @ found["subset"].directions.mT
    >>> shared.abs().sum().round(), (found["new"].directions @ found["pretraining"].directions.mT).abs().max() < 1e-9
    (tensor(3., dtype=torch.float64), tensor(True))
    """
    require_whole(1, dim=dim, units=units, ft_units=ft_units)
    if ft_units > units:
        raise ValueError(f"ft_units must lie in [1, {units}], the units of pretraining, got {ft_units}")
    if units + ft_units > dim:
        raise ValueError(f"units + ft_units must be <= dim = {dim}, orthogonal directions, got {units} + {ft_units}")
    place = {"device": device, "dtype": dtype}
    drawn = training.normal((dim, dim), generators, device="cpu", dtype=torch.float64)
    basis = torch.linalg.qr(drawn)[0].mT  # on the CPU: what QR gives may differ by signs elsewhere
    signs = training.normal((units + 2 * ft_units,), generators, **place).sign().split([units, ft_units, ft_units], 1)
    basis = basis[:, : units + ft_units].to(signs[0])
    which = {"pretraining": slice(units), "subset": slice(ft_units), "new": slice(units, None)}
    return {task: Teacher(basis[:, at], sign) for (task, at), sign in zip(which.items(), signs, strict=True)}


# --- The experiment -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """How large everything is; the defaults fit a laptop.

    ``pt_steps`` and ``ft_steps`` are limits; with 0 the nets stay as they are, and their loss is nan. Raises ValueError
    or TypeError for what is not whole, below 1 (``n_test``: 2), and losses that are not finite.
    """

    dim: int = 20
    hidden: int = 48
    units: int = 10
    ft_units: int = 3
    n_pt: int = 400
    n_test: int = 1000
    pt_loss: float = 1e-3
    ft_loss: float = 1e-4
    pt_steps: int = 12_000
    ft_steps: int = 8000

    def __post_init__(self) -> None:
        require_whole(1, dim=self.dim, hidden=self.hidden, units=self.units, ft_units=self.ft_units, n_pt=self.n_pt)
        require_whole(2, n_test=self.n_test)  # of which the error is in units of a variance
        require_whole(0, pt_steps=self.pt_steps, ft_steps=self.ft_steps)
        for name, loss in (("pt_loss", self.pt_loss), ("ft_loss", self.ft_loss)):
            if isinstance(loss, bool) or not isinstance(loss, Real):
                raise TypeError(f"{name} must be a number, got {loss!r}")
            if not math.isfinite(loss):
                raise ValueError(f"{name} must be finite, got {loss}")


WEIGHTS, TEACHER, SAMPLE, READOUT, TEST, FINE_TUNING = range(6)  # what a seed is used for
MAX_LOSS = 1e3  # the labels have variance 0.7
ROUND = 400  # steps, after which nets that have ended make no more work


def streams(seeds: Sequence[int], purpose: int) -> list[torch.Generator]:
    """One generator a seed, another one for each purpose."""
    return training.generators([10 * seed + 500_000 + purpose for seed in whole_seeds(seeds)])


@dataclass(frozen=True, eq=False)
class Pretrained:
    """Nets, one a seed, before and after pretraining: what all fine-tuning starts from.

    Fields
        initial, phase: params before; where pretraining ended
        drift: (net,), as `drift` has it
        teachers: as `teachers` gives them
        seeds, sizes: as given
    """

    initial: Params
    phase: Phase
    drift: Tensor
    teachers: dict[str, Teacher]
    seeds: tuple[int, ...]
    sizes: Sizes


def pretrain(
    c: float | Tensor,
    lam: float | Tensor,
    seeds: Sequence[int],
    sizes: Sizes | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    progress: bool = False,
    share: float = SHARE,
) -> Pretrained:
    """Nets at scales c and λ (numbers or one per seed), each with teacher and sample of its seed, to the same loss.

    ``share``: as for `StableRate`; smaller steps keep the invariant better. float32 reaches the losses asked for. The
    same seed has the same teacher, sample and directions for every c and λ. Raises ValueError or TypeError for seeds
    that are not whole numbers ≥ 0, a dtype that is not floating, and a device that this computer does not have.

    >>> old = pretrain(0.3, -0.9, seeds=range(2), sizes=Sizes(n_pt=50, pt_loss=0.3, pt_steps=200))
    >>> old.phase.reached, old.phase.params["w"].shape
    (tensor([True, True]), torch.Size([2, 48, 20]))
    """
    sizes = Sizes() if sizes is None else sizes
    if not isinstance(sizes, Sizes):
        raise TypeError(f"sizes must be Sizes(...) of labkit.transfer.relu, got {sizes!r}")
    device = compute.device() if device is None else compute.valid_device(device)
    seeds, place = whole_seeds(seeds), {"device": device, "dtype": dtype}
    found = teachers(sizes.dim, sizes.units, sizes.ft_units, streams(seeds, TEACHER), **place)
    x = training.normal((sizes.n_pt, sizes.dim), streams(seeds, SAMPLE), **place)
    start = initial(sizes.hidden, sizes.dim, c, lam, streams(seeds, WEIGHTS), **place)
    phase = _descend(start, x, found["pretraining"](x), sizes.pt_loss, sizes.pt_steps, progress=progress, share=share)
    return Pretrained(start, phase, drift(phase.params, c, lam), found, seeds, sizes)


def _descend(
    start: Params,
    x: Tensor,
    y: Tensor,
    stop_loss: float,
    max_steps: int,
    center: bool = False,
    progress: bool = False,
    share: float = SHARE,
) -> Phase:
    """`learn` in rounds: nets that have ended leave the stack, the others go on, with their momentum at rest again."""
    nets, taken = torch.arange(len(x), device=x.device), 0
    params = {name: value.clone() for name, value in start.items()}
    steps, loss = torch.zeros_like(nets), torch.full_like(x[:, 0, 0], torch.nan)
    reached, diverged = torch.zeros_like(nets, dtype=torch.bool), torch.zeros_like(nets, dtype=torch.bool)
    while taken < max_steps and len(nets):
        now = {name: value[nets] for name, value in params.items()}
        done = learn(
            forward,
            now,
            x[nets],
            y[nets],
            SGD(StableRate(x[nets], share=share), MOMENTUM),
            stop_loss,
            min(ROUND, max_steps - taken),
            center={name: value[nets] for name, value in start.items()} if center else None,
            per_net=True,
            max_loss=MAX_LOSS,
            progress=progress,
        )
        for name, value in done.params.items():
            params[name][nets] = value
        steps[nets] += done.steps
        loss[nets], reached[nets], diverged[nets] = done.loss, done.reached, done.diverged
        nets, taken = nets[~(done.reached | done.diverged)], taken + ROUND
    return Phase(params, steps, loss, reached, diverged)


def fine_tune(
    old: Pretrained,
    n: int,
    task: str | Sequence[str] = "subset",
    gamma: float | Sequence[float] = 0.3,
    source: str | Sequence[str] = "pretrained",
    net: Sequence[int] | None = None,
    progress: bool = False,
) -> dict[str, Tensor]:
    """Fine-tune the pretrained nets on n samples each, readout ±γ/√hidden, the initial output subtracted.

    Arguments
        task: "subset" or "new"; like gamma and source one for all rows, or a list, array or tensor of one each
        source: "pretrained", or the controls "reset" and "scratch", see ``labkit.transfer.protocol.sources``
        net: which pretrained net each row starts from; by default each once

    Returns, each (row,): error (test error over the variance of the labels), pr_before, pr_after, ensd, cka (of the
    hidden features on the test inputs), moved (‖ΔW‖/‖W‖), steps, reached and diverged. A net that diverged, here or in
    pretraining, has nan. Raises ValueError or TypeError for what names no net, task or source, and lists of another
    length than the rows.

    >>> sizes = Sizes(n_pt=50, pt_loss=0.3, ft_loss=0.1, pt_steps=200)
    >>> found = fine_tune(pretrain(0.3, -0.9, range(2), sizes), 40, task="new", source="reset")
    >>> found["reached"], found["error"].shape
    (tensor([True, True]), torch.Size([2]))
    """
    require_whole(1, n=n)
    net = list(range(len(old.seeds))) if net is None else _listed("net", net)
    for place, value in enumerate(net):
        require_whole(0, **{f"net[{place}]": value})
        if value not in range(len(old.seeds)):
            raise ValueError(f"net[{place}] = {value} must lie in [0, {len(old.seeds) - 1}]")
    task, gamma, source = (_each(*it, len(net)) for it in (("task", task), ("gamma", gamma), ("source", source)))
    _require_among(TASKS, task=task)
    _require_among(SOURCES, source=source)
    for place, value in enumerate(gamma):
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"gamma[{place}] must be a number, got {value!r}")
    sizes, like = old.sizes, old.initial["w"]
    place = {"device": like.device, "dtype": like.dtype}
    index = torch.tensor(net, device=like.device)
    before, after = ({k: v[index] for k, v in params.items()} for params in (old.initial, old.phase.params))
    lost = old.phase.diverged[index]
    after = {k: torch.where(lost.view(-1, *(1,) * (v.dim() - 1)), before[k], v) for k, v in after.items()}
    seeds = [old.seeds[i] for i in net]
    scale = torch.tensor(gamma, **place)
    starts = sources(before, after, {"v": new_readout(before["v"], scale, streams(seeds, READOUT), "sign")})
    chosen = torch.tensor([SOURCES.index(name) for name in source], device=like.device)
    rows = torch.arange(len(net), device=like.device)
    start = {k: torch.stack([starts[name][k] for name in SOURCES])[chosen, rows] for k in before}
    purposes = [FINE_TUNING + TASKS.index(name) for name in task]
    x = training.normal((n, sizes.dim), [streams([s], p)[0] for s, p in zip(seeds, purposes, strict=True)], **place)
    test = training.normal((sizes.n_test, sizes.dim), streams(seeds, TEST), **place)
    picked = torch.tensor([TASKS.index(name) for name in task], device=like.device)
    teacher = Teacher(
        *(
            torch.stack([getattr(old.teachers[name], part) for name in TASKS])[picked, index]
            for part in ("directions", "signs")
        )
    )
    phase = _descend(start, x, teacher(x), sizes.ft_loss, sizes.ft_steps, center=True, progress=progress)
    labels = teacher(test)
    error = mse(centered(forward, start)(phase.params, test), labels) / labels.var((1, 2), correction=0)
    seen = [features(params, test).to(compute.dtype(like.device)) for params in (start, phase.params)]
    lost = lost & (chosen == SOURCES.index("pretrained")) | phase.diverged
    found = {"error": error} | compare(*seen) | {"moved": moved(start, phase.params, ["w"])}
    found = {name: torch.where(lost, torch.nan, value) for name, value in found.items()}
    return found | {"steps": phase.steps, "reached": phase.reached, "diverged": lost}


def column(
    c: float,
    lams: Sequence[float],
    seeds: Sequence[int],
    n: int = 80,
    task: str = "subset",
    gamma: float = 0.3,
    among: Sequence[str] = ("pretrained", "reset"),
    sizes: Sizes | None = None,
    progress: Callable[[Iterable], Iterable] = iter,
) -> dict[str, Tensor]:
    """Pretraining and fine-tuning at one c for several λ: each of `fine_tune`'s results, (lam, source, seed).

    Besides, of pretraining: w_norm and v_norm, ‖w_j‖² and v_j² (lam, seed, hidden), drift, pt_steps and pt_reached
    (lam, seed). ``among``: the sources; ``progress`` wraps the list of what is to be done, such as ``tqdm`` does.
    ``reached`` and ``pt_reached`` are False where the step limit came first: count them beside an average. Raises as
    `pretrain` and `fine_tune`, and ValueError for no λ and no source.

    >>> sizes = Sizes(n_pt=50, pt_loss=0.3, ft_loss=0.1, pt_steps=200)
    >>> found = column(0.3, [-0.9, 0.9], range(3), sizes=sizes)
    >>> found["error"].shape, found["w_norm"].shape
    (torch.Size([2, 2, 3]), torch.Size([2, 3, 48]))
    """
    lams, among, rows, old = _listed("lams", lams), _listed("among", among), [], []
    _require_among(SOURCES, among=among)
    for lam, source in progress([(lam, source) for lam in lams for source in among]):
        if len(rows) == len(old) * len(among):  # the sources of the last are done
            old.append(pretrain(c, lam, seeds, sizes))
        rows.append(fine_tune(old[-1], n, task, gamma, source))
    found = {name: torch.stack([row[name] for row in rows]).unflatten(0, (-1, len(among))) for name in rows[0]}
    pretrained = {
        "w_norm": [it.phase.params["w"].square().sum(-1) for it in old],
        "v_norm": [it.phase.params["v"][:, 0].square() for it in old],
        "drift": [it.drift for it in old],
        "pt_steps": [it.phase.steps for it in old],
        "pt_reached": [it.phase.reached for it in old],
    }
    return found | {name: torch.stack(values) for name, values in pretrained.items()}


def _each(name: str, value, n: int) -> list:
    """One for all, or one each: a list, an array or a tensor."""
    value = value.tolist() if isinstance(value, Tensor | np.ndarray) else value
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [value] * n
    if len(value) != n:
        raise ValueError(f"{name} must be one for all or one for each of {n} rows, got {len(value)}")
    return list(value)


def _listed(name: str, values: Iterable) -> list:
    """As a list that is not empty."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list, got {values!r}")
    values = values.tolist() if isinstance(values, Tensor | np.ndarray) else list(values)
    if not isinstance(values, list) or not values:
        raise ValueError(f"{name} must name at least one, got {values!r}")
    return values


def _require_among(allowed: Sequence[str], **named: Sequence) -> None:
    for name, values in named.items():
        for value in values:
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
