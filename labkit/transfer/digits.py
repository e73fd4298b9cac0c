"""The experiment on digits: pretrain small ResNets to a loss, fine-tune from few images, many seeds and scales as one.

    old = pretrain(kappa=[0.2, 1, 5], weight_scale=1.0, seeds=[0, 0, 0])      # 28 classes of ``labkit.data.digits``
    new = finetune(old, "subset", n_per_class=3, gamma=1.0, centered=False)   # the same start for every task, n, γ
    scratch = finetune(pretrain(1.0, 1.0, [0], max_steps=0), "subset", 3)     # the control

A seed decides the weights, both samples, their noise and the order of the batches: whatever else differs, differences
are paired by seed. All nets learn by one rule to one loss; a rate of their own is `smallest_rate`. In float32:
rounding grows during pretraining until a net of another computer is another net of its kind, so only averages over
seeds mean something. Sizes, rates and losses are ours; the question is that of arXiv 2602.20062.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from labkit import training
from labkit.data import digits
from labkit.training import SGD, Params, PerNet, cross_entropy, linear
from labkit.transfer.protocol import Phase, learn, new_readout, whole_seeds
from labkit.transfer.representation import compare
from labkit.transfer.resnet import SMALL, ResNet, rescale, rescale_convolutions
from labkit.validate import require_positive, require_whole

WEIGHTS, ORDER, READOUT, SHOTS = range(4)  # what a seed is used for
PRETRAINING = {"lr": 0.01, "batch": 64, "stop_loss": 0.25, "max_steps": 2500}
FINETUNING = {"lr": 0.003, "stop_loss": 0.02, "max_steps": 1000}
RATES = (0.001, 0.003, 0.01, 0.03)  # of fine-tuning, to choose from
MOMENTUM, CLIP = 0.9, 5.0
STATISTICS = ("batch", "frozen")
COMPARED = 300  # test images of which features are compared: the same number for every task

Found = TypeVar("Found")  # Pretrained or Finetuned


def streams(seeds: Sequence[int], purpose: int) -> list[torch.Generator]:
    """One generator a seed, another one for each purpose."""
    return training.generators([10 * seed + 200_000 + purpose for seed in whole_seeds(seeds)])


@dataclass(frozen=True, eq=False)
class Pretrained:
    """Nets before and after pretraining.

    Fields
        net: their shape
        seeds: of each net
        kappa, weight_scale: (net,), the scales at which they started
        initial: params at the start
        phase: where pretraining ended: ``phase.params``, ``.steps``, ``.loss``, ``.reached``, ``.diverged``
        accuracy: (net,), share of the validation images, nan where it diverged
        statistics: running statistics of batch norm after pretraining, see ``ResNet.statistics``; None without it
    """

    net: ResNet
    seeds: tuple[int, ...]
    kappa: Tensor
    weight_scale: Tensor
    initial: Params
    phase: Phase
    accuracy: Tensor
    statistics: Params | None = None


@dataclass(frozen=True, eq=False)
class Finetuned:
    """What fine-tuning did to each net: its `Phase`, and on the test images, nan where it diverged:

    accuracy; pr_before, pr_after, ensd and cka of the pooled features, centered, of `COMPARED` images: all (net,).
    """

    phase: Phase
    accuracy: Tensor
    pr_before: Tensor
    pr_after: Tensor
    ensd: Tensor
    cka: Tensor


def pretrain(
    kappa: PerNet | Sequence[float],
    weight_scale: PerNet | Sequence[float],
    seeds: Sequence[int],
    net: ResNet = SMALL,
    lr: PerNet = PRETRAINING["lr"],
    max_steps: int = PRETRAINING["max_steps"],
    dtype: torch.dtype = torch.float32,
    **more,
) -> Pretrained:
    """One net per seed, its stem × κ·weight_scale and its readout × weight_scale/κ, trained on the 28 classes.

    With batch norm κ multiplies convolutions, see ``resnet.rescale_convolutions``, and weight_scale the readout only.
    There the clip acts: the first gradients have norm 11 at κ = .1 and 7 at κ = 10, where it slows all weights, and
    below 4 from κ = .3 to 3 (measured, 3 seeds). The rate that goes as 1/κ² is that of SGD without a clip.

    SGD with momentum .9, batches of 64, gradients clipped at norm 5, until the running training loss is .25 nats: at
    equal steps a net of large κ would have learned more. ``max_steps`` = 0 leaves the nets as they are: what comes
    from scratch goes the same way.

    Arguments
        kappa, weight_scale: > 0, a number or one a net
        seeds: of each net; the same seed twice is the same net and the same images
        more: for ``labkit.training.train``: ``progress``, ...

    >>> old = pretrain([0.2, 5.0], 1.0, seeds=[0, 0], max_steps=2)
    >>> old.phase.steps, old.phase.reached.any()
    (tensor([2, 2]), tensor(False))
    """
    require_whole(0, max_steps=max_steps)
    seeds = whole_seeds(seeds)
    params = net.init(28, streams(seeds, WEIGHTS), dtype=dtype)
    kappa, weight_scale = (_each(n, v, params) for n, v in (("kappa", kappa), ("weight_scale", weight_scale)))
    if net.norm:
        params = rescale_convolutions(net, params, kappa) | {"readout": params["readout"] * weight_scale[:, None, None]}
    else:
        params = rescale(params, kappa, weight_scale)
    train, validation = _stacked(partial(digits.pretraining, dtype=dtype, device=kappa.device), seeds)
    optimizer, order = SGD(lr, MOMENTUM), streams(seeds, ORDER)
    plan = {"stop_loss": PRETRAINING["stop_loss"], "max_steps": max_steps, "clip": CLIP, "per_net": True}
    batches = {"batch": PRETRAINING["batch"], "generators": order}
    if max_steps:
        phase = learn(net.forward, params, *train, optimizer, loss=cross_entropy, **plan, **batches, **more)
    else:
        none = torch.zeros_like(kappa, dtype=torch.bool)
        phase = Phase(params, none.long(), torch.full_like(kappa, torch.nan), none, none)
    known = net.statistics(phase.params, train[0], PRETRAINING["batch"]) if net.norm else None
    with torch.no_grad():
        share = training.accuracy(net.forward(phase.params, validation[0], known), validation[1])
    accuracy = torch.where(phase.diverged, torch.nan, share)
    return Pretrained(net, seeds, kappa, weight_scale, params, phase, accuracy, known)


def finetune(
    old: Pretrained,
    task: str,
    n_per_class: int,
    gamma: PerNet = 1.0,
    centered: bool = False,
    statistics: str = "batch",
    lr: PerNet = FINETUNING["lr"],
    max_steps: int = FINETUNING["max_steps"],
    sample: tuple | None = None,
    **more,
) -> Finetuned:
    """Give every net a new readout N(0, γ²/width) and n_per_class images of a task; train all weights to .02 nats.

    Arguments
        task, n_per_class: of ``labkit.data.digits.finetuning``
        gamma: ≥ 0, a number or (net,). From scratch weight_scale/κ is that of the net as it was drawn
        centered: f − f_start is trained and tested, so that the random function of the new readout is not there
        statistics: of batch norm: "batch", those of the few images, in training and in the test; or "frozen", those of
            pretraining
        lr: of SGD with momentum .9 on all images; a number or (net,)
        sample: what `few_shots` gives, to be used again

    >>> old = pretrain([0.2, 5.0], 1.0, seeds=[0, 0], max_steps=2)
    >>> finetune(old, "subset", 3, max_steps=2).accuracy.shape
    torch.Size([2])
    """
    if statistics not in STATISTICS:
        raise ValueError(f"statistics must be one of {', '.join(STATISTICS)}, got {statistics!r}")
    if statistics == "frozen" and not old.net.norm:
        raise ValueError("statistics='frozen' needs batch norm, and these nets have none")
    train, test = few_shots(old, task, n_per_class) if sample is None else sample
    generators, n_classes = streams(old.seeds, READOUT), int(train[1].max()) + 1
    readout = new_readout(old.initial["readout"], gamma, generators, n_out=n_classes)
    start = old.phase.params | {"readout": readout}
    plan = {"stop_loss": FINETUNING["stop_loss"], "max_steps": max_steps, "clip": CLIP, "per_net": True}
    net, frozen = old.net, old.statistics if statistics == "frozen" else None
    forward, center = partial(net.forward, statistics=frozen), start if centered else None
    phase = learn(forward, start, *train, SGD(lr, MOMENTUM), center=center, loss=cross_entropy, **plan, **more)
    lost = phase.diverged | old.phase.diverged
    x, y = test
    with torch.no_grad():
        before, after = (
            net.features(params, x, net.statistics(params, train[0]) if net.norm and frozen is None else frozen)
            for params in (start, phase.params)
        )
        out = linear(after, phase.params["readout"])
        accuracy = training.accuracy(out - linear(before, start["readout"]) if centered else out, y)
    few = torch.linspace(0, len(y[0]) - 1, COMPARED, device=y.device).round().long()  # test images come by class
    seen = {"accuracy": accuracy} | compare(before[:, few].double(), after[:, few].double())
    return Finetuned(phase, **{name: torch.where(lost, torch.nan, value) for name, value in seen.items()})


def few_shots(old: Pretrained, task: str, n_per_class: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test images of a task, x (net, n, 1, 8, 8) and y (net, n), for each net those of its seed."""
    like = old.initial["readout"]
    make = partial(digits.finetuning, task, n_per_class, dtype=like.dtype, device=like.device)
    return _stacked(lambda seed: make(seed=10 * seed + SHOTS), old.seeds)


