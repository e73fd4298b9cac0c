"""The experiment at the size of the paper: ResNet-18 from CIFAR-100 to few images of CIFAR-100 and SVHN. One command:

    labkit data fetch cifar100 svhn
    labkit sweep image_transfer --profile full --device cuda      # goes on where it was stopped

A seed permutes the 100 classes: 90 are pretrained on, 10 held out; of every class some images are kept back from
pretraining, and fine-tuning draws from those. Its tasks have 10 classes each: ``subset`` (of the 90), ``new`` (the
held-out ones) and ``svhn``. Both phases run to a loss with SGD, at the smallest of three rates that gets there: only
training losses decide. Controls: ``reset`` (the same new readout on the body as it was before pretraining), centered
outputs, batch norm frozen or not, no norm at all. Pretrained nets are kept on disk and shared by all that follows.

The protocol is our choice: that of arXiv 2602.20062 is not known to us. Nothing here has been run on a GPU or on the
whole data sets yet: the tests run it, small, on generated files of the real formats, on a CPU.
"""

import math
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Real
from typing import NamedTuple

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor
from tqdm.auto import tqdm

from labkit import compute, data, training
from labkit.cache import Cache, entry_key, home, value_key
from labkit.data import download
from labkit.data.images import Images, few_shot, subset
from labkit.training import SGD, Params, cross_entropy, linear
from labkit.transfer.protocol import Phase, learn, new_readout
from labkit.transfer.representation import compare
from labkit.transfer.resnet import RESNET18, ResNet, rescale, rescale_convolutions
from labkit.validate import require_whole

TASKS = ("subset", "new", "svhn")
SOURCES = ("pretrained", "reset")
NORMS = ("frozen", "train", "none")  # batch norm by what pretraining saw, by each batch of fine-tuning; no norm at all
WAY = 10  # classes of a fine-tuning task
TEST_PER_CLASS = 100  # so that every task is tested, and every PR taken, on as many images
CHUNK = 4  # batches: test images at a time, which take no gradients
HIGHEST = 2**59  # seed
LOST = 1e4  # nats: a batch of this loss, or one that is not finite, is a net that diverged
CLASSES, KEPT, WEIGHTS, ORDER, READOUT, SHOTS, SHUFFLE = range(7)  # what a seed is used for
UNITS = ("accuracy", "pr_before", "pr_after", "ensd", "cka")  # nan where a net diverged


def _number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Protocol:
    """Sizes and rules of both phases.

    Fields
        net: with batch norm; "none" is the same shape without
        n_per_class: images of a class that pretraining sees; fine-tuning draws from the others
        batch: images a step, in fine-tuning at most
        rates, stop_loss, epochs: of pretraining: learning rates in rising order, nats, epochs at most
        few_rates, few_stop_loss, few_steps: the same of fine-tuning
        stack: nets that are trained as one. 1 where a single net fills the device: grouped convolutions are slow there
        autocast: torch.bfloat16 or None, of the convolutions in pretraining; readout, loss and all that is measured
            stay in float32
    """

    net: ResNet = RESNET18
    n_per_class: int = 380
    batch: int = 128
    rates: tuple[float, ...] = (0.01, 0.03, 0.1)
    stop_loss: float = 0.01
    epochs: int = 100
    few_rates: tuple[float, ...] = (0.001, 0.003, 0.01)
    few_stop_loss: float = 0.01
    few_steps: int = 2000
    momentum: float = 0.9
    clip: float = 5.0
    stack: int = 1
    autocast: torch.dtype | None = None

    def __post_init__(self) -> None:
        counts = ("n_per_class", "batch", "epochs", "few_steps", "stack")
        require_whole(1, **{name: getattr(self, name) for name in counts})
        for name in ("rates", "few_rates"):
            rates = getattr(self, name)
            if not isinstance(rates, tuple) or not rates or not all(_number(rate) and rate > 0 for rate in rates):
                raise ValueError(f"{name} must be a tuple of one number or more, positive and finite, got {rates!r}")
        for name in ("stop_loss", "few_stop_loss", "clip"):
            if not _number(value := getattr(self, name)) or value <= 0:
                raise ValueError(f"{name} must be positive and finite, got {value!r}")
        if not _number(self.momentum) or not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum!r}")
        if self.autocast not in (None, torch.bfloat16):
            raise ValueError(f"autocast must be torch.bfloat16 or None, got {self.autocast}")
        if not self.net.norm or len(self.net.channels) < 2 or self.net.in_channels != 3:
            raise ValueError(f"net must have norm='batch', in_channels=3 and two stages or more, got {self.net}")

    def network(self, norm: str) -> ResNet:
        """The net; for "none" without a norm, its second convolutions and shortcuts at .7 of He's scale."""
        return replace(self.net, norm=None, branch_std=0.7) if norm == "none" else self.net


TINY = Protocol(  # to see that everything runs
    replace(RESNET18, channels=(4, 8), blocks=1),
    n_per_class=4,
    batch=60,
    rates=(0.03, 0.1),
    stop_loss=4.2,
    epochs=3,
    few_rates=(0.01, 0.03),
    few_stop_loss=1.0,
    few_steps=15,
    stack=16,
)
FULL = Protocol()
SMALL = Protocol(  # for a computer without a GPU: about two hours, estimated from the time of a step on one core
    replace(RESNET18, channels=(8, 16, 32, 64), blocks=1),
    n_per_class=100,
    stop_loss=2.0,
    epochs=40,
    few_steps=300,
    stack=3,
)


def protocol() -> Protocol:
    """That of the current profile: tiny, small, or ResNet-18; bfloat16 only where there is a CUDA device.

    ``LABKIT_BATCH``, which ``labkit sweep --batch`` sets, takes the place of ``batch``.
    """
    chosen = compute.pick(quick=TINY, standard=SMALL, full=FULL)
    chosen = replace(chosen, autocast=torch.bfloat16 if compute.device().type == "cuda" else None)
    if wanted := os.environ.get("LABKIT_BATCH", "").strip():
        if not wanted.isascii() or not wanted.isdigit() or int(wanted) < 1:
            raise ValueError(f"LABKIT_BATCH must be a whole number >= 1, got {wanted!r}")
        chosen = replace(chosen, batch=int(wanted))
    return chosen


def loaded(name: str, part: str = "train") -> Images:
    """`labkit.data.load`, remembered: between the calls of a sweep the images stay on their device."""
    content = tuple(file.md5 for file in download.FILES[name])
    return _loaded(name, part, str(compute.device()), str(download.folder()), content)


@lru_cache(4)  # two data sets of two parts
def _loaded(name: str, part: str, device: str, folder: str, content: tuple[str, ...]) -> Images:
    return data.load(name, part)


def streams(seeds: Sequence[int], purpose: int) -> list[torch.Generator]:
    """One generator a seed, another one for each purpose. TypeError or ValueError unless in [0, 2⁵⁹]."""
    for seed in seeds:
        require_whole(0, seed=seed)
        if seed > HIGHEST:
            raise ValueError(f"seed must be <= 2**59, got {seed}")
    return training.generators([10 * int(seed) + 400_000 + purpose for seed in seeds])


# ---- pretraining


@dataclass(frozen=True, eq=False)
class Pretrained:
    """One net before and after pretraining, on the CPU: there may be more of them than a GPU holds.

    Fields
        net: its shape
        initial, params: weights (1, ...) at the start and at the end
        initial_statistics, statistics: of batch norm, on the images of pretraining; empty without
        numbers: loss, steps, rate, reached, diverged, accuracy (on test images of the 90 classes) and precision, the
            largest difference of logits in the precision of pretraining and in float32, relative to their size
    """

    net: ResNet
    initial: Params
    initial_statistics: Params
    params: Params
    statistics: Params
    numbers: dict[str, float]

    @property
    def diverged(self) -> bool:
        return bool(self.numbers["diverged"])