def smallest_rate(run: Callable[[float], Found], rates: Sequence[float] = RATES) -> tuple[Found, Tensor]:
    """Each net at the smallest rate at which it reached its training loss, and these rates (net,), nan for none.

    run: a rate → what `pretrain` or `finetune` found with it. Only training losses decide. The fastest rate would be
    another choice, and a poor one: large steps leave the solution of gradient flow. A net that reached its loss at no
    rate is reported as it was at the largest. Raises ValueError for no rates, or one that is not > 0.

    >>> old = pretrain(1.0, 1.0, seeds=[0, 1], max_steps=30)
    >>> found, rates = smallest_rate(lambda lr: finetune(old, "subset", 3, lr=lr), rates=[1e-5, 0.01])
    >>> rates
    tensor([0.0100, 0.0100])
    """
    rates = sorted(float(rate) for rate in rates)
    if not rates or not 0 < rates[0] <= rates[-1] < torch.inf:
        raise ValueError(f"rates must be one number or more, all positive and finite, got {rates}")
    best = run(rates[0])
    chosen = torch.where(best.phase.reached, rates[0], torch.nan)
    for rate in rates[1:]:
        missing = ~best.phase.reached
        if not missing.any():
            break
        found = run(rate)
        chosen = torch.where(missing & found.phase.reached, rate, chosen)
        best = _choose(missing, found, best)
    return best, chosen


def live(
    kappas: Sequence[float] = (0.2, 1.0, 5.0),
    seeds: Sequence[int] = range(5),
    cells: Sequence[dict] = (
        {"task": "subset", "gamma": 1.0, "centered": False},
        {"task": "subset", "gamma": 1.0, "centered": True},
        {"task": "shift", "gamma": 1.0, "centered": False},
        {"task": "shift", "gamma": 1.0, "centered": True},
    ),
    n_per_class: int = 3,
    max_steps: int = PRETRAINING["max_steps"],
    progress: Callable[[Iterable], Iterable] = lambda items: items,
) -> dict[str, Tensor]:
    """The experiment now, in about 40 seconds: pretrain at each κ, then fine-tune in each of the ``cells``.

    cells: arguments of `finetune`. progress(items) passes on one item a pretraining and a cell, as tqdm does.
    Returns accuracy, steps, loss and diverged, each (cell, kappa, seed), and pretraining_steps (kappa, seed). Raises as
    these do, and ValueError for no κ and no cell.

    >>> live([1.0], [0, 1], [{"task": "new"}], max_steps=2)["accuracy"].shape
    torch.Size([1, 1, 2])
    """
    for name, values in (("kappas", kappas), ("cells", cells)):
        if not hasattr(values, "__len__") or isinstance(values, dict | str):
            raise TypeError(f"{name} must be a list, got {values!r}")
        if not len(values):
            raise ValueError(f"{name} must hold at least one, got none")
    for place, cell in enumerate(cells):
        if not isinstance(cell, dict):
            raise TypeError(f"cells[{place}] must be a dict of arguments of finetune, got {cell!r}")
    seeds = whole_seeds(seeds)
    found: dict[str, list] = {"accuracy": [], "steps": [], "loss": [], "diverged": []}
    old, spent = None, []
    for kappa, cell in progress([(kappa, cell) for kappa in kappas for cell in (None, *cells)]):
        if cell is None:
            old = pretrain(kappa, 1.0, seeds, max_steps=max_steps)
            spent.append(old.phase.steps)
            continue
        new = finetune(old, n_per_class=n_per_class, **cell)
        for name, value in (("accuracy", new.accuracy), *((n, getattr(new.phase, n)) for n in list(found)[1:])):
            found[name].append(value)
    shape = len(kappas), len(cells), len(seeds)
    return {name: torch.stack(values).view(shape).transpose(0, 1) for name, values in found.items()} | {
        "pretraining_steps": torch.stack(spent)
    }