def classes(seed: int) -> tuple[list[int], list[int]]:
    """The 90 classes of CIFAR-100 that this seed pretrains on, and the 10 that it holds out.

    >>> known, held_out = classes(0)
    >>> len(known), len(held_out), sorted(known + held_out) == list(range(100))
    (90, 10, True)
    """
    order = torch.randperm(100, generator=streams([seed], CLASSES)[0], device="cpu").tolist()
    return order[WAY:], order[:WAY]


def scaled(net: ResNet, params: Params, kappa: float, weight_scale: float) -> Params:
    """The weights at relative scale κ and absolute scale weight_scale.

    Without a norm: stem × κ·weight_scale, readout × weight_scale/κ. With batch norm: the convolutions before the last
    stage × κ, those of the last × 1/κ, then all of them and the readout × weight_scale: only the readout changes the
    function, the convolutions only how fast they turn.
    """
    _require_scales(kappa, weight_scale)
    if not net.norm:
        return rescale(params, kappa, weight_scale)
    params = rescale_convolutions(net, params, kappa)
    names = [name for name, *_ in net.convolutions()] + ["readout"]
    return params | {name: params[name] * weight_scale for name in names}


def pretrain(
    rules: Protocol,
    norm: str,
    scales: Sequence[tuple[float, float]],
    seed: int,
    progress: bool = False,
    load: Callable[..., Images] = data.load,
) -> list[Pretrained]:
    """Nets of one seed at several (κ, weight_scale), from disk where they have been trained before.

    Each is one file in pretrained/ of `labkit.cache.home`, under the content of everything that it depends on: rules,
    scales, seed, data, device and labkit's source. It is written as a whole or not at all, and recomputed when damaged.
    What another process is training is waited for: its lock is gone with the process.
    Raises MemoryError when a batch does not fit, with the one that does; OSError on a full disk.
    """
    _require_one_of("norm", norm, ("batch", *NORMS))
    for pair in scales:
        _require_scales(*pair)
    store, net = Cache.open(pretrain, home() / "pretrained"), rules.network(norm)
    content = [file.md5 for file in download.FILES["cifar100"]]
    named = {"rules": rules, "without a norm": norm == "none", "data": content, "seed": int(seed)}
    scales = [(float(kappa), float(scale)) for kappa, scale in scales]
    keys = {
        pair: entry_key(
            store.folder.name, {name: value_key(value) for name, value in (named | {"scales": pair}).items()}
        )
        for pair in dict.fromkeys(scales)
    }
    drawn = net.init(100 - WAY, streams([seed], WEIGHTS), device="cpu", dtype=torch.float32)
    initial = {pair: scaled(net, drawn, *pair) for pair in keys}
    there = {pair: found for pair, key in keys.items() if (found := store.read(key)) is not None}
    if missing := [pair for pair in keys if pair not in there]:
        known, _ = classes(seed)
        with _fits(rules):
            train, test = (subset(images, known) for images in (_kept(rules, seed, load)[0], load("cifar100", "test")))
        for start in range(0, len(missing), rules.stack):
            part = missing[start : start + rules.stack]
            with _alone(store, entry_key(store.folder.name, {keys[pair]: "" for pair in part})) as waited:
                if waited:
                    there |= {pair: found for pair in part if (found := store.read(keys[pair])) is not None}
                    part = [pair for pair in part if pair not in there]
                made = part and _pretrained(rules, net, [initial[pair] for pair in part], seed, train, test, progress)
                for i, pair in enumerate(part):
                    there[pair] = {name: value[i].cpu().numpy() for name, value in made.items()}
                    store.write(keys[pair], there[pair])
    return [_unpacked(net, initial[pair], there[pair]) for pair in scales]