def gallery(seed: int, n_per_class: int = 3) -> dict[str, Tensor]:
    """Training images to look at: "pretraining" (4, 7, 8, 8), a row a rotation and a column a digit; of each task
    (n_per_class, class, 8, 8).

    >>> {name: tuple(tiles.shape[:2]) for name, tiles in gallery(0).items()}
    {'pretraining': (4, 7), 'subset': (3, 5), 'new': (3, 6), 'shift': (3, 5)}
    """

    def columns(images: digits.Images, rows: int) -> Tensor:
        return torch.stack([images.x[images.y == label][:rows, 0] for label in range(images.n_classes)], 1)

    tasks = {task: columns(digits.finetuning(task, n_per_class, seed)[0], n_per_class) for task in digits.TASKS}
    return {"pretraining": columns(digits.pretraining(seed)[0], 1).unflatten(1, (4, 7))[0]} | tasks


def _each(name: str, value: PerNet | Sequence[float], params: Params) -> Tensor:
    """A number or one a net as (net,), > 0."""
    like = params["readout"]
    try:
        value = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    except (TypeError, ValueError, RuntimeError):  # a text, None, a ragged list
        raise TypeError(f"{name} must be a number or one for each of {len(like)} seeds, got {value!r}") from None
    if value.shape not in ((), like.shape[:1]):
        raise ValueError(f"{name} must be a number or one for each of {len(like)} seeds, got {tuple(value.shape)}")
    require_positive(**{name: value})
    return value.expand(len(like))


def _stacked(make: Callable[..., tuple], seeds: Sequence[int]) -> tuple[tuple[Tensor, Tensor], ...]:
    """What make(seed) gives, (images, images), one behind the other: ((x, y), (x, y)) with a net axis in front."""
    each = {int(seed): make(int(seed)) for seed in seeds}
    parts = zip(*(each[int(seed)] for seed in seeds), strict=True)
    return tuple((torch.stack([i.x for i in part]), torch.stack([i.y for i in part])) for part in parts)


def _choose(mask: Tensor, there: Found, here: Found) -> Found:
    """``there`` where the mask (net,) is True, else ``here``: tensors (net, ...), dicts and dataclasses of them."""
    if isinstance(here, Tensor):
        return torch.where(mask.view(-1, *[1] * (here.dim() - 1)), there, here)
    if isinstance(here, dict):
        return {name: _choose(mask, there[name], value) for name, value in here.items()}
    if is_dataclass(here) and not isinstance(here, ResNet):
        names = [field.name for field in fields(here)]
        return replace(here, **{name: _choose(mask, getattr(there, name), getattr(here, name)) for name in names})
    return here  # the same for both