@contextmanager
def _alone(store: Cache, key: str) -> Iterator[bool]:
    """One process at a time is in here with a key; whether another one was when this one came."""
    lock = FileLock(store.folder / f"{key}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        tqdm.write("another process is pretraining these nets: waiting for it")
        with lock:
            yield True
    else:
        try:
            yield False
        finally:
            lock.release()


def _pretrained(
    rules: Protocol, net: ResNet, starts: list[Params], seed: int, train: Images, test: Images, progress: bool
) -> dict[str, Tensor]:
    """What is kept of a stack: vectors (net, ...) of weights and statistics, and numbers (net,)."""
    with _fits(rules) as probe:
        initial = {name: value.to(train.x) for name, value in _stacked(starts).items()}
        probe.update(net=net, params=initial, x=train.x, y=train.y)
        return _pretrained_there(rules, net, initial, seed, train, test, progress)


def _pretrained_there(
    rules: Protocol, net: ResNet, initial: Params, seed: int, train: Images, test: Images, progress: bool
) -> dict[str, Tensor]:
    batch = min(rules.batch, len(train))

    def attempt(index: Tensor, rate: float) -> Phase:
        return learn(
            forward(net, None),
            {name: value[index] for name, value in initial.items()},
            train.x,
            train.y,
            SGD(rate, rules.momentum),
            rules.stop_loss,
            rules.epochs * (len(train) // batch),
            loss=cross_entropy,
            batch=batch,
            generators=streams([seed], ORDER)[0],  # all scales of a seed see the same batches
            clip=rules.clip,
            max_loss=LOST,
            autocast=rules.autocast,
            progress=progress,
        )

    phase, rate = at_smallest_rate(attempt, len(initial["readout"]), rules.rates, train.x)
    before, after = (statistics(net, params, train.x, batch) for params in (initial, phase.params))
    right = [(logits(net, phase.params, x, after).argmax(-1) == y).to(x).mT for x, y in _chunks(test, batch)]
    return {
        "params": _flat(phase.params),
        "initial_statistics": _flat(before, len(rate), train.x),
        "statistics": _flat(after, len(rate), train.x),
        "loss": phase.loss,
        "steps": phase.steps,
        "rate": rate,
        "reached": phase.reached,
        "diverged": phase.diverged,
        "accuracy": torch.where(phase.diverged, torch.nan, torch.cat(right).mean(0)),
        "precision": precision(net, phase.params, test.x[: CHUNK * batch], after, rules.autocast),
    }


def _unpacked(net: ResNet, initial: Params, kept: dict[str, np.ndarray]) -> Pretrained:
    shapes = {name: value.shape[1:] for name, value in initial.items()}
    moments = {name: (2, shape[0]) for name, shape, _ in net.convolutions()} if net.norm else {}
    numbers, vectors = dict(kept), {}
    for name, of in (("initial_statistics", moments), ("params", shapes), ("statistics", moments)):
        pieces = torch.from_numpy(numbers.pop(name)).split([math.prod(shape) for shape in of.values()])
        vectors[name] = {part: piece.view(1, *of[part]) for part, piece in zip(of, pieces, strict=True)}
    return Pretrained(net, initial, **vectors, numbers={name: value.item() for name, value in numbers.items()})


def _flat(values: Params, n_nets: int = 0, like: Tensor | None = None) -> Tensor:
    """(net, numbers), no numbers at all where there are no values."""
    return torch.cat([value.flatten(1) for value in values.values()], 1) if values else like.new_empty(n_nets, 0)


def _kept(rules: Protocol, seed: int, load: Callable[..., Images]) -> tuple[Images, Images]:
    """Of the training part of CIFAR-100: the images of pretraining, n_per_class of every class, and the others."""
    return few_shot(load("cifar100"), rules.n_per_class, streams([seed], KEPT)[0])


# ---- fine-tuning


def shots(
    rules: Protocol, task: str, n: int, seed: int, load: Callable[..., Images] = data.load
) -> tuple[Images, Images]:
    """n images of a task, equally many of its 10 classes, and up to 100 a class to test on.

    Training images were not seen in pretraining; test images are of CIFAR's and SVHN's own test part. ``load`` is
    `labkit.data.load`, or what remembers it for a while. Raises ValueError for another task and unless n is a multiple
    of 10, with enough images of every class.
    """
    _require_one_of("task", task, TASKS)
    require_whole(WAY, n=n)
    if n % WAY:
        raise ValueError(f"n must be a multiple of {WAY}, the number of classes, got {n}")
    generator = streams([seed], SHOTS)[0]
    if task == "svhn":
        pool, test = load("svhn"), load("svhn", "test")
    else:
        known, held_out = classes(seed)
        chosen = held_out if task == "new" else known[:WAY]
        pool, test = (subset(part, chosen) for part in (_kept(rules, seed, load)[1], load("cifar100", "test")))
    least = int(torch.bincount(test.y, minlength=WAY).min())
    most = WAY * (int(torch.bincount(pool.y, minlength=WAY).min()) - 1)  # few_shot leaves one
    if n > most:
        raise ValueError(f"n must be <= {most}, as many as there are of each class for {task}, got {n}")
    few, _ = few_shot(pool, n // WAY, generator)
    return few, few_shot(test, TEST_PER_CLASS, generator)[0] if least > TEST_PER_CLASS else test


def finetune(
    rules: Protocol,
    old: Sequence[Pretrained],
    seeds: Sequence[int],
    few: Sequence[Images],
    test: Sequence[Images],
    gamma: Sequence[float],
    source: Sequence[str],
    norm: str,
    centered: bool,
    progress: bool = False,
) -> dict[str, Tensor]:
    """Fine-tune each net from a new readout N(0, γ²/width); all nets of one ``norm``, plain or ``centered``.

    Arguments
        old, seeds, few, test, gamma, source: one of each a net; equally many images
        centered: f − f_start is trained and tested

    Returns, each (net,): accuracy, pr_before, pr_after, ensd, cka (of pooled features of the test images, in float64;
    nan where the net diverged), loss, steps and rate (nan where pretraining diverged), reached and diverged. Raises
    ValueError or TypeError for another source or norm, γ < 0 or not finite, and centered that is no bool.
    """
    for name in source:
        _require_one_of("source", name, SOURCES)
    _require_one_of("norm", norm, NORMS)
    for value in gamma:
        _require_gamma(value)
    _require_bool(centered)
    with _fits(rules) as probe:
        return _finetuned(rules, old, seeds, few, test, gamma, source, norm, centered, progress, probe)


def _finetuned(
    rules: Protocol,
    old: Sequence[Pretrained],
    seeds: Sequence[int],
    few: Sequence[Images],
    test: Sequence[Images],
    gamma: Sequence[float],
    source: Sequence[str],
    norm: str,
    centered: bool,
    progress: bool,
    probe: dict,
) -> dict[str, Tensor]:
    net, lost = old[0].net, [o.diverged and name != "reset" for o, name in zip(old, source, strict=True)]
    untrained = [bad or name == "reset" for bad, name in zip(lost, source, strict=True)]  # lost weights may be nan
    bodies = [o.initial if bare else o.params for o, bare in zip(old, untrained, strict=True)]
    seen = [o.initial_statistics if bare else o.statistics for o, bare in zip(old, untrained, strict=True)]
    x, y = (torch.stack([getattr(images, name) for images in few]) for name in ("x", "y"))
    start, frozen = ({name: v.to(x) for name, v in _stacked(parts).items()} for parts in (bodies, seen))
    gammas = torch.tensor(gamma, dtype=x.dtype, device=x.device)
    start |= {"readout": new_readout(start["readout"], gammas, streams(seeds, READOUT), n_out=WAY)}
    batch = min(rules.batch, x.shape[1])
    probe.update(net=net, params=start, x=x, y=y)

    def attempt(index: Tensor, rate: float) -> Phase:
        here = {name: value[index] for name, value in start.items()}
        fixed = {name: value[index] for name, value in frozen.items()} if norm == "frozen" else None
        return learn(
            forward(net, fixed),
            here,
            x[index],
            y[index],
            SGD(rate, rules.momentum),
            rules.few_stop_loss,
            rules.few_steps,
            center=here if centered else None,
            loss=cross_entropy,
            per_net=True,
            batch=batch,
            generators=streams([seeds[i] for i in index.tolist()], SHUFFLE),
            clip=rules.clip,
            max_loss=LOST,
            progress=progress,
        )

    phase, rate = at_smallest_rate(attempt, len(old), rules.few_rates, x)
    nowhere = torch.tensor(lost, device=x.device)  # pretraining diverged: what was trained here is another net
    diverged = phase.diverged | nowhere
    ends = [frozen if norm == "frozen" else statistics(net, params, x, batch) for params in (start, phase.params)]
    right, before, after = [], [], []
    both = Images(*(torch.stack([getattr(images, name) for images in test], 1) for name in ("x", "y")), WAY)
    for some, labels in _chunks(both, rules.batch):  # (image, net, ...)
        some = some.transpose(0, 1)
        z = [features(net, params, some, end) for params, end in zip((start, phase.params), ends, strict=True)]
        out = linear(z[1], phase.params["readout"])
        out = out - linear(z[0], start["readout"]) if centered else out
        right.append((out.argmax(-1).T == labels).double())
        before.append(z[0].double())
        after.append(z[1].double())
    measured = {"accuracy": torch.cat(right).mean(0)} | compare(torch.cat(before, 1), torch.cat(after, 1))
    found = {name: torch.where(diverged, torch.nan, value) for name, value in measured.items()}
    ended = {"loss": phase.loss, "steps": phase.steps.to(x), "rate": rate}
    found |= {name: torch.where(nowhere, torch.nan, value) for name, value in ended.items()}
    return found | {"reached": phase.reached & ~nowhere, "diverged": diverged}


def image_transfer(
    norm: np.ndarray,
    task: np.ndarray,
    n: np.ndarray,
    source: np.ndarray,
    centered: np.ndarray,
    gamma: np.ndarray,
    kappa: np.ndarray,
    weight_scale: np.ndarray,
    seed: np.ndarray,
    batch: np.ndarray | None = None,
    rules: Protocol | None = None,
) -> dict[str, np.ndarray]:
    """The study, for ``labkit.sweep.run`` with ``batched``: each argument (row,); what `finetune` returns, each (row,).

    Besides, of the net that a row started from: ``pretraining_loss``, ``_steps``, ``_rate``, ``_reached``,
    ``_diverged``, ``_accuracy``, ``_precision``. Rules: by default those of the profile, with this batch where one is
    given, the same for all rows. Raises ValueError or TypeError, naming argument and value, for what is no such
    setting, before anything is trained; DataError when the data cannot be had; MemoryError as `pretrain`.
    """
    rules = protocol() if rules is None else rules
    if batch is not None:
        if len(sizes := set(batch.tolist())) > 1:
            raise ValueError(f"batch must be the same for all rows of a call, got {sorted(sizes)}")
        rules = replace(rules, batch=sizes.pop()) if sizes else rules
    columns = (norm, task, n, source, centered, gamma, kappa, weight_scale, seed)
    rows = [Row(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]
    for row in rows:
        _require_one_of("norm", row.norm, NORMS)
        _require_one_of("source", row.source, SOURCES)
        _require_one_of("task", row.task, TASKS)
        _require_scales(row.kappa, row.weight_scale)
        _require_gamma(row.gamma)
        _require_bool(row.centered)
        streams([row.seed], SHOTS)
    with _fits(rules):
        wanted = dict.fromkeys((row.task, row.n, row.seed) for row in rows)
        images = {each: shots(rules, *each, loaded) for each in wanted}
    nets: dict[tuple, Pretrained] = {}
    for of in sorted({(row.body, row.seed) for row in rows}):
        scales = list(dict.fromkeys((row.kappa, row.weight_scale) for row in rows if (row.body, row.seed) == of))
        trained = pretrain(rules, of[0], scales, of[1], progress=True, load=loaded)
        nets |= {(*of, *pair): net for pair, net in zip(scales, trained, strict=True)}
    found: dict[str, np.ndarray] = {}
    for cell in dict.fromkeys((row.norm, row.centered, row.task, row.n) for row in rows):
        places = [i for i, row in enumerate(rows) if (row.norm, row.centered, row.task, row.n) == cell]
        for part in (places[start : start + rules.stack] for start in range(0, len(places), rules.stack)):
            mine = [rows[i] for i in part]
            old = [nets[row.body, row.seed, row.kappa, row.weight_scale] for row in mine]
            few, test = zip(*(images[row.task, row.n, row.seed] for row in mine), strict=True)
            each = {name: [getattr(row, name) for row in mine] for name in ("gamma", "source")}
            new = finetune(rules, old, [row.seed for row in mine], few, test, **each, norm=cell[0], centered=cell[1])
            values = {name: value.cpu().numpy() for name, value in new.items()}
            values |= {f"pretraining_{name}": np.array([o.numbers[name] for o in old]) for name in old[0].numbers}
            for name, value in values.items():
                found.setdefault(name, np.empty(len(rows), value.dtype))[part] = value
    return found


class Row(NamedTuple):
    norm: str
    task: str
    n: int
    source: str
    centered: bool
    gamma: float
    kappa: float
    weight_scale: float
    seed: int

    @property
    def body(self) -> str:
        """What it was pretrained as: frozen or not is a question of fine-tuning."""
        return "none" if self.norm == "none" else "batch"


# ---- what both phases share


def forward(net: ResNet, frozen: Params | None) -> Callable[[Params, Tensor], Tensor]:
    """f(params, x) for ``labkit.training.train``: under autocast the readout stays in the dtype of its weights."""
    return lambda params, x: logits(net, params, x, frozen)


def logits(net: ResNet, params: Params, x: Tensor, frozen: Params | None) -> Tensor:
    """(net, batch, class), the readout never in half precision."""
    z, kind = features(net, params, x, frozen), x.device.type
    with torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext():
        return linear(z, params["readout"])


def features(net: ResNet, params: Params, x: Tensor, frozen: Params | None) -> Tensor:
    """Pooled features (net, batch, width) in the dtype of the weights."""
    return net.features(params, x, frozen or None).to(params["readout"].dtype)


def statistics(net: ResNet, params: Params, x: Tensor, batch: int) -> Params:
    """Those of batch norm over batches of x; empty without a norm."""
    return net.statistics(params, x, batch) if net.norm else {}


def precision(net: ResNet, params: Params, x: Tensor, frozen: Params, autocast: torch.dtype | None) -> Tensor:
    """max |f_autocast − f| / max |f| over images → (net,); 0 without autocast."""
    with torch.no_grad():
        exact = logits(net, params, x, frozen)
        if autocast is None:
            return torch.zeros_like(exact[:, 0, 0])
        with torch.autocast(x.device.type, autocast):
            rough = logits(net, params, x, frozen)
    return (rough - exact).abs().amax((1, 2)) / exact.abs().amax((1, 2))


def at_smallest_rate(
    attempt: Callable[[Tensor, float], Phase], n_nets: int, rates: Sequence[float], like: Tensor
) -> tuple[Phase, Tensor]:
    """Each net at the smallest rate at which it reaches its loss, and these rates (net,).

    ``attempt(index, rate)`` trains the nets of these numbers. Rates are tried in rising order, each on the nets that
    are still waiting. A net that reaches its loss at no rate keeps the attempt of least training loss; one that
    diverged at every rate the first.
    """
    first, *others = sorted(rates)
    best, chosen = attempt(torch.arange(n_nets, device=like.device), first), like.new_full((n_nets,), first)
    fields = ("steps", "loss", "reached", "diverged")
    for rate in others:
        waiting = (~best.reached).nonzero().flatten()
        if not len(waiting):
            break
        new = attempt(waiting, rate)
        better = ~new.diverged & (best.diverged[waiting] | new.reached | (new.loss < best.loss[waiting]))
        here = waiting[better]
        params = {name: value.index_copy(0, here, new.params[name][better]) for name, value in best.params.items()}
        best = Phase(params, **{f: getattr(best, f).index_put((here,), getattr(new, f)[better]) for f in fields})
        chosen[here] = rate
    return best, chosen


@contextmanager
def _fits(rules: Protocol) -> Iterator[dict]:
    """Turn a lack of memory, wherever it is met, into a sentence that says which batch fits.

    The body tells what it trains, as soon as that is there: net, params, x, y.
    """
    probe: dict = {}
    try:
        yield probe
    except (RuntimeError, MemoryError) as error:
        if not _lacks_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they would hold on to the memory that is looked for
        fewer = f", or a stack below {rules.stack}" if rules.stack > 1 else ""
        place = compute.device()
        if not probe:
            less = f"close what else uses it{fewer}"
            raise MemoryError(f"images and networks alone do not fit into the memory of {place}; {less}") from error
        net, params, x, y = (probe[name] for name in ("net", "params", "x", "y"))
        axis = 0 if x.dim() == 4 else 1
        batch = min(rules.batch, x.shape[axis])

        def step(size: int) -> None:
            leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
            out = logits(net, leaves, x.narrow(axis, 0, size), None)
            cross_entropy(out, y.narrow(axis, 0, size)).sum().backward()

        size = largest_that_fits(step, batch // 2)
        remedy = f"{size} do: take  labkit sweep --batch {size}  or rules with batch={size}{fewer}"
        remedy = remedy if size else f"not one does: take a smaller network{fewer}"
        raise MemoryError(f"batch={batch} images a step do not fit into the memory of {place}; {remedy}") from error


def largest_that_fits(step: Callable[[int], None], size: int) -> int:
    """The first of size, size/2, … for which ``step`` does not run out of memory; 0 for none.

    >>> def step(size):
    ...     if size > 20:
    ...         raise torch.OutOfMemoryError
    >>> largest_that_fits(step, 64)
    16
    """
    while size:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        try:
            step(size)
        except RuntimeError as error:
            if not _lacks_memory(error):
                raise
            size //= 2
            continue
        return size
    return 0


def _lacks_memory(error: RuntimeError | MemoryError) -> bool:
    """Each kind of device says it in its own words."""
    said = str(error)
    lacking = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return lacking or "out of memory" in said or "can't allocate memory" in said


def _chunks(images: Images, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    with torch.no_grad():
        yield from zip(images.x.split(CHUNK * batch), images.y.split(CHUNK * batch), strict=True)


def _stacked(parts: list[Params]) -> Params:
    """Nets (1, ...) as one (net, ...)."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _require_one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _require_scales(kappa: float, weight_scale: float) -> None:
    for name, value in (("kappa", kappa), ("weight_scale", weight_scale)):
        if not _number(value) or value <= 0:
            raise ValueError(f"{name} must be positive and finite, got {value!r}")


def _require_gamma(gamma: float) -> None:
    if not _number(gamma) or gamma < 0:
        raise ValueError(f"gamma must lie in [0, inf), got {gamma!r}")


def _require_bool(centered: bool) -> None:
    if not isinstance(centered, bool | np.bool_):
        raise TypeError(f"centered must be True or False, got {centered!r}")
